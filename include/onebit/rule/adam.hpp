// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>

/// Adam and 1-bit Adam: what is sent, and what is done with what was agreed.
namespace onebit::inline v0_1 {

/// The next local momentum as a message: base + beta1 m + (1 - beta1) g, m as last agreed. It
/// starts from the base, so that a momentum held as beta1 m in the base gives the same bits.
template <class View, class P, class G>
struct momentum_message {
  static constexpr bool narrow = ManySlotView<View> || NarrowField<View>;
  View momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  const step_scalars* now;

  template <class L>
  struct reader {
    typename View::template reader<L> momentum;
    gradients_of<L, G> gradient;
    moments_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = gradient.load(k);
      return L::fma(g, L::set(c.one_minus_beta1), L::fma(momentum(k), L::set(c.beta1), base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now),
            numbers[t.tensor].c};
  }
};

namespace detail {

/// A dense Adam step: m, v and x from the exact mean gradient; the tile's sum of v into `sums`.
template <class View, class P, class G>
struct adam_dense_kernel {
  View gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  float *m, *v, *sums;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto gradient_at = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const auto c = numbers[t.tensor].c;
    const auto correction = L::set(numbers[t.tensor].m_correction);
    const float v_correction = numbers[t.tensor].v_correction;
    auto sum = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* m_word = m + (t.word + k) * 32;
      float* v_word = v + (t.word + k) * 32;
      const auto g = gradient_at(k);
      const auto m_new = c.template next_momentum<L>(L::load(m_word), g);
      const auto v_new = c.template next_variance<L>(L::load(v_word), g);
      const auto x = params.load(k);
      L::store(m_word, m_new);
      L::store(v_word, v_new);
      add_words<L>(sum, v_new);
      const auto d = c.template denominator<L>(v_new, v_correction);
      const auto u = L::div(L::mul(m_new, correction), d);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
    L::store_scalar(sums + i, one::fold(sum));
  }
};

/// v, by its denominator, from the mean gradient after the freeze; elements that have none, and
/// `live` bits of 0, may get it now, as variance_kernel says.
template <class View>
struct frozen_variance_kernel {
  static constexpr bool rare = true;
  View gradient;
  const tile* tiles;
  live_mask live;
  float* denominators;
  const tensor_numbers* numbers;
  bool wakes = false;

  /// The next v of a word, given its live bits.
  template <class L>
  ONEBIT_HD typename L::value next(const tensor_numbers& of, std::size_t word,
                                   const typename L::value& g) const {
    const auto d = L::load(denominators + word * 32);
    const auto above = L::max(L::sub(d, L::set(of.c.eps)), L::set(0.0F));
    const auto root = live.template keep<L>(word, above);
    const auto v = L::mul(L::mul(root, root), L::set(1 / correction(of.bias.v)));
    return of.c.template next_variance<L>(v, g);
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto g = gradient.template at<L>(t, i);
    const tensor_numbers& of = numbers[t.tensor];
    const auto one = L::set(1.0F), inverse = L::set(1 / of.v_correction);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto gk = g(k), old = live.template keep<L>(word, one);
      auto v = next<L>(of, word, gk);
      const auto lives = L::add(old, v);
      if (wakes) v = L::select(L::positive(old), v, L::mul(L::mul(gk, inverse), gk));
      const auto d = of.c.template denominator<L>(v, of.v_correction);
      L::store(denominators + word * 32, L::select(L::positive(lives), d, one));
    }
  }
};

/// The bits of the elements that will have variance after it: none dies.
template <class View>
struct waking_kernel {
  static constexpr bool rare = true;
  frozen_variance_kernel<View> refresh;
  std::uint32_t* next;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = refresh.tiles[i];
    const auto g = refresh.gradient.template at<L>(t, i);
    const tensor_numbers& of = refresh.numbers[t.tensor];
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto v = refresh.template next<L>(of, word, g(k));
      const auto lives = L::add(refresh.live.template keep<L>(word, L::set(1.0F)), v);
      L::store_bits(next + word, L::positive(lives));
    }
  }
};

/// The compressed phase's update: x -= lr (m c / d + weight_decay x), c the correction of m. 12
/// bytes per element and a bit.
template <class View, class P, class G>
struct adam_update_kernel {
  View momentum;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  flat_field denominators;
  const step_scalars* now;
  float most;  ///< see adam_options::max_step

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto m = momentum.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const auto correction = L::set(numbers[t.tensor].m_correction);
    const auto d = denominators.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto x = params.load(k), divisor = d(k);
      const auto u = L::bound(L::div(L::mul(m(k), correction), divisor), most);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
  }
};

}  // namespace detail

