// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/core/words.hpp>
#include <span>
#include <string>
#include <vector>

/// Layout of tensors of any sizes on one flat axis, and the division of this axis into words,
/// tiles, chunks, buckets and scale segments.
namespace onebit { inline namespace v0_3 {

/// Unit of elements that share one scale. In the worker phase of an exchange a scale is of the
/// whole unit, in the server phase of the unit's part in one chunk.
enum class scale_per : std::uint8_t { vector, layer, chunk, block };

/// Elements that share a scale: all elements, a tensor, the chunk of a rank, or a block of n.
struct granularity {
  scale_per unit = scale_per::layer;  ///< unit that shares a scale
  std::size_t block_elements = 0;     ///< for scale_per::block: a multiple of 32

  /// @{
  /// Return the granularity of this unit.
  [[nodiscard]] static constexpr granularity vector() { return {scale_per::vector, 0}; }
  [[nodiscard]] static constexpr granularity layer() { return {scale_per::layer, 0}; }
  [[nodiscard]] static constexpr granularity chunk() { return {scale_per::chunk, 0}; }
  [[nodiscard]] static constexpr granularity block(std::size_t n) { return {scale_per::block, n}; }
  /// @}
  friend constexpr bool operator==(const granularity&, const granularity&) = default;
};

/// Returns the granularity as text, for names of optimizers.
[[nodiscard, gnu::cold]] inline std::string to_string(granularity g) {
  if (g.unit == scale_per::block) return "block of " + detail::number_text(g.block_elements);
  return g.unit == scale_per::vector ? "vector" : g.unit == scale_per::layer ? "layer" : "chunk";
}

/// Up to 4096 elements of one tensor in one chunk and one segment. Trivially copyable, for kernels.
/// A tile longer than a quarter of the maximum has a multiple of 128 elements: devices read such
/// tiles four words at a time, other tiles one word, and one slow tile delays the pass.
struct tile {
  std::uint64_t word = 0;    ///< first word, on the flat axis
  std::uint64_t offset = 0;  ///< first element, within the tensor
  std::uint32_t tensor = 0;
  std::uint32_t n = 0;        ///< number of elements, 1 to 4096; only the last word may be partial
  std::uint32_t chunk = 0;    ///< chunk, which one rank serves
  std::uint32_t segment = 0;  ///< index of the tile's scale among the scales of the chunk
  std::uint32_t group = 0;    ///< index of the tile's scale in the worker phase

  [[nodiscard]] ONEBIT_HD std::uint32_t n_words() const { return (n + 31) / 32; }
};

/// A range [begin, end) of tiles, segments or groups.
struct tile_range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

namespace detail {

/// Tiles of a launch that begins at tile `first`.
struct tiles_from {
  const tile* tiles;      ///< all tiles of the axis
  std::size_t first = 0;  ///< first tile of the launch
  /// Returns tile i of the launch.
  [[nodiscard]] ONEBIT_HD const tile& operator[](std::size_t i) const { return tiles[first + i]; }
};

/// Tiles of one chunk that share a scale in the server phase; in the worker phase part of `group`.
struct segment {
  tile_range tiles;
  std::uint32_t chunk = 0;
  std::uint32_t group = 0;
};

}  // namespace detail

/// Contiguous part of the axis that travels at once: one chunk for each rank.
struct bucket {
  tile_range tiles, segments, groups;
};

/// Returns the largest number of words in a tile, for a bucket of n words: 128, or fewer, down to
/// 32, to have 2048 tiles, each the work of a warp. Fewer than 32 would cost more than they gain: a
/// warp takes about 200 instructions to begin and end the encode pass of a tile, as many as for
/// five words (bench/cuda/counts.sh).
[[nodiscard]] constexpr std::size_t words_of_tiles(std::size_t n) {
  return std::clamp(std::bit_floor(n / 2048), tile_words / 4, tile_words);
}

/// The flat axis. The place of a word depends on the tensors' sizes alone, not on how the axis is
/// cut: masks and buffers of one layout fit all other layouts of the same tensors. Each tensor
/// starts at a word. Empty tensors take no place. Padding is at most 31 elements per tensor.
/// Memory: about 40 bytes per tile (0.01 to 0.04 per element).
///
/// The axis is cut into `n_buckets` buckets of equally many words, and each bucket into `n_chunks`
/// chunks. Rank j serves chunk b * n_chunks + j of each bucket b. No scale spans two buckets.
class layout {
 public:
  /// Lays out tensors of `sizes` elements for `n_chunks` ranks. `tiles`: largest number of words in
  /// a tile; 0: words_of_tiles of a bucket. Throws invalid_input if n_chunks or n_buckets is below
  /// 1, if a block is not a positive multiple of 32, or for more than 2^32 tiles.
  layout(std::span<const std::size_t> sizes, int n_chunks, granularity scales, int n_buckets = 1,
         std::size_t tiles = 0);

