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

/// Rounds to bf16 or int8; sums of decoded values are in fp32. The dense averages and the sharded
/// halves use it and carry no residual: without error feedback it suits states as well as
/// increments. (Servers of gather_scatter keep what rounding loses, as with any compressor.)
///
/// The sum of squares of each chunk, before rounding, follows its words (with `roots`, the sum of
/// values). So a rank that has the mean has its norm.
struct rounded {
  /// @{
  /// Formats, by `word_bytes`: fp32, exact; bf16; int8: 32 elements are integers from -127 to 127
  /// times a common power of two (MXINT8 of the OCP Microscaling Formats), elements below a 127th
  /// of the largest are lost. `roots`: square roots, in bf16 to 0.4% at any size, or, if
  /// nonnegative, in float8 to 6% down to 2^-31 of the largest. Positive values stay positive.
  static constexpr std::size_t floats = 128, halves = 64, int8s = 33;
  [[nodiscard]] static constexpr rounded to_bf16() { return {halves}; }
  [[nodiscard]] static constexpr rounded to_int8() { return {int8s}; }
  [[nodiscard]] static constexpr rounded to_roots() { return {halves, true}; }
  [[nodiscard]] static constexpr rounded to_roots_in_8_bits() { return {int8s, true}; }
  /// @}

  /// @{
  /// Members of a WordCompressor: see sign.
  static constexpr bool scaled = true;
  static constexpr bool memoryless = true;  ///< senders carry no residual
  std::size_t word_bytes = floats;
  bool roots = false;  ///< with halves or int8s

  [[nodiscard]] std::string name() const {
    return roots                  ? word_bytes == halves ? "roots" : "roots in 8 bits"
           : word_bytes == floats ? "fp32"
           : word_bytes == halves ? "bf16"
                                  : "int8";
  }
  /// True if a word is 32 plain floats: a device moves several words at once.
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
    const std::uint32_t e = clamped_exponent(L::fold_size(sent));
    const auto scaled_y = L::mul(sent, L::set(power_of_two(260 - e)));
    if (roots) {
      L::store_as(reinterpret_cast<float8*>(out), scaled_y, 32);
    } else {
      L::store_as(reinterpret_cast<int8*>(out), L::bound(scaled_y, 127), 32);
    }
    out[32] = static_cast<std::byte>(e);  // all lanes of a warp store the same value
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
  /// x |x|, as an fma: a plain product would be contracted with a sum that takes it.
  template <class L>
  [[nodiscard]] ONEBIT_HD static typename L::value squared(const typename L::value& x) {
    return L::fma(x, L::abs(x), L::set(0.0F));
  }
  /// Biased exponent e of `largest`, which is 64 units of 2^(e - 133) or more. e is clamped so that
  /// the unit and its inverse, 2^(133 - e), are normal.
  [[nodiscard]] ONEBIT_HD static std::uint32_t clamped_exponent(float largest) {
    const std::uint32_t e = exponent_of(largest);
    return e < 7 ? 7 : e > 254 ? 254 : e;
  }
};
static_assert(WordCompressor<rounded>);

}  // namespace onebit::inline v0_2