/// Options of a step of Adam or 1-bit Adam.
struct adam_options {
  double beta1 = 0.9;    ///< of the average of gradients, m
  double beta2 = 0.999;  ///< of the average of their squares, v
  double eps = 1e-8;     ///< added to the root
  /// Divide m by 1 - beta1^t and v by 1 - beta2^t, as Adam does; after a freeze v's stays as it was
  /// at it, like v. false: the form of the 1-bit Adam paper and its authors' code.
  bool bias_correction = true;
  /// Clip gradients by their global norm, as torch's clip_grad_norm_ does before a step: exactly
  /// where the ranks average, else each rank its own (core/clipping.hpp); 0: do not.
  double max_grad_norm = 0;
  /// Where the momentum came compressed, an element moves by at most so many learning rates in a
  /// step (decay aside); 0: by whatever comes out. Adam's own steps are seldom above 1, and at most
  /// (1 - beta1) / sqrt(1 - beta2), 3.2. An element whose gradients are much smaller than those
  /// that it shares a scale with is sent that scale, back and forth, and its small v makes of it
  /// steps that are thousands of times too large.
  double max_step = 2;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const adam_options& o) {
  validate_moments("adam_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm, o.max_step);
}

/// Adam, and 1-bit Adam once v is frozen. The rule only ever computes: what travels is the
/// collectives' business.
///
/// State: m and v, 8 bytes per element in the warm-up; after the freeze one denominator: 4 bytes.
/// Source: 1-bit Adam, algorithm 1; eps outside the root, decoupled decay, as the authors' code.
template <Backend B>
class adam_rule : public moments_rule<B, adam_options> {
  using base = moments_rule<B, adam_options>;
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true, message_lasts = true;

  adam_rule(adam_options options, B backend) : base(options, std::move(backend)) {
    validate(options);
  }
  void prepare(const layout& axis) {
    base::prepare(axis);
    variance_norm_ = backend_.template make_buffer<double>(1);
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] moments_seen seen(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient};
  }

  /// The dense step: x, m and v from the agreed gradient. One pass, 28 bytes per element. After the
  /// freeze only v, 12 bytes.
  template <class View, class P, class G>
  void refresh(const View& gradient, const tiled<B, P, G>& at) {
    if (frozen_) return at.commit(frozen_variance(gradient, at));
    at.commit(detail::adam_dense_kernel<View, P, G>{gradient, at.tiles, at.tensors, at.numbers,
                                                    m_.data(), v_.data(), at.sums, at.now});
  }
  /// ||v||_1 after `refresh`. Waits for the backend.
  template <class At>
  [[nodiscard]] double variance_norm(const At& at) {
    return detail::sum_of_tiles(at, variance_norm_.data());
  }

  /// Freezes v: fills `live`, hands m over. Allocates nothing.
  template <class At>
  [[nodiscard]] handover<float_buffer> freeze(std::uint32_t* live, const At& at) {
    backend_.launch(at.n_tiles(),
                    detail::freeze_kernel{at.tiles, at.numbers, m_.data(), v_.data(), live});
    frozen_ = true;
    return {std::move(m_), nullptr, at.numbers};
  }
  /// Warms up anew, from the momentum that was agreed; what residuals hold is dropped.
  template <class View, class At>
  void thaw(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{agreed, at.tiles, at.live, m.data(),
                                                            v_.data(), at.numbers});
    m_ = std::move(m);
    frozen_ = false;
  }
  /// Hands over what was agreed, for an exchange that starts with v frozen.
  template <class View, class At>
  [[nodiscard]] handover<float_buffer> resume(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::flatten_kernel<View>{agreed, at.tiles, m.data()});
    return {std::move(m), nullptr, at.numbers};
  }
  /// Which elements will have variance after a refresh.
  template <class View, class At>
  void preview_live(const View& gradient, const At& at, std::uint32_t* live) {
    at.backend.launch(at.n_tiles(),
                      detail::waking_kernel<View>{frozen_variance(gradient, at), live});
  }
  /// What the compressed phase exchanges.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& agreed,
                                                     const tiled<B, P, G>& at) const {
    return {agreed, at.tensors, at.numbers, at.now};
  }
  /// The update from the newly agreed momentum.
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    const float most = bound_of(options_.max_step);
    at.commit(detail::adam_update_kernel<View, P, G>{
        heard, at.tiles, at.tensors, at.numbers, {v_.data()}, at.now, most});
  }

  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes(); }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    a.buffer(m_, backend_, frozen_ ? 0 : n_floats());
    a.buffer(v_, backend_, n_floats());
  }

 private:
  template <class View, class At>
  [[nodiscard]] detail::frozen_variance_kernel<View> frozen_variance(const View& gradient,
                                                                     const At& at) {
    return {gradient, at.tiles, at.live, v_.data(), at.numbers, options_.bias_correction};
  }

  buffer_of<B, double> variance_norm_;
  bool frozen_ = false;
};

static_assert(ResumingRule<adam_rule<detail::any_backend>> &&
              ThawingRule<adam_rule<detail::any_backend>> &&
              WakingRule<adam_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
