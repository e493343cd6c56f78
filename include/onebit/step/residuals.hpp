// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/collective/encode.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <type_traits>

/// What the ranks of a job hold between two steps, as shares of sums over all ranks.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Adds weight * field to `part`, on the flat axis; index i is the i-th of `tiles`.
template <class Field>
struct add_field_kernel {
  static constexpr bool one_isa = true;
  Field field;
  tiles_from tiles;
  compensated_words part;
  float weight;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = field.template at<L>(t, tiles.first + i);
    const auto place = part.at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      place.store(k, L::fma(value(k), L::set(weight), place.load(k)));
    }
  }
};

/// Residual of a server as a field: read by the tiles of its chunk on the flat axis.
struct served_field {
  compensated_words residual;
  slot_format format;

  template <class L>
  struct reader {
    compensated_words::access<L> place;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return place.load(k); }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {residual.from<L>(format.server_word(t))};
  }
};

/// Adds to `flat` the residuals of one rank of a job with n_ranks ranks: its share of the mean of
/// all workers' residuals, and the residual of its server. Only launches.
template <class E>
[[gnu::cold]] void add_residuals(E& old, std::size_t n_ranks, std::size_t ranks_per_node,
                                 float* flat) {
  auto& x = old.exchange;
  if (!x.started()) return;
  const auto add = [&](auto& s, tile_range tiles, const auto& field, float weight) {
    using field_type = std::remove_cvref_t<decltype(field)>;
    s.backend().launch(
        tiles.end - tiles.begin,
        add_field_kernel<field_type>{field, {s.tiles(), tiles.begin}, {flat}, weight});
  };
  x.visit_residuals(
      [&](auto& s, tile_range tiles, bool every_rank) {
        const std::size_t holders = every_rank ? n_ranks : n_ranks / ranks_per_node;
        add(s, tiles, s.residual(old.mask()), 1.0F / static_cast<float>(holders));
      },
      [&](auto& s, tile_range tiles, const compensated_words& residual, const slot_format& f) {
        add(s, tiles, served_field{residual, f}, 1.0F);
      });
}
/// Adds to `flat` this rank's share of the mean of the squares that n_ranks ranks have kept.
template <class E>
[[gnu::cold]] void add_own_squares(E& old, std::size_t n_ranks, float* flat) {
  if constexpr (E::refreshes) {
    if (!old.rule.has_own_variance()) return;
    const auto squares = old.rule.own_squares();
    auto& s = old.average.sender();
    const add_field_kernel<std::remove_const_t<decltype(squares)>> add{
        squares, {s.tiles()}, {flat}, 1.0F / static_cast<float>(n_ranks)};
    s.backend().launch(s.axis().tiles().size(), add);
  }
}

}}}  // namespace onebit::detail
