// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <string>

/// 4 or 2 bits an element, and a scale for each word of 32: for networks where one bit is not the
/// optimum, and trainings that one bit slows down.
namespace onebit::inline v0_2 {

/// C(y) is the nearest of 2^Bits levels, -top to top in equal steps and none of them 0; `top` is of
/// the word of 32 elements. A word of zeros stays zeros.
///
/// Cost: 4 (Bits + 1) bytes on the wire per word, 5 bits or 3 an element: a plane of signs, Bits -
/// 1 more planes that halve what is left, and `top` as a float; plus 4 bytes per tile of 4096
/// elements. One pass. The residual is lazy, as sign's: encoding y once more tells what was sent.
///
/// `top` follows the word, since 32 neighbours differ less in size than a tile's elements do:
/// 0.95 of the largest magnitude for 4 bits; for 2 bits, where one large element would leave the
/// others no level, 1.12 of the geometric mean of the largest and of the mean. ||y - C(y)|| / ||y||
/// is then 0.09 and 0.33 of gaussian values, 0.11 and 0.42 of Laplace's.
///
/// The scale that travels per tile is the most that `top` may be, the sum of magnitudes: it cuts
/// nothing until a rule's bound (adam_options::max_step) makes it smaller. Then no element is
/// decoded to more than the bound, and its neighbours are not moved by half of a huge step.
template <unsigned Bits>
struct quantized {
  static_assert(Bits == 2 || Bits == 4, "onebit: quantized has 2 or 4 bits an element");

  /// @{
  /// See sign.
  static constexpr std::size_t word_bytes = 4 * (Bits + 1);
  static constexpr bool scaled = true;

  [[nodiscard]] static std::string name() { return std::to_string(Bits) + " bits, a scale per 32"; }
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
      L::store_bits(reinterpret_cast<std::uint32_t*>(out) + p, above);
      left = L::sub(left, L::with_sign(above, L::set(step)));
    }
    reinterpret_cast<float*>(out)[Bits] = top;  // by all lanes of a warp, the same
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float most) const {
    const float top = reinterpret_cast<const float*>(in)[Bits];
    float step = first_step(top < most ? top : most);
    auto reached = L::set(0.0F);
    for (unsigned p = 0; p < Bits; ++p, step *= 0.5F) {
      const auto above = L::load_bits(reinterpret_cast<const std::uint32_t*>(in) + p);
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
  /// Of steps that halve, and whose sum is `top`.
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

using four_bits = quantized<4>;  ///< 5 on the wire
using two_bits = quantized<2>;   ///< 3 on the wire

static_assert(WordCompressor<four_bits> && WordCompressor<two_bits>);

}  // namespace onebit::inline v0_2
