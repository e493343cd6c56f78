// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/numbers.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>

/// The passes of Adam and 1-bit Adam.
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

}  // namespace onebit::inline v0_1
