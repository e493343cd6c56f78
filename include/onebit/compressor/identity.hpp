// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <string>
#include <type_traits>

namespace onebit::inline v0_2 {

/// No compression: C(y) = y in fp32, and a residual of 0, which an exchange carries as any other.
/// 128 bytes on the wire per word of 32 elements. Through gather-scatter it is the dense mean, bit
/// for bit; that mean by itself, without what an exchange carries, is dense_average.
struct identity {
  /// @{
  /// See WordCompressor.
  static constexpr std::size_t word_bytes = 128;
  static constexpr bool scaled = false;
  static constexpr bool memoryless = true;  ///< it owes nothing: see compressed_reduce_scatter

  [[nodiscard]] static std::string name() { return "identity"; }
  [[nodiscard]] constexpr granularity scale_granularity() const { return granularity::vector(); }

  /// 1, or NaN: tells `residual` that the compensated values were exchanged.
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum) + 1.0F; }

  /// 0, or NaN as soon as a value is not finite.
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::fma(y, L::set(0.0F), sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    L::store(reinterpret_cast<float*>(out), y);
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    return L::load(reinterpret_cast<const float*>(in));
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return s == 0.0F ? y : L::set(0.0F);
  }
  /// @}
};

static_assert(WordCompressor<identity>);

/// C, or a compressor that always works where C is none: that is said elsewhere, once.
template <class C>
using compressor_or_identity = std::conditional_t<Compressor<C>, C, identity>;
/// The same of a value.
template <class C>
[[nodiscard]] compressor_or_identity<C> checked_compressor(const C& codec) {
  if constexpr (Compressor<C>) {
    return codec;
  } else {
    return {};
  }
}

}  // namespace onebit::inline v0_2
