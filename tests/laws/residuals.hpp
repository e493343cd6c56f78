// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What an optimizer's ranks have still to send.

#ifndef ONEBIT_TESTS_LAWS_OWED_HPP
#define ONEBIT_TESTS_LAWS_OWED_HPP

#include <cstdint>
#include <onebit/backend/lanes.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/step/restore.hpp>
#include <vector>

namespace onebit_test {

/// Of a tensor's elements: the mean of the workers' residuals, and the servers'.
using by_element = std::vector<std::vector<double>>;

/// Adds a field's values on some tiles, read one by one.
template <class Sender, class Field>
void add_tiles(Sender& s, onebit::tile_range tiles, const Field& field, double weight,
               by_element& sum) {
  for (auto k = tiles.begin; k < tiles.end; ++k) {
    const onebit::tile& tile = s.axis().tiles()[k];
    const auto value = field.template at<onebit::detail::portable_lanes>(tile, k);
    for (std::uint32_t i = 0; i < tile.n; ++i) {
      sum[tile.tensor][tile.offset + i] += weight * static_cast<double>(value(i / 32).lane[i % 32]);
    }
  }
}

template <class Optimizer>
void add_residuals(Optimizer& o, by_element& sum) {
  auto& x = o.exchange();
  if (!x.started()) return;
  const int ranks = o.size(), nodes = o.size() / x.ranks_per_node();
  x.visit_residuals(
      [&](auto& s, onebit::tile_range tiles, bool every_rank) {
        add_tiles(s, tiles, s.residual(o.active()), 1.0 / (every_rank ? ranks : nodes), sum);
      },
      [&](auto& s, onebit::tile_range tiles, const auto& residual,
          const onebit::detail::slot_format& f) {
        add_tiles(s, tiles, onebit::detail::served_field{residual, f}, 1.0, sum);
      });
}
}  // namespace onebit_test

#endif  // ONEBIT_TESTS_LAWS_OWED_HPP
