// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "support/plan.hpp"

using namespace onebit_test;
using onebit::granularity;
using onebit::layout;
using onebit::scale_per;

namespace {

const std::vector<granularity>& all_granularities() {
  static const std::vector<granularity> all = {granularity::vector(),
                                               granularity::layer(),
                                               granularity::chunk(),
                                               granularity::block(32),
                                               granularity::block(160),
                                               granularity::block(4096),
                                               granularity::block(8192),
                                               granularity::block(5024),
                                               granularity::block(std::size_t{1} << 40U)};
  return all;
}

/// Counts what does not hold. Everything is derived here from the words of each tile, not from how
/// the layout was made.
std::size_t violations(const layout& axis, const std::vector<std::size_t>& sizes, int n_chunks,
                       granularity scales) {
  std::size_t wrong = 0;
  const auto expect = [&](bool right, const char* what) {
    if (right) return;
    ++wrong;
    MESSAGE("violated: ", what);
  };
  std::size_t n_elements = 0, n_words = 0;
  std::vector<std::size_t> start;
  for (const std::size_t n : sizes) {
    start.push_back(n_words);
    n_elements += n;
    n_words += (n + 31) / 32;
  }
  const auto chunks = static_cast<std::size_t>(n_chunks);
  const std::size_t chunk_words = (n_words + chunks - 1) / chunks;
  expect(axis.n_elements() == n_elements, "n_elements");
  expect(axis.n_words() == n_words, "n_words");
  expect(axis.n_chunks() == n_chunks, "n_chunks");
  expect(axis.chunk_words() == chunk_words, "chunk_words");

  // Each element in exactly one tile: tiles follow each other without gap or overlap.
  using key = std::array<std::size_t, 3>;  // tensor, block, chunk
  std::map<key, std::uint32_t> group_of, segment_of;
  std::map<std::uint32_t, key> key_of_group;
  std::vector<std::size_t> next(sizes.size(), 0);
  std::size_t last_word = 0;
  const auto& tiles = axis.tiles();
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const onebit::tile& t = tiles[i];
    expect(t.tensor < sizes.size() && sizes[t.tensor] > 0, "a tile of no tensor");
    expect(t.n >= 1 && t.n <= 4096, "tile size");
    expect(t.n_words() == (t.n + 31) / 32, "n_words of a tile");
    expect(t.offset == next[t.tensor], "tiles of a tensor are contiguous");
    expect(t.offset % 32 == 0, "tiles start at words");
    expect(t.word == start[t.tensor] + t.offset / 32, "word and offset fit together");
    expect(t.word >= last_word, "tiles in order");
    last_word = t.word + t.n_words();
    next[t.tensor] += t.n;
    if (t.n % 32 != 0) expect(next[t.tensor] == sizes[t.tensor], "only the last word is partial");
    expect(t.word / chunk_words == t.chunk, "a tile's chunk");
    expect((last_word - 1) / chunk_words == t.chunk, "no tile crosses a chunk");

    const bool by_block = scales.unit == scale_per::block;
    const bool by_layer = by_block || scales.unit == scale_per::layer;
    key k{by_layer ? t.tensor : 0, by_block ? t.offset / scales.block_elements : 0, t.chunk};
    if (by_block) {
      expect((next[t.tensor] - 1) / scales.block_elements == k[1], "no tile crosses a block");
    }
    const auto [s, new_segment] = segment_of.try_emplace(k, t.segment);
    expect(s->second == t.segment, "one scale per segment");
    if (scales.unit == scale_per::vector || scales.unit == scale_per::layer) k[2] = 0;
    const auto [g, new_group] = group_of.try_emplace(k, t.group);
    expect(g->second == t.group, "one scale per group");
    expect(key_of_group.try_emplace(t.group, k).first->second == k, "one group per scale");
    expect(t.group < axis.groups().size(), "group in range");
  }
  for (std::size_t k = 0; k < sizes.size(); ++k) expect(next[k] == sizes[k], "all elements");

