// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/tiled.hpp>

/// The passes of an exchange over the flat axis, and what an encode pass carries: by tile.
namespace onebit {

// -- what is carried -----------------------------------------------------------------------------

/// Carries nothing: identity.
struct no_carry {
  template <class L>
  struct access {
    ONEBIT_HD typename L::value load(std::uint32_t) const { return L::set(0.0F); }
    ONEBIT_HD typename L::value residual(std::uint32_t, const typename L::value& old) const {
      return old;
    }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void store(std::uint32_t, const typename L::value&, const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile&, std::size_t) const {
    return {};
  }
};

/// A residual that is only read while the step may still be called off (the server's).
struct read_carry {
  const float* flat = nullptr;
  slot_format format;

  template <class L>
  struct access {
    const float* first;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return L::load(first + 32 * k); }
    ONEBIT_HD typename L::value residual(std::uint32_t, const typename L::value& old) const {
      return old;
    }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void store(std::uint32_t, const typename L::value&, const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t) const {
    return {flat + format.served_word(t) * 32};
  }
};

/// The worker's carried values, overwritten in the encode pass, the old ones saved in `undo` (but
/// for undo_by_repeating). Tiles that were reached are marked: a pass may end early.
template <class C, class Undo>
struct worker_carry {
  C codec;
  flat_part flat;
  const float* scales = nullptr;   ///< of the last exchange, by group
  std::uint32_t* saved = nullptr;  ///< by tile: 1 where `undo` holds what was there
  Undo undo;
  live_mask before{};  ///< what the others carry is no residual

  template <class L>
  struct access {
    C codec;
    float* first;
    float scale;
    std::uint32_t* saved;
    typename Undo::template writer<L> undo;
    live_mask before;
    std::size_t word;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return L::load(first + 32 * k); }
    ONEBIT_HD typename L::value residual(std::uint32_t k, const typename L::value& old) const {
      if constexpr (WordCompressor<C>) {
        return before.template keep<L>(word + k, detail::residual_of_words<L>(codec, old, scale));
      } else {
        return old;
      }
    }
    /// From here on the tile's values are overwritten.
    ONEBIT_HD void begin() const {
      if constexpr (!Undo::repeats) L::store_scalar(saved, std::uint32_t{1});
    }
    ONEBIT_HD void store(std::uint32_t k, const typename L::value& old,
                         const typename L::value& now) const {
      if constexpr (!Undo::repeats) undo.save(k, old);
      if constexpr (!Undo::repeats) L::store(first + 32 * k, now);
    }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t index) const {
    return {detail::of_tile(codec, index), flat.at(t), scales[t.group], saved + index,
            undo.template at<L>(t),        before,     t.word};
  }
};

/// The residual that a carried buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  flat_part flat;
  const float* scales = nullptr;
  live_mask before{};  ///< what the others carry is no residual

  template <class L>
  struct reader {
    C codec;
    const float* first;
    float scale;
    live_mask before;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      const auto y = L::load(first + 32 * k);
      if constexpr (WordCompressor<C>) {
        return before.template keep<L>(word + k, detail::residual_of_words<L>(codec, y, scale));
      } else {
        return y;
      }
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {detail::of_tile(codec, index), flat.at(t), scales[t.group], before, t.word};
  }
};

// -- the passes ----------------------------------------------------------------------------------

/// A message that says `static constexpr bool narrow = true`: so much that a device has no
/// registers left for several words.
template <class Produce>
concept NarrowMessage = requires {
  requires Produce::narrow;
};

/// A message that says `static constexpr bool wakes = true`: v is refreshed while it is exchanged,
/// and elements that sleep carry the last gradient, which readers have as `gradient`.
template <class Produce>
concept WakingMessage = requires {
  requires Produce::wakes;
};
/// What is carried of word k: y, or where elements sleep the gradient, if any, else `old`.
template <class L, class Produce, class Message, class V = typename L::value>
ONEBIT_HD V carried_of(const live_mask& live, std::size_t word, const V& y, const Message& message,
                       std::uint32_t k, const V& old) {
  if constexpr (WakingMessage<Produce>) {
    return live.template or_gradient<L>(word, y, message.gradient, k, old);
  } else {
    return y;
  }
}

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
      requires(WordCompressor<C> && !NarrowMessage<Produce>) {
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
      const C own = detail::of_tile(codec, index);  // which nothing that is stored can change
      state.begin();
      constexpr bool several = L::words > 1;  // then the next ones come while these are computed
      auto ahead = state.load(0);
      for (std::uint32_t k = 0; k < n_words; k += L::words) {
        const auto old = several ? ahead : state.load(k);
        if (several && k + L::words < n_words) ahead = state.load(k + L::words);
        const auto y = live.template keep<L>(t.word + k, message(k, state.residual(k, old)), check);
        state.store(k, old, carried_of<L, Produce>(live, t.word + k, y, message, k, old));
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
        state.store(k, old, live.template keep<L>(t.word + k, lost));
      }
    }
    L::store_scalar(sums + index, one::fold(one::add(sum, check)));
  }
};

/// The end of a step for the carried values: those that an encode pass has overwritten are put back
/// if the step was called off.
template <class Undo>
struct take_back_kernel {
  static constexpr bool rare = true;
  Undo undo;
  const tile* tiles;
  flat_part flat;
  std::uint32_t* saved;
  const step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (saved[i] == 0) return;
    const tile& t = tiles[i];
    const auto before = undo.template at<L>(t);
    const std::uint32_t n_words = now->skip != 0 ? t.n_words() : 0;
    for (std::uint32_t k = 0; k < n_words; ++k) L::store(flat.at(t) + k * 32, before.load(k));
    L::store_scalar(saved + i, std::uint32_t{0});
  }
};

/// Adds to the carried values: carried = produce(residual).
template <class C, class Produce>
struct accumulate_kernel {
  residual_field<C> residual;
  Produce produce;
  live_mask live;
  const tile* tiles;
  float* flat;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto message = produce.template at<L>(t, i);
    const auto old = residual.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* const first = flat + (t.word + k) * 32;
      const auto y = live.template keep<L>(t.word + k, message(k, old(k)));
      L::store(first, carried_of<L, Produce>(live, t.word + k, y, message, k, L::load(first)));
    }
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

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[first_tile + i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = first_tile + i;
    const tile t = tile_at(i);
    const auto message = produce.template at<L>(t, index);
    const auto value = heard.template at<L>(t, index);
    float* first = flat + format.served_word(t) * 32;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* e = first + k * 32;
      const auto y = live.template keep<L>(t.word + k, message(k, L::load(e)));
      L::store(e, L::sub(y, value(k)));
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

}  // namespace onebit
