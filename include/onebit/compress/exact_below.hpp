// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/compress/residual_in.hpp>
#include <onebit/compress/sign.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Small tensors in full, large ones compressed, in the same messages.
namespace onebit::inline v0_1 {

/// C on tensors of `elements` elements and more; smaller ones (norms, biases) travel as floats:
/// their mean is exact in every step, and they owe nothing. A model has many of them and they hold
/// next to nothing of it, but one scale fits them badly.
///
/// Cost: 128 bytes on the wire for 32 elements of the small tensors, beside the large ones' bits;
/// up to W times as much where small ones lie side by side, since messages to all ranks are as long
/// as the longest. No collective more; 4 bytes per tile. Scales must be by layer or by block. Given
/// to a collective: `gather_scatter{exact_below{1024}}`.
template <class C = sign<>>
struct exact_below {
  static_assert(WordCompressor<C> && C::scaled && C::carries,
                "onebit: exact_below needs a WordCompressor with scales and residuals, as sign");
  static_assert(!StoringCompressor<C>,
                "onebit: residuals of exact_below<C> are stored as the whole says: write "
                "residual_in<int8, exact_below<C>>");
  static constexpr bool scaled = true;   ///< as sign
  static constexpr bool carries = true;  ///< as sign

  std::size_t elements = 1024;                ///< of the smallest tensor that is compressed
  C codec{};                                  ///< that one's compressor
  std::size_t word_bytes = C::word_bytes;     ///< of the tile that it is for
  bool exact = false;                         ///< that is a small tensor's
  const std::uint32_t* tile_kinds = nullptr;  ///< by tile: 1 where it is

  /// As exact_below(1024). Not explicit: it is also a base, of residual_in.
  exact_below() : exact_below(std::size_t{1024}) {}
  /// Throws invalid_input where small and large tensors would share scales.
  explicit exact_below(std::size_t n, C large = {}) : elements(n), codec(std::move(large)) {
    const scale_per unit = codec.scale_granularity().unit;
    if (unit == scale_per::layer || unit == scale_per::block) return;
    throw invalid_input(detail::message("exact_below: a scale per ",
                                        to_string(codec.scale_granularity()),
                                        " is of large and small tensors; take layers or blocks"));
  }

  /// What ranks and checkpoints compare.
  [[nodiscard]] std::string name() const {
    return codec.name() + ", exact below " + std::to_string(elements);
  }
  /// The large ones'.
  [[nodiscard]] granularity scale_granularity() const { return codec.scale_granularity(); }

  /// See MixedCompressor.
  [[nodiscard]] std::vector<std::uint32_t> kinds(const layout& axis,
                                                 std::span<const std::size_t> sizes) const {
    std::vector<std::uint32_t> result;
    for (const tile& t : axis.tiles()) result.push_back(sizes[t.tensor] < elements ? 1 : 0);
    return result;
  }
  /// See MixedCompressor.
  [[nodiscard]] ONEBIT_HD exact_below of(std::uint32_t kind) const {
    exact_below there = *this;
    there.exact = kind != 0;
    there.word_bytes = kind != 0 ? word_elements * sizeof(float) : std::size_t{C::word_bytes};
    return there;
  }

  /// Of small tensors it only says whether anything was sent: see residual.
  ONEBIT_HD float scale(double sum, std::uint64_t d) const {
    const float s = codec.scale(sum, d);
    return s == 0 && sum > 0 ? 1.17549435e-38F : s;
  }
  /// As WordCompressor says, here and below.
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    if (exact) return L::add(sum, L::abs(y));
    return codec.template accumulate<L>(sum, y);
  }
  /// 4 bytes, or 128.
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    if (exact) return L::store(reinterpret_cast<float*>(out), y);
    codec.template encode<L>(out, y);
  }
  /// What was encoded.
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float s) const {
    if (exact) return L::load(reinterpret_cast<const float*>(in));
    return codec.template decode<L>(in, s);
  }
  /// With a scale of 0 nothing was sent of what is carried.
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    if (exact) return s == 0 ? y : L::set(0.0F);
    return codec.template residual<L>(y, s);
  }
};

static_assert(WordCompressor<exact_below<>>);

}  // namespace onebit::inline v0_1
