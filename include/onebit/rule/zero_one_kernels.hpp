// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>

/// The passes of 0/1 Adam.
namespace onebit::inline v0_1 {

/// Adds this step's learning rate to the sums of the tensors that do not rest, or starts them anew.
template <class P, class G>
struct sum_lr_kernel {
  static constexpr bool serial = true;
  double* sums;
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;
  bool restart;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const float lr = tensors[i].rests ? 0.0F : now->lr;
    L::store_scalar(sums + i, restart ? 0.0 : sums[i] + static_cast<double>(lr));
  }
};

namespace detail {

/// base + lr c (beta1 m + (1 - beta1) g), c the correction of m: what a step adds to the sum that
/// is exchanged.
template <class P, class G>
struct zero_one_message {
  const float* momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  const step_scalars* now;

  template <class L>
  struct reader {
    const float* momentum;
    gradients_of<L, G> gradient;
    moments_constants c;
    float rate;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = gradient.load(k);
      const auto m = c.template next_momentum<L>(L::load(momentum + 32 * k), g);
      return L::fma(L::set(rate), m, base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const tensor_numbers& of = numbers[t.tensor];
    return {momentum + t.word * 32, gradients_of<L, G>(tensor, t, now), of.c,
            tensor.rests ? 0.0F : now->lr * of.m_correction};
  }
};

/// x and m from a gradient: Adam's step.
template <class Field, class P, class G>
struct zero_one_step_kernel {
  Field gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  live_mask live;
  float* m;
  const float* variance;
  const step_scalars* now;
  float most;  ///< see zero_one_options::max_step

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t);
    const auto gradient_at = gradient.template at<L>(t, i);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const tensor_numbers of = numbers[t.tensor];
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      float* const m_word = m + word * 32;
      const auto g = gradient_at(k), m_old = L::load(m_word);
      const auto m_new = live.template keep<L>(word, of.c.template next_momentum<L>(m_old, g));
      const auto d =
          of.c.template denominator<L>(L::load(variance + word * 32), of.v_correction);
      const auto u = L::bound(L::div(L::mul(m_new, L::set(of.m_correction)), d), most);
      const auto x = params.load(k);
      L::store(m_word, m_new);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
  }
};

/// x, anchor and m from the agreed sum of lr c m since the last exchange. A tensor that has rested
/// since then stays, and what was heard of it (residuals that were owed to it) is dropped.
template <class View, class P, class G>
struct zero_one_sync_kernel {
  View agreed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  float *m, *anchor;
  const float* variance;
  const double* lr_before;  ///< by tensor: summed since the last exchange, without this step's
  const step_scalars* now;
  float most;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto u_at = agreed.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const tensor_numbers of = numbers[t.tensor];
    const double sum = lr_before[t.tensor] + static_cast<double>(tensor.rests ? 0.0F : now->lr);
    if (!(sum > 0)) return;
    // the mean of corrected momenta, and m what this step's correction makes it of
    const auto inverse_sum =
        L::set(static_cast<float>(1 / (sum * static_cast<double>(of.m_correction))));
    const auto decay = L::set(static_cast<float>(sum) * tensor.weight_decay);
    const auto step = L::set(-tensor.lr_factor);
    const double farthest = static_cast<double>(most) * sum;
    const float most_moved = farthest < 3e38 ? static_cast<float>(farthest) : 3e38F;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto u = u_at(k), from = L::load(anchor + word * 32);
      const auto d =
          of.c.template denominator<L>(L::load(variance + word * 32), of.v_correction);
      L::store(m + word * 32, L::mul(u, inverse_sum));
      const auto x = L::fma(step, L::fma(decay, from, L::bound(L::div(u, d), most_moved)), from);
      L::store(anchor + word * 32, x);
      params.store(k, x);
    }
  }
};

/// Copies the parameters to the flat axis.
template <class P, class G>
struct anchor_kernel {
  static constexpr bool rare = true;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* anchor;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const parameters_of<L, P> params(tensors[t.tensor], t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(anchor + (t.word + k) * 32, params.load(k));
    }
  }
};

}  // namespace detail

}  // namespace onebit::inline v0_1