  [[nodiscard]] std::size_t n_words() const { return n_words_; }
  [[nodiscard]] std::size_t n_elements() const { return n_elements_; }
  /// Number of chunks per bucket.
  [[nodiscard]] int n_chunks() const { return n_chunks_; }
  [[nodiscard]] int n_buckets() const { return static_cast<int>(buckets_.size()); }
  [[nodiscard]] int n_slots() const { return n_chunks_ * n_buckets(); }
  [[nodiscard]] const bucket& bucket_at(int b) const {
    return buckets_[static_cast<std::size_t>(b)];
  }
  /// True if `known`, by tensor, is not 0 for all tensors that have elements in bucket b.
  [[nodiscard]] bool bucket_is_known(int b, const std::vector<char>& known) const {
    const tile_range part = bucket_at(b).tiles;
    for (auto i = part.begin; i < part.end; i = tensors_[tiles_[i].tensor].end) {
      if (known[tiles_[i].tensor] == 0) return false;
    }
    return true;
  }
  /// Number of words in a chunk. The last chunks may be shorter or empty.
  [[nodiscard]] std::size_t chunk_words() const { return chunk_words_; }
  /// Number of words in chunk j.
  [[nodiscard]] std::size_t words_of_chunk(int j) const {
    const std::size_t first = static_cast<std::size_t>(j) * chunk_words_;
    return first >= n_words_ ? 0 : (std::min)(chunk_words_, n_words_ - first);
  }
  [[nodiscard]] tile_range all_tiles() const {
    return {0, static_cast<std::uint32_t>(tiles_.size())};
  }
  [[nodiscard]] const std::vector<tile>& tiles() const { return tiles_; }
  /// Tiles of chunk j.
  [[nodiscard]] tile_range chunk_tiles(int j) const { return chunks_[static_cast<std::size_t>(j)]; }
  /// Segments of chunk j.
  [[nodiscard]] tile_range chunk_segments(int j) const {
    return chunk_segments_[static_cast<std::size_t>(j)];
  }
  /// Tiles of each tensor; none if the tensor is empty.
  [[nodiscard]] const std::vector<tile_range>& tensor_tiles() const { return tensors_; }
  /// Segments of all chunks, in order; in a chunk in the order of the scales in a message.
  [[nodiscard]] const std::vector<detail::segment>& segments() const { return segments_; }
  /// Worker-phase scale groups, each a contiguous range of tiles.
  [[nodiscard]] const std::vector<tile_range>& groups() const { return groups_; }
  /// Largest number of segments in a chunk: the number of scales in a slot.
  [[nodiscard]] std::size_t slot_segments() const { return slot_segments_; }

 private:
  static constexpr std::size_t most_tiles = (std::numeric_limits<std::uint32_t>::max)();
  [[noreturn]] static void refuse_tiles();
  void cut_tensor(std::uint32_t index, std::size_t n_elements, granularity scales);
  [[nodiscard]] std::size_t bucket_of(std::uint32_t chunk) const {
    return chunk / static_cast<std::size_t>(n_chunks_);
  }

