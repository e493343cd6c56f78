// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <span>
#include <vector>

namespace onebit::inline v0_1 {

/// A WordCompressor that is another one on some tiles: `kinds(axis, sizes)` gives each tile's kind,
/// `of(kind)` what it is there, and `tile_kinds` points at the kinds, by tile, where kernels see
/// them. Words may have other sizes (word_bytes) by kind. See compress/exact_below.hpp.
template <class C>
concept MixedCompressor = WordCompressor<C> &&
    requires(C c, const C fixed, const layout& axis, std::span<const std::size_t> sizes,
             const std::uint32_t* where) {
  { fixed.kinds(axis, sizes) } -> std::same_as<std::vector<std::uint32_t>>;
  { fixed.of(std::uint32_t{}) } -> std::same_as<C>;
  c.tile_kinds = where;
};

namespace detail {

/// The compressor on one tile.
template <class C>
[[nodiscard]] ONEBIT_HD C of_tile(const C& codec, [[maybe_unused]] std::size_t index) {
  if constexpr (MixedCompressor<C>) {
    return codec.of(codec.tile_kinds[index]);
  } else {
    return codec;
  }
}

}  // namespace detail
}  // namespace onebit::inline v0_1
