// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/rule/lion.hpp>
#include <onebit/rule/zero_one.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <utility>

/// Lion's local steps, and what their sum becomes at an exchange.
namespace onebit::inline v0_1 {

namespace detail {

/// base + lr times this rank's vote: what a step adds to the sum that is exchanged.
template <class M, class P, class G>
struct vote_sum_message {
  vote_message<M, P, G> vote;

  template <class L>
  struct reader {
    typename vote_message<M, P, G>::template reader<L> vote;
    float lr;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::fma(L::set(lr), vote(k, L::set(0.0F)), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {vote.template at<L>(t, index), vote.tensors[t.tensor].rests ? 0.0F : vote.now->lr};
  }
};

/// x and anchor from the agreed sum of lr votes since the last exchange.
template <class View, class P, class G>
struct vote_sync_kernel {
  View agreed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* anchor;
  const double* lr_before;  ///< by tensor: summed since the last exchange, without this step's
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto u_at = agreed.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const double sum = lr_before[t.tensor] + static_cast<double>(tensor.rests ? 0.0F : now->lr);
    if (!(sum > 0)) return;
    const auto decay = L::set(static_cast<float>(sum) * tensor.weight_decay);
    const auto step = L::set(-tensor.lr_factor);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* const word = anchor + (t.word + k) * 32;
      const auto from = L::load(word);
      const auto x = L::fma(step, L::fma(decay, from, u_at(k)), from);
      L::store(word, x);
      params.store(k, x);
    }
  }
};

/// m takes this rank's own gradient in, and nothing else happens.
template <class M, class P, class G>
struct lion_momentum_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  M* m;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const gradients_of<L, G> gradient(tensors[t.tensor], t, now);
    const momentum_of<L, M> momentum(m, t);
    const lion_constants c{numbers[t.tensor].c};
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      momentum.store(k, c.template next_momentum<L>(momentum.load(k), gradient.load(k)));
    }
  }
};

}  // namespace detail

/// Lion over 0/1 Adam's intervals: between exchanges each rank takes Lion steps of its own, and the
/// carried buffer gathers u = residual + sum of lr votes. An exchange agrees on u; then
/// x = anchor - u on all ranks, the same bits. Decay acts on the anchor with the summed rate. What
/// was agreed tells nothing of m, which stays each rank's own, as in lion_rule.
///
/// State: m and anchor, 8 bytes per element, 6 with m in bf16 (the accumulator is the
/// collective's). Source: ours, of 0/1 Adam (arXiv 2202.06009), algorithm 1, and of Distributed
/// Lion (arXiv 2404.00438).
template <Backend B, Element M = float>
class zero_one_lion_rule : public lion_rule<B, M> {
  using base = lion_rule<B, M>;

 public:
  static constexpr bool accumulates = true;
  static constexpr bool local_steps = true;

  using base::backend, base::base;
  void prepare(const layout& axis) {
    base::prepare(axis);
    anchor_ = backend().template make_buffer<float>(axis.n_words() * word_elements);
    lr_sum_ = backend().template make_buffer<double>(axis.tensor_tiles().size());
  }

  /// Makes an exchange a local step while the learning rates sum to 0, since nothing has moved.
  template <class At>
  void open(step_plan& plan, float lr, std::uint64_t, const At&) {
    if (!(moved_ || lr > 0)) plan.exchange = false;
    in_step_ = true;
  }
  /// The first step, which takes the anchor, is taken again when it was skipped.
  [[nodiscard]] bool must_know() const { return !started_; }

  /// There is no v.
  template <class View, class At>
  void refresh(const View&, const At&) {}
  /// The whole step, where nothing travels: Lion's, from the mean gradient.
  template <class View, class At>
  void dense_step(const View& gradient, const At& at) {
    base::refresh(gradient, at);
  }
  /// What a step adds to the sum that is exchanged.
  template <class View, class P, class G>
  [[nodiscard]] detail::vote_sum_message<const M, P, G> message(const View& agreed,
                                                                const tiled<B, P, G>& at) const {
    return {base::message(agreed, at)};
  }
  /// x and m from the local gradient. The learning rate counts, and the anchor is taken, also on a
  /// rank that leaves its gradient out in a step of which no other rank hears.
  template <class P, class G>
  void local_step(const step_plan& plan, const tiled<B, P, G>& at) {
    const sum_lr_kernel<P, G> add{lr_sum_.data(), at.tensors, at.now, false};
    if (plan.local()) {
      if (!started_) at.backend.launch(at.n_tiles(), anchor(at));
      at.backend.launch(lr_sum_.size(), add);
    } else {
      take_first_anchor(at);
      at.commit(lr_sum_.size(), add);
    }
    this->template commit<true>(own_gradient<P, G>{at.tensors, at.now}, at);
  }
  /// Outside of a step, where an exchange that was due is made up for, nobody has a gradient.
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    take_first_anchor(at);
    at.commit(detail::vote_sync_kernel<View, P, G>{heard, at.tiles, at.tensors, anchor_.data(),
                                                   lr_sum_.data(), at.now});
    at.commit(lr_sum_.size(), sum_lr_kernel<P, G>{lr_sum_.data(), at.tensors, at.now, true});
    if (!in_step_) return;
    at.commit(detail::lion_momentum_kernel<M, P, G>{at.tiles, at.tensors, at.numbers,
                                                    this->m_.data(), at.now});
  }
  /// After steps in which nothing travelled: the ranks start from the parameters that there are.
  template <class View, class P, class G>
  void resume(const View&, const tiled<B, P, G>& at) {
    at.backend.launch(at.n_tiles(), anchor(at));
    at.backend.launch(lr_sum_.size(),
                      sum_lr_kernel<P, G>{lr_sum_.data(), at.tensors, at.now, true});
    moved_ = false;
  }
  void done(const step_plan& plan, float lr) {
    started_ = true;
    moved_ = !plan.exchange && (moved_ || lr > 0);
  }

  [[nodiscard]] bool moved() const { return moved_; }  // in local steps since the last exchange
  [[nodiscard]] std::size_t state_bytes() const {
    return base::state_bytes() + anchor_.bytes() + lr_sum_.bytes();
  }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(started_);
    a.scalar(moved_);
    a.by_tensor(lr_sum_, backend());
    base::archive(a);
    a.by_word(anchor_, backend(), anchor_.size());
  }

 private:
  template <class P, class G>
  [[nodiscard]] detail::anchor_kernel<P, G> anchor(const tiled<B, P, G>& at) {
    return {at.tiles, at.tensors, anchor_.data()};
  }
  /// The parameters from which the ranks start.
  template <class At>
  void take_first_anchor(const At& at) {
    if (!started_) at.commit(anchor(at));
  }

  buffer_of<B, float> anchor_;
  buffer_of<B, double> lr_sum_;  ///< by tensor: of the steps since the last exchange
  bool moved_ = false;           ///< that sum is not 0
  bool started_ = false;
  bool in_step_ = false;  ///< of a trainer's, which has gradients
};

static_assert(ResumingRule<zero_one_lion_rule<detail::any_backend>> &&
              LocalRule<zero_one_lion_rule<detail::any_backend>> &&
              !WakingRule<zero_one_lion_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
