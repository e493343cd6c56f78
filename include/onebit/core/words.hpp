// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>

/// The vocabulary of the library.
///
/// The flat axis holds all tensors, one after the other. It is cut twice: by what kernels work on,
/// and by who serves what. Two tensors, W = 2 ranks, 2 buckets:
///
///     tensors   |---------- tensor 0 ----------|pad|-------- tensor 1 --------|pad|
///     words     |w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|w|
///     tiles     |-- tile --|-- tile --|- tile -|-- tile --|-- tile --|- tile -|
///     chunks    |----- rank 0 -----|----- rank 1 -----|-- rank 0 --|-- rank 1 --|
///     buckets   |-------------- bucket 0 -------------|-------- bucket 1 -------|
///
/// axis     each tensor starts at a multiple of 32 elements; padding fills the gap before
/// word     32 elements of the axis; their signs are one uint32_t, bit i for element i
/// tile     unit of work and of partial sums: up to 4096 elements of one tensor in one chunk, at
///          least 1024 unless the tensor, chunk or scale block ends; see words_of_tiles
/// chunk    contiguous words that one rank serves (averages) in gather-scatter
/// bucket   chunks that travel together; in a hierarchy, the share of one rank of each node
/// segment  tiles of a chunk that share a scale; group: tiles with one scale in a rank's message
/// slot     bytes that one rank sends to another in one collective: a chunk of a message
///
/// What a step reads and writes on it:
///
/// field    function object: `at<L>(tile, index)` returns a reader, word of the tile -> 32 values
/// message  a field that starts from a base value: its reader takes (word, base)
/// refresh  a step, compressed or local, that also updates v from averaged squares
/// now      step_scalars of the step in progress; `now->verdict.skip` calls it off
/// compensated  values that a worker encoded, residual included; give the next residual
/// active       elements that have variance; the others send and receive 0, and a worker carries
///              their values until they are active
/// previous     mean message of the last exchange that was kept
/// latest       mean message of the exchange in this step
///
/// freeze       the end of the dense steps; v itself freezes only in the papers' forms
///
/// Worker, server, residual, scale, momentum and variance: as in the papers.
namespace onebit { inline namespace v0_3 {

inline constexpr std::size_t word_elements = 32;  ///< elements in a word
/// Returns the number of words that n elements take.
[[nodiscard]] ONEBIT_HD constexpr std::size_t words_of(std::size_t n) {
  return (n + word_elements - 1) / word_elements;
}
inline constexpr std::size_t tile_elements = 4096;  ///< largest number of elements in a tile
inline constexpr std::size_t tile_words = tile_elements / word_elements;  ///< in words

namespace detail {

/// Number of tiles that a kernel call may hold as floats in memory shared by its lanes (48 KiB).
inline constexpr std::uint32_t tile_buffers = 3;

}  // namespace detail

}}  // namespace onebit
