// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <string>

namespace onebit::inline v0_2 {

/// Rounds to bf16 or int8: what is added up of it is added up in fp32. The dense averages and the
/// sharded halves send by it and carry nothing: without error feedback it suits states as well as
/// increments. (A gather_scatter's servers keep what its means lose, as of any compressor.)
///
/// Behind the words of each chunk stands the sum of their squares, before they were rounded (of
/// roots: of the values): whoever has a mean has its norm.
struct rounded {
  /// @{
  /// Values of word_bytes: fp32, which changes nothing; bf16; and int8, where 32 elements are whole
  /// numbers from -127 to 127 times a common power of two (MXINT8 of the OCP Microscaling Formats,
  /// a bit to spare), which loses elements below a 127th of the largest of the 32; and the roots of
  /// values in bf16, to 0.4% whatever their size, or of values that are not negative in float8, to
  /// 6% down to a 2^31th of the largest of the 32. What is positive stays so.
  static constexpr std::size_t floats = 128, halves = 64, int8s = 33;
  [[nodiscard]] static constexpr rounded to_bf16() { return {halves}; }
  [[nodiscard]] static constexpr rounded to_int8() { return {int8s}; }
  [[nodiscard]] static constexpr rounded to_roots() { return {halves, true}; }
  [[nodiscard]] static constexpr rounded to_roots_in_8_bits() { return {int8s, true}; }
  /// @}

  /// @{
  /// See WordCompressor.
  static constexpr bool scaled = true;
  static constexpr bool memoryless = true;  ///< what rounding loses is not owed by its sender
  std::size_t word_bytes = floats;
  bool roots = false;  ///< with halves or int8s

  [[nodiscard]] std::string name() const {
    return roots                  ? word_bytes == halves ? "roots" : "roots in 8 bits"
           : word_bytes == floats ? "fp32"
           : word_bytes == halves ? "bf16"
                                  : "int8";
  }
  /// Words are 32 floats: a device moves several at once.
  [[nodiscard]] ONEBIT_HD bool sends_floats() const { return word_bytes == floats; }
  [[nodiscard]] constexpr granularity scale_granularity() const { return granularity::chunk(); }
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum); }
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::fma(roots ? L::set(1.0F) : y, y, sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    if (word_bytes == floats) [[likely]]
      return L::store(reinterpret_cast<float*>(out), y);
    const auto sent = roots ? L::with_sign_of(y, L::sqrt(L::abs(y))) : y;
    if (word_bytes == halves) return L::store_as(reinterpret_cast<bf16*>(out), sent, 32);
    const std::uint32_t e = unit_of(L::fold_size(sent));
    const auto scaled_y = L::mul(sent, L::set(power_of_two(260 - e)));
    if (roots) {
      L::store_as(reinterpret_cast<float8*>(out), scaled_y, 32);
    } else {
      L::store_as(reinterpret_cast<int8*>(out), L::bound(scaled_y, 127), 32);
    }
    out[32] = static_cast<std::byte>(e);  // by all lanes of a warp, the same
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    if (word_bytes == floats) [[likely]]
      return L::load(reinterpret_cast<const float*>(in));
    if (word_bytes == halves) {
      const auto half = L::load_as(reinterpret_cast<const bf16*>(in), 32);
      return roots ? squared<L>(half) : half;
    }
    const auto unit = L::set(power_of_two(static_cast<std::uint32_t>(in[32]) - 6));
    if (!roots) return L::mul(L::load_as(reinterpret_cast<const int8*>(in), 32), unit);
    return squared<L>(L::mul(L::load_as(reinterpret_cast<const float8*>(in), 32), unit));
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return s == 0.0F ? y : L::set(0.0F);
  }
  /// @}

 private:
  /// x |x|. A product would be contracted with a sum of it.
  template <class L>
  [[nodiscard]] ONEBIT_HD static typename L::value squared(const typename L::value& x) {
    return L::fma(x, L::abs(x), L::set(0.0F));
  }
  /// Of the unit, 64 of which make the largest: it and its inverse, 2^(260 - e - 127), are normal.
  [[nodiscard]] ONEBIT_HD static std::uint32_t unit_of(float largest) {
    const std::uint32_t e = exponent_of(largest);
    return e < 7 ? 7 : e > 254 ? 254 : e;
  }
};
static_assert(WordCompressor<rounded>);

}  // namespace onebit::inline v0_2
