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

/// The passes of an exchange over the flat axis: by tile.
namespace onebit::inline v0_1 {

/// One pass: value = produce(residual), its code into the slots, its statistic into `sums`, and a
/// worker's value (by a tile compressor, the new residual) into the carried buffer.
template <class C, class Produce, class Carry>
struct encode_kernel {
  C codec;
  Produce produce;
  Carry carry;
  live_mask live;
  const tile* tiles;
  std::size_t first_tile;
  slot_format format;
  std::byte* slots;
  std::uint32_t chunks_per_slot;  ///< 1, or for the server, that has one slot per bucket, W
  float* sums;                    ///< by tile

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(WordCompressor<C> && !NarrowField<Produce>) {
    return tiles[first_tile + i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const std::size_t index = first_tile + i;
    const tile t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto state = carry.template at<L>(t, index);
    std::byte* out =
        slots + t.chunk / chunks_per_slot * format.slot_bytes + format.payload_at(t, index);
    const std::uint32_t n_words = t.n_words();
    auto sum = one::set(0.0F), check = sum;
    if constexpr (WordCompressor<C>) {
      const C own = codec;  // which nothing that is stored can change
      state.begin();
      constexpr bool several = L::words > 1;  // then the next ones come while these are computed
      auto ahead = state.load(0);
      for (std::uint32_t k = 0; k < n_words; k += L::words) {
        const auto old = several ? ahead : state.load(k);
        if (several && k + L::words < n_words) ahead = state.load(k + L::words);
        const auto said = message(k, state.residual(k, old));
        const auto y = live.template keep<L>(t.word + k, said, check);
        state.replace(k, old, y);
        detail::encode_words<L>(own, out + k * own.word_bytes, y, sum);
      }
    } else {
      detail::tile_values<L> values(tile_room::work);
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto said = message(k, state.residual(k, state.load(k)));
        const auto y = live.template keep<L>(t.word + k, said, check);
        L::store(values.data() + 32 * k, y);
        sum = L::fma(y, L::set(0.0F), sum);  // NaN as soon as a value is not finite
      }
      detail::encode_tile<L>(codec, values, t.n, out);  // may throw: nothing is overwritten yet
      detail::decode_tile<L>(codec, out, t.n, values);
      state.begin();
      for (std::uint32_t k = 0; k < n_words; ++k) {  // the message once more, as it was
        const auto old = state.load(k);
        const auto y = live.template keep<L>(t.word + k, message(k, state.residual(k, old)));
        const auto lost = L::sub(y, L::load(values.data() + 32 * k));
        state.replace(k, old, live.template keep<L>(t.word + k, lost));
      }
    }
    L::store_scalar(sums + index, one::fold(one::add(sum, check)));
  }
};

/// The end of a step for the carried values: those that an encode pass has overwritten are put back
/// if the step was called off. One call for 32 tiles: mostly all there is to do is to forget marks,
/// for which a warp a tile would be many.
template <class Undo>
struct take_back_kernel {
  static constexpr bool rare = true;
  static constexpr std::size_t tiles_at_once = 32;
  Undo undo;
  const tile* tiles;
  carried_words carried;
  std::uint32_t* saved;
  const step_scalars* now;
  std::size_t n_tiles;

  [[nodiscard]] ONEBIT_HD std::size_t launches() const {
    return (n_tiles + tiles_at_once - 1) / tiles_at_once;
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t index) const {
    const std::size_t first = index * tiles_at_once, left = n_tiles - first;
    const std::size_t end = first + (left < tiles_at_once ? left : tiles_at_once);
    if (now->skip == 0) {
      for (std::size_t i = first + L::own_index(); i < end; i += L::n_indices()) saved[i] = 0;
      return;
    }
    for (std::size_t i = first; i < end; ++i) {
      if (saved[i] == 0) continue;
      put_back<L>(tiles[i]);
      L::store_scalar(saved + i, std::uint32_t{0});
    }
  }

 private:
  template <class L>
  ONEBIT_HD void put_back(const tile& t) const {
    const auto before = undo.template at<L>(t);
    const auto place = carried.at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) place.store(k, before.load(k));
  }
};

/// Adds to the carried values: carried = produce(residual).
template <class C, class Produce>
struct accumulate_kernel {
  residual_field<C> residual;
  Produce produce;
  live_mask live;
  const tile* tiles;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto message = produce.template at<L>(t, i);
    const auto old = residual.template at<L>(t, i);
    const auto place = residual.carried.template at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      place.store(k, live.template keep<L>(t.word + k, message(k, old.of(k, place.load(k)))));
    }
  }
};

/// The server's new residual: what it meant to say minus what was heard; `live` says of which
/// elements.
template <class Produce, class View>
struct server_residual_kernel {
  Produce produce;
  View heard;
  live_mask live;
  const tile* tiles;
  std::size_t first_tile;
  slot_format format;
  carried_words residual;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const {
    return tiles[first_tile + i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto value = heard.template at<L>(t, index);
    const auto e = residual.from<L>(format.served_word(t));
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto y = message(k, e.load(k));
      e.store(k, live.template keep<L>(t.word + k, L::sub(y, value(k))));
    }
  }
};

/// Stores a field (index -> value) into slots as the identity compressor has them, or, with
/// flat_format, on the flat axis.
template <class Field>
struct store_field_kernel {
  static constexpr bool rare = true;
  Field field;
  const tile* tiles;
  slot_format format;
  std::byte* slots;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = field.template at<L>(t, i);
    auto* out =
        reinterpret_cast<float*>(slots + t.chunk * format.slot_bytes + format.payload_at(t, i));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) L::store(out + 32 * k, value(k));
  }
};

/// A momentum that is handed over: times its tensor's factor, and what the next message takes of
/// it.
struct scale_in_place_kernel {
  static constexpr bool rare = true;
  float* flat;
  const tile* tiles;
  const float* factors;           ///< by tensor, or null
  const tensor_numbers* numbers;  ///< by tensor, or null: all of it

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const float taken = numbers == nullptr ? 1.0F : numbers[t.tensor].own_beta1;
    const auto all = L::set(taken * (factors == nullptr ? 1.0F : factors[t.tensor]));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* p = flat + (t.word + k) * 32;
      L::store(p, L::mul(L::load(p), all));
    }
  }
};

/// Counts the live elements of each tile.
struct count_live_kernel {
  live_mask live;
  const tile* tiles;
  std::uint32_t* counts;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    std::uint32_t n = 0;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      n += L::count(live.words[t.word + k]);
    }
    L::store_scalar(counts + i, n);
  }
};

}  // namespace onebit::inline v0_1
