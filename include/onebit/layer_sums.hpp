// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/vocabulary.hpp>

/// Layers of which each rank holds a part: tensor parallelism.
namespace onebit::inline v0_1 {

/// What one rank's part adds to what a rule wants to know of a layer: sums of squares, over tiles
/// in double, and a largest value.
struct layer_sums {
  double first = 0, second = 0;
  float largest = 0;
  std::int32_t stage = 0;  ///< whose layers these are: see optimizer::join_shards
};

/// Where a rule writes what this rank's parts add, by place (tensor_entry::shard, from 1).
struct own_layers {
  layer_sums* sums = nullptr;
  std::int32_t stage = 0;

  [[nodiscard]] ONEBIT_HD layer_sums* at(std::uint32_t shard) const { return sums + (shard - 1); }
};

/// What all shards have said of their parts, by rank and place; who has fewer than the most left
/// the rest 0, which adds nothing. A view of the backend's memory.
struct whole_layers {
  const layer_sums* told = nullptr;  ///< null: nobody was asked, each tensor is a layer
  std::uint32_t n_ranks = 0, n = 0;
  std::int32_t stage = 0;

  /// The sums of the whole layer that a tensor, which alone has `mine`, is the `shard`-th shard of
  /// (0: it is a layer). The same bits on all shards: in double, in the order of ranks.
  [[nodiscard]] ONEBIT_HD layer_sums of(std::uint32_t shard, const layer_sums& mine) const {
    if (told == nullptr || shard == 0) return mine;
    layer_sums sum{};
    for (std::uint32_t r = 0; r < n_ranks; ++r) {
      const layer_sums part = told[r * n + (shard - 1)];
      if (part.stage != stage) continue;
      sum.first += part.first;
      sum.second += part.second;
      if (part.largest > sum.largest) sum.largest = part.largest;
    }
    return sum;
  }
};

}  // namespace onebit::inline v0_1