  std::size_t n_words_ = 0;
  std::size_t n_elements_ = 0;
  int n_chunks_ = 1;
  std::size_t chunk_words_ = 0;
  std::size_t tile_words_ = tile_words;
  std::size_t slot_segments_ = 0;
  std::vector<tile> tiles_;
  std::vector<tile_range> chunks_;
  std::vector<tile_range> chunk_segments_;
  std::vector<bucket> buckets_;
  std::vector<tile_range> tensors_;
  std::vector<detail::segment> segments_;
  std::vector<tile_range> groups_;
};

[[gnu::cold]] inline layout::layout(std::span<const std::size_t> sizes, int n_chunks,
                                    granularity scales, int n_buckets, std::size_t tiles)
    : n_chunks_(n_chunks) {
  if (n_chunks < 1 || n_buckets < 1) {
    throw invalid_input(detail::error_text("layout: n_chunks is ", n_chunks, ", n_buckets ",
                                           n_buckets, "; both must be at least 1"));
  }
  if (scales.unit == scale_per::block &&
      (scales.block_elements == 0 || scales.block_elements % word_elements != 0)) {
    throw invalid_input(detail::error_text("layout: a scale per block of ", scales.block_elements,
                                           " elements; it must be a positive multiple of 32"));
  }
  for (const std::size_t n : sizes) {
    n_elements_ += n;
    n_words_ += words_of(n);
  }
  buckets_.resize(static_cast<std::size_t>(n_buckets));
  const std::size_t chunks = static_cast<std::size_t>(n_chunks) * buckets_.size();
  chunk_words_ = (n_words_ + chunks - 1) / chunks;
  chunks_.resize(chunks);
  chunk_segments_.resize(chunks);
  tensors_.resize(sizes.size());
  tile_words_ = tiles != 0 ? tiles : words_of_tiles(n_words_ / buckets_.size());
  if (n_words_ / tile_words_ >= most_tiles) refuse_tiles();  // before memory for them is asked for
  n_words_ = 0;                                              // cut_tensor counts the words again
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cut_tensor(static_cast<std::uint32_t>(i), sizes[i], scales);
  }
  for (const tile_range s : chunk_segments_) {
    slot_segments_ = (std::max<std::size_t>)(slot_segments_, s.end - s.begin);
  }
}

[[gnu::cold]] inline void layout::refuse_tiles() {
  throw invalid_input(detail::error_text("layout: more than 2^32 tiles; use several optimizers"));
}

[[gnu::cold]] inline void layout::cut_tensor(std::uint32_t index, std::size_t n_elements,
                                             granularity scales) {
  const auto first_tile = static_cast<std::uint32_t>(tiles_.size());
  const std::size_t first = n_words_;
  const std::size_t end = first + words_of(n_elements);
  const std::size_t block_words = scales.block_elements / word_elements;
  for (std::size_t word = first; word < end;) {
    const std::size_t in_tensor = word - first;
    const std::size_t chunk = word / chunk_words_;
    std::size_t stop = (std::min)(end, (chunk + 1) * chunk_words_);
    stop = (std::min)(stop, first + (in_tensor / tile_words_ + 1) * tile_words_);
    const bool by_block = scales.unit == scale_per::block;
    if (by_block) stop = (std::min)(stop, first + (in_tensor / block_words + 1) * block_words);
    const std::size_t left = n_elements - in_tensor * word_elements;
    const std::size_t elements = (std::min)((stop - word) * word_elements, left);
    const std::size_t by_fours = elements / (4 * word_elements) * 4;  // words
    if (by_fours > 0 && stop - word > tile_words_ / 4) stop = (std::min)(stop, word + by_fours);

    tile piece;
    piece.word = word;
    piece.offset = in_tensor * word_elements;
    piece.tensor = index;
    piece.n = static_cast<std::uint32_t>((std::min)((stop - word) * word_elements, left));
    piece.chunk = static_cast<std::uint32_t>(chunk);

    const bool first_of_all = tiles_.empty();
    const bool new_chunk = first_of_all || tiles_.back().chunk != piece.chunk;
    const bool new_bucket =
        first_of_all || bucket_of(tiles_.back().chunk) != bucket_of(piece.chunk);
    const bool new_layer = new_bucket || tiles_.back().tensor != index;
    const bool new_block = by_block && (new_layer || in_tensor % block_words == 0);
    const bool by_layer = scales.unit == scale_per::layer;
    const bool new_segment = new_chunk || new_block || (by_layer && new_layer);
    const bool new_group = scales.unit == scale_per::vector ? new_bucket
                           : by_layer                       ? new_layer
                                                            : new_segment;
    if (tiles_.size() >= most_tiles) refuse_tiles();
    const auto at = static_cast<std::uint32_t>(tiles_.size());
    if (new_group) groups_.push_back({at, at});
    piece.group = static_cast<std::uint32_t>(groups_.size() - 1);
    if (new_segment) segments_.push_back({{at, at}, piece.chunk, piece.group});
    piece.segment = new_chunk ? 0 : tiles_.back().segment + (new_segment ? 1 : 0);
    const auto segment_at = static_cast<std::uint32_t>(segments_.size() - 1);
    tile_range &own = chunks_[piece.chunk], &its_segments = chunk_segments_[piece.chunk];
    bucket& whole = buckets_[bucket_of(piece.chunk)];
    if (new_chunk) {
      own = {at, at};
      its_segments = {segment_at, segment_at};
    }
    if (new_bucket) whole = {{at, at}, {segment_at, segment_at}, {piece.group, piece.group}};
    groups_.back().end = segments_.back().tiles.end = own.end = whole.tiles.end = at + 1;
    its_segments.end = whole.segments.end = segment_at + 1;
    whole.groups.end = piece.group + 1;
    tiles_.push_back(piece);
    word = stop;
  }
  n_words_ = end;
  tensors_[index] = {first_tile, static_cast<std::uint32_t>(tiles_.size())};
}

/// Bucket size for transports that can start collectives. Of the sizes from 2^17 to 2^22 this one
/// was the fastest with 4 MPI ranks at 1 and at 2.7 Gbit/s, and as fast as smaller ones at 100
/// Mbit/s (bench/network.sh). Smaller buckets cost latency; larger ones overlap less.
inline constexpr std::size_t default_bucket_elements = std::size_t{1} << 20U;

namespace detail {

/// Returns the number of buckets of about `bucket_elements` elements; 0: one bucket for all
/// elements. Throws invalid_input for more than 65536 buckets.
[[nodiscard, gnu::cold]] inline int n_buckets(std::span<const std::size_t> sizes,
                                              std::size_t bucket_elements) {
  if (bucket_elements == 0) return 1;
  std::size_t n = 0;
  for (const std::size_t s : sizes) n += s;
  const std::size_t buckets = (n + bucket_elements - 1) / bucket_elements;
  if (buckets > 65536) {
    throw invalid_input(detail::error_text("gather_scatter: ", n, " elements in buckets of ",
                                           bucket_elements, " are ", buckets,
                                           " buckets; at most 65536"));
  }
  return buckets == 0 ? 1 : static_cast<int>(buckets);
}

}  // namespace detail

}}  // namespace onebit
