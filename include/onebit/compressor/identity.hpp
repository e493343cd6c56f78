// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/compressor.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <string>
#include <type_traits>

namespace onebit { inline namespace v0_3 {

/// No compression: C(y) = y in fp32. The residual is 0, but an exchange carries it like any other.
/// 128 bytes on the wire per word of 32 elements. Through gather-scatter the result is the dense
/// mean, bit for bit; dense_average computes that mean without the memory of an exchange.
struct identity {
  /// @{
  /// Members of a WordCompressor: see sign.
  static constexpr std::size_t word_bytes = 128;
  static constexpr bool scaled = false;
  static constexpr bool memoryless = true;  ///< carries no residual in compressed_reduce_scatter

  [[nodiscard]] static std::string name() { return "identity"; }
  [[nodiscard]] constexpr granularity scale_granularity() const { return granularity::vector(); }

  /// Returns 1, or NaN for a bad value. Not 0, which tells `residual` that nothing was exchanged.
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum) + 1.0F; }

  /// Returns 0, or NaN if a value is not finite.
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::fma(y, L::set(0.0F), sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    L::store(detail::aligned_as<float>(out), y);
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    return L::load(detail::aligned_as<const float>(in));
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return s == 0.0F ? y : L::set(0.0F);
  }
  /// @}
};

static_assert(detail::WordCompressor<identity>);

namespace detail {

/// C if it is a Compressor, else identity: the error is reported elsewhere, once.
template <class C>
using compressor_or_identity = std::conditional_t<Compressor<C>, C, identity>;

/// Returns `codec` if it is a Compressor, else identity.
template <class C>
[[nodiscard]] detail::compressor_or_identity<C> checked_compressor(const C& codec) {
  if constexpr (Compressor<C>) {
    return codec;
  } else {
    return {};
  }
}

}  // namespace detail

}}  // namespace onebit