  // chunk_tiles, segments and groups say the same in another form
  std::vector<std::size_t> seen(tiles.size(), 0);
  std::size_t at = 0;
  for (int j = 0; j < n_chunks; ++j) {
    const onebit::tile_range range = axis.chunk_tiles(j);
    if (range.begin == range.end) continue;
    expect(range.begin == at, "chunks in order");
    for (auto i = range.begin; i < range.end; ++i) {
      expect(tiles[i].chunk == static_cast<std::uint32_t>(j), "chunk_tiles");
    }
    at = range.end;
  }
  expect(at == tiles.size(), "chunk_tiles cover all");
  std::map<std::uint32_t, std::uint32_t> places;
  std::size_t most = 0;
  at = 0;
  for (const onebit::detail::segment& s : axis.segments()) {
    expect(s.tiles.begin == at && s.tiles.end > s.tiles.begin, "segments follow each other");
    at = s.tiles.end;
    const std::uint32_t place = places[s.chunk]++;
    most = std::max<std::size_t>(most, place + 1);
    for (auto i = s.tiles.begin; i < s.tiles.end; ++i) {
      expect(tiles[i].segment == place, "place of a segment");
      expect(tiles[i].chunk == s.chunk && tiles[i].group == s.group, "chunk, group of a segment");
    }
  }
  expect(at == tiles.size(), "segments cover all");
  expect(axis.slot_segments() == most, "slot_segments");
  expect(axis.segments().size() == segment_of.size(), "number of segments");
  at = 0;
  for (std::size_t g = 0; g < axis.groups().size(); ++g) {
    const onebit::tile_range range = axis.groups()[g];
    expect(range.begin == at && range.end > range.begin, "groups follow each other");
    at = range.end;
    for (auto i = range.begin; i < range.end; ++i) expect(tiles[i].group == g, "group of a tile");
  }
  expect(at == tiles.size(), "groups cover all");
  expect(axis.groups().size() == group_of.size(), "number of groups");
  return wrong;
}

}  // namespace

TEST_CASE("layout: every invariant over sizes, chunk counts and granularities") {
  std::vector<std::vector<std::size_t>> all = {{},           {0},
                                               {0, 0, 0},    {1},
                                               {7},          {31},
                                               {32},         {33},
                                               {1000},       {4096},
                                               {4097},       {100003},
                                               {0, 5, 0},    {1, 1, 1, 1, 1, 1, 1, 1, 1},
                                               {4097, 4097}, {32, 0, 31, 33},
                                               odd_sizes()};
  std::vector<std::size_t> many;
  for (std::size_t i = 0; i < 200; ++i) many.push_back(hashed(1, 0, 0, i) % 300);
  all.push_back(many);
  for (const auto& sizes : all) {
    for (const int n_chunks : {1, 2, 3, 4, 5, 8, 31}) {
      for (const granularity scales : all_granularities()) {
        const layout axis(sizes, n_chunks, scales);
        CAPTURE(sizes);
        CAPTURE(n_chunks);
        CAPTURE(onebit::to_string(scales));
        CHECK(violations(axis, sizes, n_chunks, scales) == 0);
      }
    }
  }
}

TEST_CASE("layout: more chunks than words leave the last chunks empty") {
  const std::vector<std::size_t> sizes = {40, 1};  // 3 words
  const layout axis(sizes, 8, granularity::layer());
  CHECK(axis.chunk_words() == 1);
  for (int j = 0; j < 8; ++j) {
    const auto range = axis.chunk_tiles(j);
    CHECK(range.end - range.begin == (j < 3 ? 1U : 0U));
  }
  // 9 words on 8 ranks: chunks of 2, so 5 in use, the last with 1
  const std::vector<std::size_t> nine = {9 * 32};
  const layout uneven(nine, 8, granularity::vector());
  CHECK(uneven.chunk_words() == 2);
  CHECK(uneven.segments().size() == 5);
  CHECK(uneven.tiles().back().n == 32);
}

TEST_CASE("layout: no tensors, and tensors of nothing") {
  for (const auto& sizes : {std::vector<std::size_t>{}, std::vector<std::size_t>{0, 0}}) {
    const layout axis(sizes, 3, granularity::block(64));
    CHECK(axis.n_words() == 0);
    CHECK(axis.n_elements() == 0);
    CHECK(axis.chunk_words() == 0);
    CHECK(axis.tiles().empty());
    CHECK(axis.groups().empty());
    CHECK(axis.segments().empty());
    CHECK(axis.slot_segments() == 0);
  }
}

