// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>
#include <optional>
#include <type_traits>
#include <vector>

/// What compression does to a run, for those who ask.
namespace onebit::inline v0_1 {

/// Of this rank, after the last exchange (of 0/1 Adam between two: with what has gathered since;
/// before the first since a freeze, or since ranks or tensors changed: of what it starts with).
struct compression_state {
  double residual_norm = 0;  ///< L2, of what it has still to send
  /// L2, of what it meant to send: the message that was encoded. None of a TileCompressor.
  std::optional<double> message_norm;
  /// The share of elements in which the ranks agreed on another sign than this rank's message has.
  /// None where what was agreed is not kept: 0/1 Adam, Lion.
  std::optional<double> sign_flips;

  /// residual_norm / message_norm: what one encode loses. 0.6 for a Gaussian's signs with one L2
  /// scale; near 1 where a scale fits only few of the elements that share it.
  [[nodiscard]] std::optional<double> compression_error() const {
    if (!message_norm || !(*message_norm > 0)) return std::nullopt;
    return residual_norm / *message_norm;
  }
};

namespace detail {

/// Per tile: squares of residuals and of what is carried, elements, and signs that differ.
template <class Residual, class Carried, class View>
struct inspect_kernel {
  static constexpr bool rare = true;
  Residual residual;
  Carried carried;
  View agreed;
  bool compares;
  live_mask live;
  const tile* tiles;
  std::size_t first_tile;
  float* sums;  ///< four by tile

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile t = tiles[index];
    const auto e_at = residual.template at<L>(t, index);
    const auto y_at = carried.template at<L>(t);
    const auto zero = L::set(0.0F), one = L::set(1.0F);
    auto e_sum = zero, y_sum = zero, n = zero, flips = zero;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto e = live.template keep<L>(word, e_at(k));
      const auto y = live.template keep<L>(word, y_at.load(k));
      e_sum = L::fma(e, e, e_sum);
      y_sum = L::fma(y, y, y_sum);
      n = L::add(n, live.template keep<L>(word, one));
      if (!compares) continue;
      const auto a = agreed.template at<L>(t, index)(k);
      const auto differs = L::select(L::not_negative(y), L::select(L::not_negative(a), zero, one),
                                     L::select(L::not_negative(a), one, zero));
      flips = L::add(flips, live.template keep<L>(word, differs));
    }
    L::store_scalar(sums + 4 * i, L::fold(e_sum));
    L::store_scalar(sums + 4 * i + 1, L::fold(y_sum));
    L::store_scalar(sums + 4 * i + 2, L::fold(n));
    L::store_scalar(sums + 4 * i + 3, L::fold(flips));
  }
};

}  // namespace detail

/// One tensor's elements of a field of an engine's exchange, copied out. Not collective; waits.
template <class E, class Field>
[[nodiscard, gnu::cold]] std::vector<float> copy_of_tensor(E& e, const Field& field,
                                                           std::size_t tensor) {
  const auto flat = e.compressed.sender().flatten(field);
  std::size_t words = 0;  // before it
  for (std::size_t i = 0; i < tensor; ++i) words += (e.tensors.sizes[i] + 31) / word_elements;
  std::vector<float> values(e.tensors.sizes[tensor]);
  e.backend().copy_out(values.data(), flat.data() + words * word_elements, values.size());
  return values;
}

/// What an engine carries and what its ranks have agreed on; none before it compresses, or where
/// its compressor carries nothing. Not collective; waits. One pass over what is carried.
template <class E>
[[nodiscard, gnu::cold]] std::optional<compression_state> inspect(E& e) {
  if constexpr (!E::carries) {
    return std::nullopt;
  } else {
    auto& s = e.compressed.sender();
    if (!e.compressed.started() || s.carried().values == nullptr) return std::nullopt;
    using codec = std::remove_cvref_t<decltype(s.codec())>;
    const tile_range own = e.compressed.carried_tiles();
    std::vector<float> sums(std::size_t{4} * (own.end - own.begin));
    auto there = to_buffer(e.backend(), sums);
    const auto agreed = e.compressed.agreed(e.mask());
    const auto residual = s.residual();
    e.backend().launch(
        own.end - own.begin,
        detail::inspect_kernel<std::remove_const_t<decltype(residual)>, decltype(s.carried()),
                               std::remove_const_t<decltype(agreed)>>{
            residual, s.carried(), agreed, E::keeps_agreed, e.mask(), s.tiles(), own.begin,
            there.data()});
    e.backend().copy_out(sums.data(), there.data(), sums.size());
    double total[4] = {};
    for (std::size_t i = 0; i < sums.size(); ++i) total[i % 4] += static_cast<double>(sums[i]);
    compression_state state;
    state.residual_norm = std::sqrt(total[0]);
    if (WordCompressor<codec>) state.message_norm = std::sqrt(total[1]);
    if (E::keeps_agreed && total[2] > 0) state.sign_flips = total[3] / total[2];
    return state;
  }
}

}  // namespace onebit::inline v0_1
