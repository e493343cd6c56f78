// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/compressor.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <string>

/// 4 or 2 bits per element and a scale per word of 32 elements: for networks where one bit is not
/// the optimum, and for trainings that one bit slows down.
namespace onebit { inline namespace v0_3 {

/// C(y) is the nearest of 2^Bits levels from -top to top, in equal steps, none of them 0. Each word
/// of 32 elements has its own `top`. A word of zeros stays zeros.
///
/// Cost: 4 (Bits + 1) bytes on the wire per word, 5 or 3 bits per element: a plane of signs, Bits -
/// 1 planes of corrections that halve each time, and `top` as a float; plus 4 bytes per tile of
/// 4096 elements. One pass. The residual is lazy, as in sign: encoding y again gives what was sent.
///
/// `top` is chosen by word, since 32 neighbours differ less in size than the elements of a tile do:
/// for 4 bits 0.95 of the largest magnitude; for 2 bits 1.12 of the geometric mean of the largest
/// and the mean magnitude, since one large element would leave the others no level. ||y - C(y)|| /
/// ||y|| is then 0.09 and 0.33 for gaussian values, 0.11 and 0.42 for Laplace's.
///
/// The scale that travels per tile is an upper bound of `top`, the sum of magnitudes. It cuts
/// nothing, unless a rule's bound (direction_options::max_step) makes it smaller. Then no element
/// decodes to more than the bound, and a huge step does not move its neighbours by half its size.
template <unsigned Bits>
struct quantized {
  static_assert(Bits == 2 || Bits == 4, "onebit: quantized has 2 or 4 bits an element");

  /// @{
  /// Members of a WordCompressor: see sign.
  static constexpr std::size_t word_bytes = 4 * (Bits + 1);
  static constexpr bool scaled = true;

  [[nodiscard]] static std::string name() {
    return detail::number_text(Bits) + " bits, a scale per 32";
  }
  [[nodiscard]] constexpr granularity scale_granularity() const {
    return granularity::block(tile_elements);
  }
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum); }

  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::add(sum, L::abs(y));
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    const float top = top_of<L>(y);
    float step = first_step(top);
    auto left = y;
    for (unsigned p = 0; p < Bits; ++p, step *= 0.5F) {
      const auto above = L::not_negative(left);
      L::store_bits(detail::aligned_as<std::uint32_t>(out) + p, above);
      left = L::sub(left, L::with_sign(above, L::set(step)));
    }
    detail::aligned_as<float>(out)[Bits] = top;  // all lanes of a warp store the same value
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float most) const {
    const float top = detail::aligned_as<const float>(in)[Bits];
    float step = first_step(top < most ? top : most);
    auto reached = L::set(0.0F);
    for (unsigned p = 0; p < Bits; ++p, step *= 0.5F) {
      const auto above = L::load_bits(detail::aligned_as<const std::uint32_t>(in) + p);
      reached = L::add(reached, L::with_sign(above, L::set(step)));
    }
    return reached;
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float most) const {
    alignas(float) std::byte word[word_bytes];
    encode<L>(word, y);
    return L::sub(y, decode<L>(word, most));
  }
  /// @}

 private:
  /// First of Bits steps, each half of the one before, whose sum is `top`.
  [[nodiscard]] ONEBIT_HD static float first_step(float top) {
    constexpr float all = (1U << Bits) - 1U, first = 1U << (Bits - 1U);
    return top * (first / all);
  }
  template <class L>
  [[nodiscard]] ONEBIT_HD static float top_of(const typename L::value& y) {
    const float largest = L::fold_size(y);
    if constexpr (Bits == 4) {
      return 0.95F * largest;
    } else {
      const float mean = L::fold(L::abs(y)) / 32;
      const float typical = 1.12F * (sqrtf(largest) * sqrtf(mean));
      return typical < largest ? typical : largest;
    }
  }
};

using four_bits = quantized<4>;  ///< 5 bits per element on the wire
using two_bits = quantized<2>;   ///< 3 bits per element on the wire

static_assert(detail::WordCompressor<four_bits> && detail::WordCompressor<two_bits>);

}}  // namespace onebit