TEST_CASE("layout: tiles of 1024 to 4096 elements, so that 2048 have work where that can be") {
  const auto largest = [](std::size_t n, int n_buckets, std::size_t tile_words) {
    const std::vector<std::size_t> sizes = {n};
    const layout axis(sizes, 2, granularity::layer(), n_buckets, tile_words);
    std::uint32_t most = 0;
    for (const onebit::tile& t : axis.tiles()) most = std::max(most, t.n);
    return most;
  };
  CHECK(largest(5000, 1, 0) == 1024);
  CHECK(largest((1 << 22) - 32, 1, 0) == 1024);
  CHECK(largest(1 << 22, 1, 0) == 2048);
  CHECK(largest((1 << 23) - 32, 1, 0) == 2048);
  CHECK(largest(1 << 23, 1, 0) == 4096);
  CHECK(largest(1 << 26, 1, 0) == 4096);
  CHECK(largest(1 << 23, 2, 0) == 2048);                 // what travels at once counts
  CHECK(largest(10000, 1, onebit::tile_words) == 4096);  // as tile compressors have them
  // signs are cut by size, a compressor of three members sees 4096
  const std::vector<std::size_t> sizes = {10000};
  const onebit::sender<onebit::sign<>, onebit::host> words({}, onebit::host(1), sizes, 1);
  const onebit::sender<onebit_test::int8_tile, onebit::host> whole({}, onebit::host(1), sizes, 1);
  CHECK(words.axis().tiles()[0].n == 1024);
  CHECK(whole.axis().tiles()[0].n == 4096);
}

TEST_CASE("layout: more than 2^31 and 2^32 elements") {
  // Sizes alone: nothing of this length is allocated but the tiles, one per 4096 elements.
  const std::size_t big = (std::size_t{1} << 31U) + 4097, small = 33;
  for (const int n_chunks : {1, 3}) {
    const std::vector<std::size_t> sizes = {small, big, big, small};
    const layout axis(sizes, n_chunks, granularity::layer());
    CHECK(axis.n_elements() == 2 * big + 2 * small);
    const std::size_t n_words = 2 * ((big + 31) / 32) + 4;
    CHECK(axis.n_words() == n_words);
    std::size_t sum = 0, wrong = 0, word = 0;
    std::vector<std::size_t> next(4, 0);
    for (const onebit::tile& t : axis.tiles()) {
      wrong += t.word == word && t.offset == next[t.tensor] ? 0U : 1U;
      wrong += t.chunk == t.word / axis.chunk_words() ? 0U : 1U;
      word += t.n_words();
      next[t.tensor] += t.n;
      sum += t.n;
    }
    CHECK(wrong == 0);
    CHECK(sum == axis.n_elements());
    CHECK(next == sizes);
    CHECK(axis.tiles().back().word == n_words - 2);
    CHECK(axis.tiles()[axis.groups()[2].begin].offset == 0);
    CHECK(axis.groups().size() == 4);
    // the bytes of a slot are beyond 32 bits too, for a compressor of 4 bytes an element
    std::vector<std::uint64_t> unused;
    const auto format = onebit::detail::make_slot_format(onebit::identity{}, axis, unused);
    CHECK(format.slot_bytes == 128 * axis.chunk_words() + sizeof(onebit::detail::slot_status));
    if (n_chunks == 1) CHECK(format.slot_bytes > std::size_t{1} << 34U);
    const std::size_t last = axis.tiles().size() - 1;
    const auto& t = axis.tiles()[last];
    CHECK(format.payload_at(t, last) ==
          128 * (n_words - 2 - static_cast<std::size_t>(t.chunk) * axis.chunk_words()));
  }
}

TEST_CASE("layout: what is out of range is refused, with the number") {
  const std::vector<std::size_t> sizes = {100};
  const auto refused = [&](int n_chunks, granularity g, const char* number) {
    try {
      const layout axis(sizes, n_chunks, g);
    } catch (const onebit::invalid_input& e) {
      return std::string(e.what()).find(number) != std::string::npos;
    }
    return false;
  };
  CHECK(refused(0, granularity::layer(), "n_chunks is 0"));
  CHECK(refused(-3, granularity::layer(), "-3"));
  CHECK(refused(2, granularity::block(0), "block of 0"));
  CHECK(refused(2, granularity::block(48), "block of 48"));
  CHECK(refused(2, granularity::block(31), "block of 31"));
  CHECK_NOTHROW(layout(sizes, 2, granularity::block(32)));
  // told before memory for 2^33 tiles is asked for
  const std::vector<std::size_t> many = {std::size_t{1} << 45U};
  try {
    const layout axis(many, 2, granularity::layer());
    FAIL("2^33 tiles are accepted");
  } catch (const onebit::invalid_input& e) {
    CHECK(std::string(e.what()).find("more than 2^32 tiles") != std::string::npos);
  }
}

TEST_CASE("layout: granularities have names") {
  CHECK(onebit::to_string(granularity::vector()) == "vector");
  CHECK(onebit::to_string(granularity::layer()) == "layer");
  CHECK(onebit::to_string(granularity::chunk()) == "chunk");
  CHECK(onebit::to_string(granularity::block(64)) == "block of 64");
}
