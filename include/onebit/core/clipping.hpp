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

/// Norms of gradients, and clipping by them.
///
/// Where the ranks average, the norm of the mean travels with it, and the mean is clipped as
/// torch.nn.utils.clip_grad_norm_ would: the factor lies with the step's numbers, and is multiplied
/// in where the mean is read. Where a rank's own gradient goes into a compressed message, or into a
/// local step, nobody knows the mean: each rank clips its own, by a norm that is larger by as much
/// as its gradient was larger than the mean in the steps that averaged. Where ranks' norms differ
/// for good, and most steps are clipped, that weighs ranks otherwise than a clip of the mean. Norms
/// of own gradients cost a pass over them, 4 bytes per element, in steps that have no average, if
/// there is a largest norm.
namespace onebit::inline v0_2 {

/// n floats that lie `stride` bytes apart.
struct strided_floats {
  const std::byte* first;
  std::size_t stride;
  std::uint32_t n;

  [[nodiscard]] ONEBIT_HD float root_of_sum() const {
    constexpr std::uint32_t at_once = 32;  // that a device loads: memory is far
    double sum = 0;
    std::uint32_t i = 0;
    for (; i + at_once <= n; i += at_once) {
      float x[at_once];
      for (std::uint32_t j = 0; j < at_once; ++j) x[j] = at(i + j);
      for (const float one : x) sum += static_cast<double>(one);
    }
    for (; i < n; ++i) sum += static_cast<double>(at(i));
    return static_cast<float>(sqrt(sum));
  }
  [[nodiscard]] ONEBIT_HD float at(std::uint32_t i) const {
    return *reinterpret_cast<const float*>(first + i * stride);
  }
};
[[nodiscard]] inline strided_floats floats_of(const float* first, std::size_t n) {
  return {reinterpret_cast<const std::byte*>(first), sizeof(float), static_cast<std::uint32_t>(n)};
}

namespace detail {

/// What a gradient with this norm is multiplied by. Source: torch.nn.utils.clip_grad_norm_.
ONEBIT_HD float clip_factor(float norm, float largest) {
  const float factor = largest / (norm + 1e-6F);
  return factor < 1 ? factor : 1.0F;
}

}  // namespace detail

/// The norms of the mean gradient and of this rank's own, and the factor that clips the mean.
struct mean_norm_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  strided_floats mean_squares, own_squares;
  float largest;  ///< norm of the mean; 0: not clipped

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const float mean = mean_squares.root_of_sum();
    L::store_scalar(&now->mean_norm, mean);
    L::store_scalar(&now->own_norm, own_squares.root_of_sum());
    if (largest > 0) L::store_scalar(&now->clip, detail::clip_factor(mean, largest));
  }
};

/// Per tile the sum of squares of a field.
template <class Field>
struct squares_kernel {
  Field field;
  const tile* tiles;
  float* sums;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tile_at(i);
    const auto value = field.template at<L>(t, i);
    auto sum = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) add_squares<L>(sum, value(k));
    L::store_scalar(sums + i, one::fold(sum));
  }
};

/// The norm of this rank's gradient from the sums of its tiles.
struct own_norm_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const float* sums;
  std::size_t n;
  bool local;  ///< nobody else will see what is not finite: the rank leaves its gradient out

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const auto norm = static_cast<float>(sqrt(L::sum(sums, n)));
    L::store_scalar(&now->own_norm, norm);
    if (local && !(norm <= 3.402823466e38F)) L::raise(&now->skip);
  }
};

/// Clips this rank's gradient, whose norm is known, by the factor that it is read with.
struct clip_own_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  float largest;  ///< norm of the mean

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const float noise = now->noise > 0 ? now->noise : 1.0F;
    const float factor = detail::clip_factor(now->own_norm, largest * noise);
    L::store_scalar(&now->inverse_loss_scale, now->inverse_loss_scale * factor);
  }
};

/// The mean gradient as rules read it.
template <class View>
struct clipped_view {
  View mean;
  const step_scalars* now;

  template <class L>
  struct reader {
    typename View::template reader<L> mean;
    float clip;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(mean(k), L::set(clip));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {mean.template at<L>(t, index), now->clip};
  }
};

}  // namespace onebit::inline v0_2
