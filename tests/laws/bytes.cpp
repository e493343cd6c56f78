// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 5: the bytes that the transport counts are those of the formula, from numbers that are
// counted here element by element; and about one bit per parameter.

#include <map>
#include <set>
#include <tuple>

#include "shared.hpp"

using namespace onebit_test;
using onebit::granularity;
using onebit::scale_per;

namespace {

struct tally {
  std::size_t n_words = 0, chunk_words = 0, slot_scales = 0;
};

/// Words, words of a chunk, and the most scales that any of the chunks needs.
tally count(const std::vector<std::size_t>& sizes, std::size_t n_chunks, granularity g) {
  tally c;
  for (const std::size_t n : sizes) c.n_words += (n + 31) / 32;
  c.chunk_words = (c.n_words + n_chunks - 1) / n_chunks;
  std::map<std::size_t, std::set<std::tuple<std::size_t, std::size_t>>> scales_of_chunk;
  std::size_t word = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    for (std::size_t i = 0; i < sizes[k]; i += 32, ++word) {
      const bool by_block = g.unit == scale_per::block;
      const bool by_layer = g.unit == scale_per::layer || by_block;
      scales_of_chunk[word / c.chunk_words].insert(
          {by_layer ? k : 0, by_block ? i / g.block_elements : 0});
    }
  }
  for (const auto& [chunk, scales] : scales_of_chunk) {
    c.slot_scales = std::max(c.slot_scales, scales.size());
  }
  return c;
}

/// A step that averages: floats, the sum of the squares of a chunk that is not empty, a status.
std::size_t dense_bytes(std::size_t n_ranks, const tally& c) {
  return 2 * (n_ranks - 1) * (128 * c.chunk_words + (c.n_words > 0 ? 4 : 0) + 12);
}

template <class Collective>
std::vector<trace> run(const plan& p, const Collective& collective) {
  return on_ranks(p.ranks, [&](onebit::threads t) { return train(t, p, collective); });
}

void check_step(const onebit::report& r, onebit::phase phase, std::size_t bytes,
                std::uint32_t collectives) {
  CHECK(r.phase == phase);
  CHECK_FALSE(r.skipped);
  CHECK(r.bytes_sent == bytes);
  CHECK(r.collectives == collectives);
}

}  // namespace

TEST_CASE("law 5: bytes sent are the formula's, for every granularity, collective and world size") {
  plan p;
  p.steps = 6;
  std::vector<std::vector<std::size_t>> all_sizes = {odd_sizes(), {}, {0}, {100003, 40}};
  for (const std::size_t n : counts{1, 7, 31, 32, 33, 1000, 4097}) all_sizes.push_back({n});
  for (const auto& sizes : all_sizes) {
    p.sizes = sizes;
    for (const int w : {1, 2, 3, 4, 5, 8}) {
      p.ranks = w;
      const auto n_ranks = static_cast<std::size_t>(w);
      const onebit::phase later = w > 1 ? onebit::phase::compressed : onebit::phase::dense;
      for (const granularity g : {granularity::vector(), granularity::layer(), granularity::chunk(),
                                  granularity::block(96)}) {
        if (w > 4 && g.unit == scale_per::chunk) continue;
        CAPTURE(sizes);
        CAPTURE(w);
        CAPTURE(onebit::to_string(g));
        const tally c = count(sizes, n_ranks, g), whole = count(sizes, 1, g);
        const std::size_t dense = dense_bytes(n_ranks, c);
        const std::size_t scattered =
            2 * (n_ranks - 1) * (4 * c.chunk_words + 4 * c.slot_scales + 12);
        const std::size_t gathered =
            (n_ranks - 1) * (4 * whole.n_words + 4 * whole.slot_scales + 12);
        const std::uint32_t two = w > 1 ? 2 : 0, one = w > 1 ? 1 : 0;
        // with one rank nothing would travel, and every step is a dense one
        const onebit::sign<> codec{g};
        for (const trace& t : run(p, onebit::gather_scatter{codec})) {
          for (const auto& r : t.reports) {
            const bool warm_up = w == 1 || r.step < p.options.freeze.after;
            check_step(r, warm_up ? onebit::phase::dense : onebit::phase::compressed,
                       warm_up ? dense : scattered, two);
          }
        }
        for (const trace& t : run(p, onebit::all_gather{codec})) {
          check_step(t.reports.front(), onebit::phase::dense, dense, two);
          check_step(t.reports.back(), later, gathered, one);
        }
      }
      const tally c = count(sizes, n_ranks, granularity::vector());
      const std::size_t dense = dense_bytes(n_ranks, c);
      const std::size_t exact = 2 * (n_ranks - 1) * (128 * c.chunk_words + 12);
      p.options.warm_up_sum = onebit::dense_sum::transport;
      for (const trace& t : run(p, onebit::gather_scatter<onebit::identity>{})) {
        // the statuses travel by themselves
        check_step(t.reports.front(), onebit::phase::dense, dense + 12 * (n_ranks - 1),
                   w > 1 ? 2 : 0);
        check_step(t.reports.back(), later, w > 1 ? exact : dense, w > 1 ? 2 : 0);
      }
      p.options.warm_up_sum = onebit::dense_sum::rank_order;
    }
  }
}

TEST_CASE("law 5: the bytes of a tile compressor are those that it names") {
  plan p;
  p.sizes = {5000, 3, 0, 100};
  p.steps = 6;
  p.ranks = 1 + 1;
  // 157 + 1 + 4 words on two ranks: chunks of 81 words, 2592 elements, in tiles of at most 4096, of
  // which those of more than 1024 are multiples of 128
  const auto aligned = [](std::size_t n) { return (n + 3) / 4 * 4; };
  const ternary codec;
  const auto bytes = [&](std::initializer_list<std::size_t> tiles) {
    std::size_t sum = 0;
    for (const std::size_t n : tiles) sum += aligned(codec.tile_bytes(n));
    return sum;
  };
  const std::size_t first = bytes({2560, 32}), second = bytes({1408, 96, 5000 - 4096, 3, 100});
  for (const trace& t : run(p, onebit::gather_scatter{codec})) {
    check_step(t.reports.back(), onebit::phase::compressed, 2 * (std::max(first, second) + 12), 2);
  }
}

TEST_CASE("law 5: one bit per parameter, both ways, and a little") {
  for (const int w : {2, 4, 8}) {
    for (const granularity g :
         {granularity::vector(), granularity::layer(), granularity::block(4096)}) {
      plan p;
      p.sizes = {300000, 100003, 64, 64, 1};
      p.ranks = w;
      p.steps = 3;
      p.options.freeze.after = 2;
      const double n = 400132;
      const double budget = 2.0 * (w - 1) / w * n / 8 * 1.03;
      for (const trace& t : run(p, onebit::gather_scatter{onebit::sign<>{g}})) {
        CHECK(static_cast<double>(t.reports.back().bytes_sent) <= budget);
        CHECK(t.reports.back().collectives == 2);
      }
    }
  }
}
