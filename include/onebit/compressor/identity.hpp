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

/// No compression: C(y) = y in fp32, no residual. 128 bytes on the wire per word of 32 elements.
/// Through gather-scatter it is the dense mean, bit for bit.
///
/// With `HasResidual` it has a compensated buffer all the same, for rules that accumulate between
/// exchanges.
template <bool HasResidual>
struct basic_identity {
  /// @{
  /// See WordCompressor.
  static constexpr std::size_t word_bytes = 128;
  static constexpr bool scaled = false;
  static constexpr bool has_residual = HasResidual;

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

/// The compressor that does not compress.
using identity = basic_identity<false>;

/// The compressor as a rule needs it: rules that accumulate need a compensated buffer even with
/// `identity`. It stands for what is no Compressor, too: that was said, once.
template <bool Accumulates, class C>
using codec_for = std::conditional_t<std::is_same_v<C, identity> || !Compressor<C>,
                                     basic_identity<Accumulates>, C>;
/// The same, of a compressor that there is.
template <bool Accumulates, class C>
[[nodiscard]] codec_for<Accumulates, C> for_rule(const C& codec) {
  if constexpr (std::is_same_v<C, codec_for<Accumulates, C>>) {
    return codec;
  } else {
    return {};
  }
}

static_assert(WordCompressor<basic_identity<false>> && WordCompressor<basic_identity<true>>);

}  // namespace onebit::inline v0_2
