// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/carried.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/tiled.hpp>
#include <type_traits>
#include <vector>

/// What ranks have still to send, for jobs that go on with other ranks or tensors.
namespace onebit::inline v0_1 {

/// The ranks of a job that was: those whose state there is, and the one whose place this rank
/// takes.
struct old_ranks {
  std::size_t n;
  std::vector<std::size_t> present;
  std::size_t source;
};

namespace detail {

/// part += weight * field, on the flat axis; index i is the i-th tile from `first_tile` on.
template <class Field, class Storage>
struct add_field_kernel {
  static constexpr bool rare = true;
  Field field;
  const tile* tiles;
  std::size_t first_tile;
  carried_words<Storage> part;
  float weight;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[first_tile + i];
    const auto value = field.template at<L>(t, first_tile + i);
    const auto place = part.template at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      place.store(k, L::fma(value(k), L::set(weight), place.load(k)));
    }
  }
};

/// A server's residual, where the chunk's tiles lie on the flat axis.
template <class Storage>
struct served_field {
  carried_words<Storage> residual;
  slot_format format;

  template <class L>
  struct reader {
    typename carried_words<Storage>::template access<L> place;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return place.load(k); }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {residual.template from<L>(format.served_word(t))};
  }
};

template <class Storage>
served_field(carried_words<Storage>, slot_format) -> served_field<Storage>;

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
    s.backend().launch(tiles.end - tiles.begin, add_field_kernel<field_type, residuals_in_float>{
                                                    field, s.tiles(), tiles.begin, {flat}, weight});
  };
  x.visit_owed(
      [&](auto& s, tile_range tiles, bool every_rank) {
        const std::size_t n = every_rank ? ranks.present.size() : holders;
        add(s, tiles, s.residual(old.mask()), 1.0F / static_cast<float>(n));
      },
      [&](auto& s, tile_range tiles, const auto& residual, const slot_format& f) {
        add(s, tiles, served_field{residual, f}, 1.0F);
      });
}
/// Adds to what this rank carries.
template <class E>
[[gnu::cold]] void carry_on(E& e, const float* owed) {
  auto& s = e.compressed.sender();
  using sender_type = std::remove_reference_t<decltype(s)>;
  if constexpr (sender_type::carries) {
    const tile_range own = e.compressed.carried_tiles();
    s.backend().launch(own.end - own.begin,
                       add_field_kernel<flat_field, typename sender_type::storage>{
                           {owed}, s.tiles(), own.begin, s.carried(), 1.0F});
  }
}

}  // namespace detail
}  // namespace onebit::inline v0_1
