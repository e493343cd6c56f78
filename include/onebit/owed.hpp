// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/tiled.hpp>
#include <type_traits>
#include <vector>

/// What ranks have still to send, for jobs that go on with other ranks or tensors.
namespace onebit {

/// The ranks of a job that was: those whose state there is, and the one whose place this rank
/// takes.
struct old_ranks {
  std::size_t n;
  std::vector<std::size_t> present;
  std::size_t source;
};

namespace detail {

/// part += weight * field, on the flat axis; index i is the i-th tile from `first_tile` on.
template <class Field>
struct add_field_kernel {
  static constexpr bool rare = true;
  Field field;
  const tile* tiles;
  std::size_t first_tile;
  flat_part part;
  float weight;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[first_tile + i];
    const auto value = field.template at<L>(t, first_tile + i);
    float* const first = part.at(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* const at = first + k * 32;
      L::store(at, L::fma(value(k), L::set(weight), L::load(at)));
    }
  }
};

/// A server's residual, where the chunk's tiles lie on the flat axis.
struct served_field {
  const float* residual;
  slot_format format;

  template <class L>
  ONEBIT_HD flat_field::reader<L> at(const tile& t, std::size_t) const {
    return {residual + format.served_word(t) * 32};
  }
};

/// part += what rank r of a job with these ranks, so many per node, has still to send of the flat
/// axis: its share of the mean of all, and what it serves. Launches.
template <class E>
[[gnu::cold]] void add_owed(E& old, std::size_t r, const old_ranks& ranks,
                            std::size_t ranks_per_node, float* flat) {
  auto& x = old.compressed;
  if (!x.started()) return;
  std::size_t holders = 0;  // of this part of the axis
  for (const std::size_t other : ranks.present) {
    holders += other % ranks_per_node == r % ranks_per_node ? 1 : 0;
  }
  const auto add = [&](auto& s, tile_range tiles, const auto& field, float weight) {
    using field_type = std::remove_cvref_t<decltype(field)>;
    s.backend().launch(
        tiles.end - tiles.begin,
        add_field_kernel<field_type>{field, s.tiles(), tiles.begin, {flat, 0}, weight});
  };
  x.visit_owed(
      [&](auto& s, tile_range tiles, bool every_rank) {
        const std::size_t n = every_rank ? ranks.present.size() : holders;
        add(s, tiles, s.residual(old.mask()), 1.0F / static_cast<float>(n));
      },
      [&](auto& s, tile_range tiles, const float* residual, const slot_format& f) {
        add(s, tiles, served_field{residual, f}, 1.0F);
      });
}
/// Adds to what this rank carries.
template <class E>
[[gnu::cold]] void carry_on(E& e, const float* owed) {
  auto& s = e.compressed.sender();
  if constexpr (std::remove_reference_t<decltype(s)>::carries) {
    const tile_range own = e.compressed.carried_tiles();
    s.backend().launch(own.end - own.begin, add_field_kernel<flat_field>{
                                                {owed}, s.tiles(), own.begin, s.carried(), 1.0F});
  }
}

}  // namespace detail
}  // namespace onebit
