// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <type_traits>
#include <utility>

/// Lion's arithmetic: a vote from a momentum and a gradient, and a step from what was voted.
namespace onebit::inline v0_1 {

/// Options of a step of Lion.
struct lion_options {
  double beta1 = 0.9;   ///< of the momentum, in the vote
  double beta2 = 0.99;  ///< of the momentum, from step to step
  /// As adam_options::max_grad_norm. A vote knows no size: it limits what one gradient does to m.
  double max_grad_norm = 0;
};

namespace detail {

struct lion_constants {
  moments_constants of;

  /// sign(beta1 m + (1 - beta1) g), of 0: 0; NaN where that is not finite.
  template <class L>
  ONEBIT_HD typename L::value vote(const typename L::value& m, const typename L::value& g) const {
    const auto u = of.template next_momentum<L>(m, g);
    const auto zero = L::set(0.0F);
    const auto not_up = L::select(L::not_negative(u), zero, L::set(-1.0F));
    return L::fma(u, zero, L::select(L::positive(u), L::set(1.0F), not_up));
  }
  template <class L>
  ONEBIT_HD typename L::value next_momentum(const typename L::value& m,
                                            const typename L::value& g) const {
    return L::fma(g, L::set(of.one_minus_beta2), L::mul(m, L::set(of.beta2)));
  }
};

/// base + this rank's vote.
template <class M, class P, class G>
struct vote_message {
  M* momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  const step_scalars* now;

  template <class L>
  struct reader {
    momentum_of<L, M> momentum;
    gradients_of<L, G> gradient;
    lion_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, c.template vote<L>(momentum.load(k), gradient.load(k)));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {momentum_of<L, M>(momentum, t),
            gradients_of<L, G>(tensors[t.tensor], t, now),
            {numbers[t.tensor].c}};
  }
};

/// x -= lr (u + weight_decay x), u what was voted; m takes this rank's own gradient in. Dense: from
/// the exact mean of the gradients, which votes alone.
template <bool Dense, class View, class M, class P, class G>
struct lion_kernel {
  View view;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  M* m;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto view_at = view.template at<L>(t, i);
    const gradients_of<L, G> gradient(tensor, t, now);
    const parameters_of<L, P> params(tensor, t);
    const momentum_of<L, M> momentum(m, t);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const lion_constants c{numbers[t.tensor].c};
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto heard = view_at(k), old = momentum.load(k), x = params.load(k);
      const auto g = Dense ? heard : gradient.load(k);
      const auto u = Dense ? c.template vote<L>(old, g) : heard;
      momentum.store(k, c.template next_momentum<L>(old, g));
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
  }
};

}  // namespace detail

/// Lion, and Distributed Lion where votes are exchanged: every rank keeps a momentum of its own
/// gradients, and sends the signs of beta1 m + (1 - beta1) g; what the collective makes of them is
/// the step. There is no v, so that nothing needs a warm-up or can go stale, and no residual.
///
/// State: m as M, float or bf16: 4 or 2 bytes per element. Passes: a vote reads 8 bytes per
/// element, an update reads 12 and writes 8; a dense step reads 12 and writes 8. Source:
/// Distributed Lion (arXiv 2404.00438), algorithm 1; Lion (arXiv 2302.06675), program 1.
template <Backend B, Element M = float>
class lion_rule : public rule_defaults {
  static_assert(!std::is_same_v<M, fp16>,
                "onebit: a momentum in fp16 overflows at 65504: take float or bf16");

 public:
  using backend_type = B;
  static constexpr bool own_momentum = true;

  lion_rule(lion_options options, B backend) : options_(options), backend_(std::move(backend)) {
    validate_moments("lion_options", own_moments(), options.max_grad_norm);
  }
  [[nodiscard]] B& backend() { return backend_; }
  void prepare(const layout& axis) {
    m_ = backend_.template make_buffer<M>(axis.n_words() * word_elements);
  }
  [[nodiscard]] const lion_options& options() const { return options_; }
  static constexpr bool has_moments = true;
  [[nodiscard]] moments own_moments() const { return {options_.beta1, options_.beta2}; }
  [[nodiscard]] double max_grad_norm() const { return options_.max_grad_norm; }

  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tiled<B, P, G>& at) const {
    return {at.tensors, at.now};
  }
  /// The dense step: x and m from the agreed gradient. An element that never had one stays.
  template <class View, class P, class G>
  void refresh(const View& gradient, const tiled<B, P, G>& at) {
    commit<true>(gradient, at);
  }
  /// This rank's vote.
  template <class View, class P, class G>
  [[nodiscard]] detail::vote_message<const M, P, G> message(const View&,
                                                            const tiled<B, P, G>& at) const {
    return {m_.data(), at.tensors, at.numbers, at.now};
  }
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    commit<false>(heard, at);
  }
  /// Goes on with the momentum of the rank whose place this one takes; hands nothing over.
  template <class View, class At>
  [[nodiscard]] handover<buffer_of<B, float>> resume(const View&, const At&) const {
    return {};
  }

  [[nodiscard]] const M* momentum() const { return m_.data(); }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.by_word(m_, backend_, m_.size());
  }

 protected:
  template <bool Dense, class View, class P, class G>
  void commit(const View& view, const tiled<B, P, G>& at) {
    at.commit(detail::lion_kernel<Dense, View, M, P, G>{view, at.tiles, at.tensors, at.numbers,
                                                        m_.data(), at.now});
  }

  lion_options options_;
  B backend_;
  buffer_of<B, M> m_;
};

static_assert(ResumingRule<lion_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
