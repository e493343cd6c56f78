// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/compressor.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <string>

namespace onebit { inline namespace v0_3 {

/// Rounds to bf16 or int8; sums of decoded values are in fp32. The dense averages and the sharded
/// halves use it and carry no residual: without error feedback it suits states as well as
/// increments. (Servers of gather_scatter keep what rounding loses, as with any compressor.)
///
/// A sum of each chunk, before rounding, follows its words: of squares, so that a rank that has the
/// mean has its norm. Of values that are squares already (`roots`, `powers`) it is the sum of the
/// values: squared once more they would overflow, and all ranks would skip the step. So a codec for
/// squares must sum values.
struct rounded {
  /// @{
  /// Formats, by `word_bytes`: fp32, exact; bf16; int8: 32 elements are integers from -127 to 127
  /// times a common power of two (MXINT8 of the OCP Microscaling Formats), elements below a 127th
  /// of the largest are lost. `roots`: square roots in bf16, to 0.4% at any size.
  ///
  /// Powers of two, of nonnegative values in 5 bits: at random one of the two neighbours, so that
  /// the mean is the value, down to 2^-30 of the largest of 32. Smaller positive values become
  /// that. A value's standard deviation is at most 0.36 of it. (With 4 bits, 2^-14, elements whose
  /// gradients are below a hundredth of their neighbours' would make too short steps.)
  static constexpr std::size_t floats = 128, halves = 64, int8s = 33, powers = 24;
  [[nodiscard]] static constexpr rounded to_bf16() { return {halves}; }
  [[nodiscard]] static constexpr rounded to_int8() { return {int8s}; }
  [[nodiscard]] static constexpr rounded to_roots() { return {halves, true}; }
  [[nodiscard]] static constexpr rounded to_powers_of_two() { return {powers}; }
  /// @}

  /// @{
  /// Members of a WordCompressor: see sign.
  static constexpr bool scaled = true;
  static constexpr bool memoryless = true;  ///< senders carry no residual
  std::size_t word_bytes = floats;
  bool roots = false;  ///< with halves

  [[nodiscard]] std::string name() const {
    return roots                  ? "roots"
           : word_bytes == powers ? "powers of two"
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
    return L::fma(roots || word_bytes == powers ? L::set(1.0F) : y, y, sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y, std::uint32_t key = 0) const {
    if (word_bytes == floats) [[likely]]
      return L::store(detail::aligned_as<float>(out), y);
    if (word_bytes == powers) return encode_powers<L>(out, y, key);
    const auto sent = roots ? L::with_sign_of(y, L::sqrt(L::abs(y))) : y;
    if (word_bytes == halves) return L::store_as(detail::aligned_as<bf16>(out), sent, 32);
    const std::uint32_t e = clamped_exponent(L::fold_size(sent), 7);
    const auto scaled_y = L::mul(sent, L::set(detail::power_of_two(260 - e)));
    L::store_as(reinterpret_cast<int8*>(out), L::bound(scaled_y, 127), 32);
    out[32] = static_cast<std::byte>(e);  // all lanes of a warp store the same value
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    if (word_bytes == floats) [[likely]]
      return L::load(detail::aligned_as<const float>(in));
    if (word_bytes == powers) return decode_powers<L>(in);
    if (word_bytes == halves) {
      const auto half = L::load_as(detail::aligned_as<const bf16>(in), 32);
      return roots ? squared<L>(half) : half;
    }
    const auto unit = L::set(detail::power_of_two(static_cast<std::uint32_t>(in[32]) - 6));
    return L::mul(L::load_as(reinterpret_cast<const int8*>(in), 32), unit);
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
  /// Biased exponent of `largest`, clamped so that the units of a word and their inverses are
  /// normal.
  [[nodiscard]] ONEBIT_HD static std::uint32_t clamped_exponent(float largest,
                                                                std::uint32_t least) {
    const std::uint32_t e = detail::exponent_of(largest);
    return e < least ? least : e > 254 ? 254 : e;
  }
  static constexpr std::uint32_t n_planes = 5, most_code = 31;  ///< of powers of two

  /// A word of powers of two: five planes of 32 bits, then e, the exponent of the largest, in 4
  /// bytes. The planes are the bits of a code, the highest first: 0 for 0, c for 2^(e - 31 + c).
  template <class L>
  ONEBIT_HD static void encode_powers(std::byte* out, const typename L::value& y,
                                      std::uint32_t key) {
    const auto power = L::stochastic_power_of_two(y, key);
    const std::uint32_t e = clamped_exponent(L::fold_size(power), most_code + 1);
    // 2^code; a positive value has a code of at least 1
    const auto least = L::select(L::positive(y), L::set(2.0F), L::set(0.0F));
    auto left = (L::max)(L::mul(power, L::set(detail::power_of_two(254 + most_code - e))), least);
    auto* const planes = detail::aligned_as<std::uint32_t>(out);
    for (std::uint32_t p = 0, half = 16; p < n_planes; ++p, half /= 2) {
      const auto above = L::not_negative(L::sub(left, L::set(detail::power_of_two(127 + half))));
      L::store_bits(planes + p, above);
      left = L::select(above, L::mul(left, L::set(detail::power_of_two(127 - half))), left);
    }
    planes[n_planes] = e;  // all lanes of a warp store the same value
  }
  template <class L>
  [[nodiscard]] ONEBIT_HD static typename L::value decode_powers(const std::byte* in) {
    const auto* const planes = detail::aligned_as<const std::uint32_t>(in);
    const std::uint32_t sent = planes[n_planes];
    const std::uint32_t e = sent <= most_code ? most_code + 1 : sent > 254 ? 254 : sent;
    auto power = L::set(detail::power_of_two(e - most_code));
    std::uint32_t any = 0;
    for (std::uint32_t p = 0, half = 16; p < n_planes; ++p, half /= 2) {
      any |= planes[p];
      const auto above = L::load_bits(planes + p);
      power = L::select(above, L::mul(power, L::set(detail::power_of_two(127 + half))), power);
    }
    return L::keep(L::load_bits(&any), power);
  }
};
static_assert(detail::WordCompressor<rounded>);

}}  // namespace onebit
