// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/concepts/compressor.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <string>

/// One sign per element and one scale for many elements: the compressor of all three papers.
namespace onebit { inline namespace v0_3 {

/// s = ||y||_2 / sqrt(d), as in the authors' implementation: s sign(y) has the norm of y. Squares
/// are summed in float: values above 1.8e19 overflow, and the step is skipped.
struct l2_scale {
  /// @{
  /// Members that sign needs of a scale: its name; the factor f with <f s sign(y), y> = ||y||^2 for
  /// many normal values; `accumulate`, which adds a word to the sum; `scale` of d values.
  static constexpr const char* name = "l2";
  static constexpr float normal_factor = 1.2533141F;  // sqrt(pi / 2)
  template <class L>
  static ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                                const typename L::value& y) {
    return L::fma(y, y, sum);
  }
  static ONEBIT_HD float scale(double sum, std::uint64_t d) {
    return d == 0 ? 0.0F : static_cast<float>(sqrt(sum / static_cast<double>(d)));
  }
  /// @}
};

/// s = ||y||_1 / d, which minimises ||y - s sign(y)||_2.
struct l1_scale {
  /// @{
  /// Members as in l2_scale.
  static constexpr const char* name = "l1";
  static constexpr float normal_factor = 1.5707963F;  // pi / 2
  template <class L>
  static ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                                const typename L::value& y) {
    return L::add(sum, L::abs(y));
  }
  static ONEBIT_HD float scale(double sum, std::uint64_t d) {
    return d == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(d));
  }
  /// @}
};

/// C(y) = s sign(y), sign(+0) = sign(-0) = +1. s is `factor` times the scale of `Scale`.
///
/// Cost: 4 bytes on the wire per word of 32 elements, plus 4 bytes per scale; one pass. The
/// residual is lazy: the compensated buffer holds y, and e = y - s sign(y) is rebuilt from y and
/// the scalar s when it is next needed, bit-equal to an eager residual. Source: 1-bit Adam (arXiv
/// 2102.02888), section 4.
///
/// Elements that share a scale should be of similar size. The momenta of a tensor may differ a
/// hundredfold (queries and values in one matrix); directions, m / (sqrt(v) + eps), mostly do not.
/// By default 4096 elements share a scale: 4 bytes on top of 512.
/// granularity::layer(), as in DeepSpeed's fp32 mode, gives one scale per tensor.
///
/// The part of an element above s stays in its residual and arrives late. With l2_scale and a
/// factor of 1, as in the papers' code, a third of normal values are above s; with the default
/// factor a fifth, at the price of noise. The default is DRIVE's unbiased scale, ||y||^2 / ||y||_1
/// (arXiv 2105.08339), for normal values. Only a factor of 1 sends values of equal size exactly.
template <class Scale = l2_scale>
struct sign {
  /// Bytes of one word in a message.
  static constexpr std::size_t word_bytes = 4;
  /// A message carries one float per scale segment behind its words.
  static constexpr bool scaled = true;
  /// `decode` is L::with_sign(L::load_bits(in), L::set(s)): lanes that can sum signs may replace
  /// it.
  static constexpr bool one_sign = true;

  granularity scales = granularity::block(tile_elements);  ///< how many elements share a scale
  float factor = Scale::normal_factor;                     ///< multiplies the scale; above 0

  /// Name that ranks and checkpoints compare.
  [[nodiscard]] std::string name() const {
    const std::string times = factor == 1 ? "" : detail::join({" x ", factor});
    return std::string("sign ") + Scale::name + times + " per " + to_string(scales);
  }
  /// Returns `scales`. Throws invalid_input if the factor is not positive and finite.
  [[nodiscard]] constexpr granularity scale_granularity() const {
    if (!(factor > 0 && factor <= (std::numeric_limits<float>::max)())) {
      throw invalid_input(
          detail::error_text("sign: factor is ", factor, ", must be above 0 and finite"));
    }
    return scales;
  }

  /// Scale of d values, from the sum of all `accumulate` statistics in the fixed order.
  ONEBIT_HD float scale(double sum, std::uint64_t d) const { return factor * Scale::scale(sum, d); }

  /// Adds a word of values to the statistic. The result must be non-finite if a value is.
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return Scale::template accumulate<L>(sum, y);
  }

  /// Encodes one word of values; needs no scale.
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    L::store_bits(detail::aligned_as<std::uint32_t>(out), L::not_negative(y));
  }

  /// Decodes one word.
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float s) const {
    const auto bits = L::load_bits(detail::aligned_as<const std::uint32_t>(in));
    return L::with_sign(bits, L::set(s));
  }

  /// Residual y - C(y) of the compensated y; y itself for a scale of 0: nothing was sent with it.
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return L::sub(y, L::with_sign_of(y, L::set(s)));
  }
};

static_assert(detail::WordCompressor<sign<l2_scale>> && detail::WordCompressor<sign<l1_scale>>);

}}  // namespace onebit
