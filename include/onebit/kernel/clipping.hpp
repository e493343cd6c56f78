// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>

/// Norms of gradients, and clipping by them.
///
/// In steps that average gradients, the norm of the mean travels with the average. The mean is
/// clipped as torch.nn.utils.clip_grad_norm_ does: `now->norms.clip` multiplies it where it is
/// read. In compressed messages and local steps no rank knows the mean. Each rank clips its own
/// gradient there, to the largest norm times own_over_mean: own norm over mean norm, in the steps
/// that averaged. If the norms of ranks differ permanently, and most steps are clipped, ranks then
/// have other weights than with a clip of the mean. In steps without an average, a largest norm
/// costs a pass over the own gradients, 4 bytes per element.
namespace onebit { inline namespace v0_3 { namespace detail {

/// n floats that lie `stride` bytes apart.
struct strided_floats {
  const std::byte* first;
  std::size_t stride;
  std::uint32_t n;

  [[nodiscard]] ONEBIT_HD float root_of_sum() const {
    constexpr std::uint32_t at_once = 32;  // loads that a device has in flight, to hide latency
    double sum = 0;
    std::uint32_t i = 0;
    for (; i + at_once <= n; i += at_once) {
      float x[at_once];
      for (std::uint32_t j = 0; j < at_once; ++j) x[j] = at(i + j);
      for (const float value : x) sum += static_cast<double>(value);
    }
    for (; i < n; ++i) sum += static_cast<double>(at(i));
    return static_cast<float>(sqrt(sum));
  }
  [[nodiscard]] ONEBIT_HD float at(std::uint32_t i) const {
    return *detail::aligned_as<const float>(first + i * stride);
  }
};

[[nodiscard]] inline detail::strided_floats floats_of(const float* first, std::size_t n) {
  return {reinterpret_cast<const std::byte*>(first), sizeof(float), static_cast<std::uint32_t>(n)};
}

/// Returns the factor that clips a gradient with this norm. Source: torch.nn.utils.clip_grad_norm_.
ONEBIT_HD float clip_factor(float norm, float largest) {
  const float factor = largest / (norm + 1e-6F);
  return factor < 1 ? factor : 1.0F;
}

/// Computes norms.mean and norms.own from sums of squares, and the factor that clips the mean.
struct mean_norm_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  strided_floats mean_squares, own_squares;
  float largest;  ///< largest norm of the mean; 0: no clipping

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const float mean = mean_squares.root_of_sum();
    L::store_scalar(&now->norms.mean, mean);
    L::store_scalar(&now->norms.own, own_squares.root_of_sum());
    if (largest > 0) L::store_scalar(&now->norms.clip, detail::clip_factor(mean, largest));
  }
};

/// Writes the sums of squares of a field, by tile.
template <class Field>
struct squares_kernel {
  Field field;
  const tile* tiles;
  float* sums;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const tile t = tile_at(i);
    const auto value = field.template at<L>(t, i);
    auto sum = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) add_squares<L>(sum, value(k));
    L::store_scalar(sums + i, word_lanes::fold(sum));
  }
};

/// Computes norms.own from the sums of squares by tile.
struct own_norm_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const float* sums;
  std::size_t n;
  bool local;  ///< local step: a non-finite norm sets `skip`, since no message carries it

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const auto norm = static_cast<float>(sqrt(L::sum(sums, n)));
    L::store_scalar(&now->norms.own, norm);
    if (local && !(norm <= largest_float)) L::raise(&now->verdict.skip);
  }
};

/// Clips this rank's gradient, given norms.own: multiplies inverse_loss_scale by the clip factor.
struct clip_own_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  float largest;  ///< largest norm of the mean

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const float ratio = now->norms.own_over_mean > 0 ? now->norms.own_over_mean : 1.0F;
    const float factor = detail::clip_factor(now->norms.own, largest * ratio);
    L::store_scalar(&now->given.inverse_loss_scale, now->given.inverse_loss_scale * factor);
  }
};

/// Factor of the mean gradient.
struct clip_of_step {
  const step_scalars* now;
  ONEBIT_HD float operator()(const tile&) const { return now->norms.clip; }
};
/// The mean gradient as rules read it: a field, multiplied by `now->norms.clip`.
template <class View>
using clipped_view = scaled_field<View, clip_of_step>;

}  // namespace detail

}}  // namespace onebit
