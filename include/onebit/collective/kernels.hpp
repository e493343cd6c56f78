// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/carry.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/step.hpp>

/// The kernels of an exchange: per-tile function objects, written once for all lanes.
namespace onebit {

/// The residual that a carried buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  flat_part flat;
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
    return {codec, flat.at(t), scales[t.group]};
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
  std::uint32_t chunks_per_slot;  ///< 1, or for the server, that has one slot per bucket, W
  float* sums;                    ///< by tile

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile& t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto state = carry.template at<L>(t);
    std::byte* out =
        slots + t.chunk / chunks_per_slot * format.slot_bytes + format.payload_at(t, index);
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

/// Calls the step off when what is produced is not finite.
template <class Produce>
struct finite_kernel {
  Produce produce;
  const tile* tiles;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = produce.template at<L>(t, i);
    const auto zero = L::set(0.0F);
    auto check = zero;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) check = L::fma(value(k, zero), zero, check);
    if (!(L::fold(check) == 0.0F)) L::raise(&now->skip);
  }
};

/// Puts the carried values back as they were before the encode pass.
template <class Undo>
struct rollback_kernel {
  Undo undo;
  const tile* tiles;
  std::size_t first_tile;
  flat_part flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[first_tile + i];
    const auto saved = undo.template at<L>(t);
    float* first = flat.at(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(first + k * 32, saved.load(k));
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
  step_scalars* now;

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
    if (!(L::abs_scalar(s) <= 3.402823466e38F)) L::raise(&now->bad);
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
  slot_format format;
  float* flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile& t = tiles[index];
    const auto message = produce.template at<L>(t, index);
    const auto value = heard.template at<L>(t, index);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* e = flat + (format.served_word(t) + k) * 32;
      const auto y = live.template keep<L>(t.word + k, message(k, L::load(e)));
      L::store(e, L::sub(y, value(k)));
    }
  }
};

/// Writes the status word of n slots, and forgets what this rank saw.
struct status_kernel {
  step_scalars* now;
  std::byte* slots;
  slot_format format;
  std::uint32_t n;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const std::uint32_t status = (now->number << 1U) | now->bad;
    for (std::uint32_t j = 0; j < n; ++j) {
      std::byte* at = slots + j * format.slot_bytes + format.status_at;
      L::store_scalar(reinterpret_cast<std::uint32_t*>(at), status);
    }
    L::store_scalar(&now->bad, std::uint32_t{0});
  }
};

/// Reads the status words of n slots: all ranks read the same, so all decide alike. The slots are
/// those of `n_ranks` ranks over and over, `slots_per_rank` at a time; the ranks' numbers rise by
/// `rank_stride`, and by 1 after `slots_per_shift` slots.
struct check_kernel {
  step_scalars* now;
  const std::byte* slots;
  slot_format format;
  std::uint32_t n, n_ranks;
  std::uint32_t slots_per_rank = 1, first_rank = 0, rank_stride = 1;
  bool tell = false;  ///< what this rank heard goes into the next status word it writes
  std::uint32_t slots_per_shift = 0xFFFFFFFFU;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    std::uint32_t skip = now->skip, odd_rank = now->odd_rank, odd_step = now->odd_step;
    const std::uint32_t number = now->number & 0x7FFFFFFFU;
    for (std::uint32_t r = 0; r < n; ++r) {
      const auto status =
          detail::load_scalar<std::uint32_t>(slots + r * format.slot_bytes + format.status_at);
      if ((status & 1U) != 0) skip = 1;
      if (status >> 1U == number) continue;
      skip = 1;
      if (odd_rank != 0) continue;
      odd_rank = first_rank + r / slots_per_rank % n_ranks * rank_stride + r / slots_per_shift + 1;
      odd_step = status >> 1U;
    }
    L::store_scalar(&now->skip, skip);
    L::store_scalar(&now->odd_rank, odd_rank);
    L::store_scalar(&now->odd_step, odd_step);
    if (tell && skip != 0) L::store_scalar(&now->bad, std::uint32_t{1});
  }
};

/// The live elements of every entry, from those of the tiles.
struct total_live_kernel {
  const std::uint32_t* counts;
  scale_entry* entries;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = entries[i].tiles;
    L::store_scalar(&entries[i].n_live, L::sum_counts(counts + r.begin, r.end - r.begin));
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
