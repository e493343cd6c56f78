// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/carry.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>

/// The kernels of an exchange: per-tile function objects, written once for all lanes.
namespace onebit {

/// The residual that a carried buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  const float* flat = nullptr;
  const float* scales = nullptr;

  template <class L>
  struct reader {
    C codec;
    const float* first;
    float scale;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      const auto y = L::load(first + 32 * k);
      if constexpr (WordCompressor<C>) {
        return codec.template residual<L>(y, scale);
      } else {
        return y;
      }
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {codec, flat + t.word * 32, scales[t.group]};
  }
};

/// One pass: value = produce(residual), its code into the slots, its statistic into `sums`, and for
/// a worker the value (or, for a tile compressor, the new residual) into the carried buffer.
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
  bool one_slot;  ///< all tiles go to the first slot (the server's own)
  float* sums;    ///< by tile

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile& t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto state = carry.template at<L>(t);
    std::byte* out =
        slots + (one_slot ? 0 : t.chunk * format.slot_bytes) + format.payload_at(t, index);
    const std::uint32_t n_words = t.n_words();
    typename L::value sum = L::set(0.0F);
    typename L::value check = L::set(0.0F);
    if constexpr (WordCompressor<C>) {
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto old = state.load(k);
        const auto y = live.template keep<L>(t.word + k, message(k, state.residual(old)), check);
        state.store(k, old, y);
        codec.template encode<L>(out + k * C::word_bytes, y);
        sum = codec.template accumulate<L>(sum, y);
      }
    } else {
      float values[tile_elements], decoded[tile_elements];
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto y =
            live.template keep<L>(t.word + k, message(k, state.residual(state.load(k))), check);
        L::store(values + 32 * k, y);
        sum = L::fma(y, L::set(0.0F), sum);  // NaN as soon as a value is not finite
      }
      detail::encode_tile(codec, values, t.n, out);
      detail::decode_tile(codec, out, t.n, decoded);
      for (std::uint32_t i2 = t.n; i2 < n_words * 32; ++i2) decoded[i2] = 0;
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto e = L::sub(L::load(values + 32 * k), L::load(decoded + 32 * k));
        state.store(k, state.load(k), live.template keep<L>(t.word + k, e));
      }
    }
    L::store_scalar(sums + index, L::fold(L::add(sum, check)));
  }
};

/// Adds to the carried values without an exchange: carried = produce(residual).
template <class C, class Produce>
struct accumulate_kernel {
  residual_field<C> residual;
  Produce produce;
  live_mask live;
  const tile* tiles;
  float* flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto message = produce.template at<L>(t, i);
    const auto old = residual.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto y = live.template keep<L>(t.word + k, message(k, old(k)));
      L::store(flat + (t.word + k) * 32, y);
    }
  }
};

/// Raises `bad` when what is produced is not finite.
template <class Produce>
struct finite_kernel {
  Produce produce;
  const tile* tiles;
  std::uint32_t* bad;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = produce.template at<L>(t, i);
    const auto zero = L::set(0.0F);
    auto check = zero;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) check = L::fma(value(k, zero), zero, check);
    if (!(L::fold(check) == 0.0F)) L::raise(bad);
  }
};

/// Puts the carried values back as they were before the encode pass.
template <class Undo>
struct rollback_kernel {
  Undo undo;
  const tile* tiles;
  float* flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto saved = undo.template at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(flat + (t.word + k) * 32, saved.load(k));
    }
  }
};

/// A scale and where it goes. `n_live` elements share it.
struct scale_entry {
  tile_range tiles;
  std::uint32_t chunk = 0;
  std::uint32_t place = 0;  ///< among the scales of its slot
  std::uint32_t group = 0;
  std::uint64_t n_live = 0;
};

/// The scale of entry i from the tiles' sums, in the fixed order; raises `bad` when not finite.
template <class C>
struct scale_kernel {
  C codec;
  const scale_entry* entries;
  const float* sums;
  float* scales;    ///< by entry, or null
  std::byte* slot;  ///< where the scales are written, or null
  std::size_t scales_at;
  std::uint32_t* bad;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const scale_entry& e = entries[i];
    const double sum = L::sum(sums + e.tiles.begin, e.tiles.end - e.tiles.begin);
    float s;
    if constexpr (WordCompressor<C>) {
      s = codec.scale(sum, e.n_live);
    } else {
      s = static_cast<float>(sum);
    }
    if (!(L::abs_scalar(s) <= 3.402823466e38F)) L::raise(bad);
    if (scales != nullptr) L::store_scalar(scales + i, s);
    if (slot != nullptr) {
      L::store_scalar(reinterpret_cast<float*>(slot + scales_at) + e.place, s);
    }
  }
};

/// Copies the group's scale into the slot of every chunk that holds a part of the group.
struct seal_kernel {
  const scale_entry* segments;
  const float* group_scales;
  std::byte* slots;
  slot_format format;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const scale_entry& e = segments[i];
    std::byte* scales = slots + e.chunk * format.slot_bytes + format.scales_at;
    L::store_scalar(reinterpret_cast<float*>(scales) + e.place, group_scales[e.group]);
  }
};

/// The server's new residual: what it meant to say minus what was heard.
template <class Produce, class View>
struct server_residual_kernel {
  Produce produce;
  View heard;
  live_mask live;
  const tile* tiles;
  std::size_t first_tile;
  float* flat;
  std::size_t first_word;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile& t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto value = heard.template at<L>(t, index);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* e = flat + (t.word - first_word + k) * 32;
      const auto y = live.template keep<L>(t.word + k, message(k, L::load(e)));
      L::store(e, L::sub(y, value(k)));
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

}  // namespace onebit
