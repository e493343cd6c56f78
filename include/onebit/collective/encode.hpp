// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>

/// The passes of an exchange over the flat axis, by tile, and what they carry from step to step.
namespace onebit::inline v0_2 {

/// The compensated values, from the word `first` of the flat axis on.
struct compensated_words {
  float* values = nullptr;
  std::size_t first = 0;

  template <class L>
  struct access {
    float* first;

    ONEBIT_HD typename L::value load(std::uint32_t k) const { return L::load(first + 32 * k); }
    ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
      L::store(first + 32 * k, v);
    }
  };
  /// From a word of `values` on.
  template <class L>
  ONEBIT_HD access<L> from(std::size_t word) const {
    return {values + word * 32};
  }
  template <class L>
  ONEBIT_HD access<L> at(const tile& t) const {
    return from<L>(t.word - first);
  }
};

/// No residual: what is sent is not compressed.
struct no_feedback {
  template <class L>
  struct access {
    ONEBIT_HD typename L::value load(std::uint32_t) const { return L::set(0.0F); }
    ONEBIT_HD typename L::value residual(const typename L::value& old) const { return old; }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void replace(std::uint32_t, const typename L::value&,
                           const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile&, std::size_t) const {
    return {};
  }
};

/// A residual that is only read while the step may still be called off (the server's).
struct server_feedback {
  compensated_words residual;
  slot_format format;

  template <class L>
  struct access : no_feedback::access<L> {
    compensated_words::access<L> place;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return place.load(k); }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t) const {
    return {{}, residual.from<L>(format.server_word(t))};
  }
};

/// The residual that a compensated buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  compensated_words compensated;
  const float* scales = nullptr;  ///< of the last exchange, by group

  template <class L>
  struct reader {
    C codec;
    compensated_words::access<L> place;
    float scale;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return of(place.load(k)); }
    /// That of a word whose compensated value is y.
    ONEBIT_HD typename L::value of(const typename L::value& y) const {
      return codec_traits<C>::template residual<L>(codec, y, scale);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {codec, compensated.at<L>(t), scales[t.group]};
  }
};

/// A field where an element is active, and 0 elsewhere.
template <class Field>
struct active_part {
  Field field;
  active_mask active;

  template <class L>
  struct reader {
    typename Field::template reader<L> value;
    active_mask active;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return active.template keep<L>(word + k, value(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {field.template at<L>(t, index), active, t.word};
  }
};

/// The worker's compensated values, overwritten in the encode pass, the old ones saved in `undo`
/// (but for undo_by_repeating, which overwrites none). Tiles that were reached are marked: a pass
/// may end early.
template <class C, class Undo>
struct worker_feedback {
  residual_field<C> field;
  std::uint32_t* saved = nullptr;  ///< by tile: 1 where `undo` holds what was there
  Undo undo;

  template <class L>
  struct access {
    typename residual_field<C>::template reader<L> field;
    std::uint32_t* saved;
    typename Undo::template writer<L> undo;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return field.place.load(k); }
    ONEBIT_HD typename L::value residual(const typename L::value& old) const {
      return field.of(old);
    }
    /// From here on the tile's values are overwritten.
    ONEBIT_HD void begin() const { undo.begin(saved); }
    ONEBIT_HD void replace(std::uint32_t k, const typename L::value& old,
                           const typename L::value& now) const {
      undo.replace(field.place, k, old, now);
    }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t index) const {
    return {field.template at<L>(t, index), saved + index, undo.template at<L>(t)};
  }
};

// The passes of an exchange over the flat axis: by tile.

/// Where a tile's code goes.
struct code_slots {
  slot_format format;
  std::byte* slots;
  std::uint32_t chunks_per_slot;  ///< 1, or for the server, that has one slot per bucket, W

  [[nodiscard]] ONEBIT_HD std::byte* of(const tile& t, std::size_t index) const {
    return slots + t.chunk / chunks_per_slot * format.slot_bytes + format.payload_at(t, index);
  }
};

/// One pass: value = produce(residual), its code into the slots, its statistic into `sums`, and,
/// but for undo_by_repeating, a worker's value (by a tile compressor, the new residual) into the
/// compensated buffer.
template <class C, class Produce, class Feedback>
struct encode_kernel {
  C codec;
  Produce produce;
  Feedback feedback;
  active_mask active;
  tiles_from tiles;
  code_slots to;
  float* sums;  ///< by tile

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(WordCompressor<C> && !SingleWordField<Produce>) {
    return tiles[i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const std::size_t index = tiles.first + i;
    const tile t = tiles[i];
    const auto message = produce.template at<L>(t, index);
    const auto state = feedback.template at<L>(t, index);
    std::byte* out = to.of(t, index);
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
        const auto said = message(k, state.residual(old));
        const auto y = active.template keep<L>(t.word + k, said, check);
        state.replace(k, old, y);
        detail::encode_words<L>(own, out + k * own.word_bytes, y, sum);
      }
    } else {
      detail::tile_values<L> values(tile_room::work);
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto said = message(k, state.residual(state.load(k)));
        const auto y = active.template keep<L>(t.word + k, said, check);
        L::store(values.data() + 32 * k, y);
        sum = L::fma(y, L::set(0.0F), sum);  // NaN as soon as a value is not finite
      }
      detail::encode_tile<L>(codec, values, t.n, out);  // may throw: nothing is overwritten yet
      detail::decode_tile<L>(codec, out, t.n, values);
      state.begin();
      for (std::uint32_t k = 0; k < n_words; ++k) {  // the message once more, as it was
        const auto old = state.load(k);
        const auto y = active.template keep<L>(t.word + k, message(k, state.residual(old)));
        const auto lost = L::sub(y, L::load(values.data() + 32 * k));
        state.replace(k, old, active.template keep<L>(t.word + k, lost));
      }
    }
    L::store_scalar(sums + index, one::fold(one::add(sum, check)));
  }
};

/// The end of a step for the compensated values: those that an encode pass has overwritten are put
/// back if the step was called off. One call for 32 tiles: mostly all there is to do is to forget
/// marks, for which a warp a tile would be many.
template <class Undo>
struct take_back_kernel {
  static constexpr bool one_isa = true;
  static constexpr std::size_t tiles_at_once = 32;
  Undo undo;
  const tile* tiles;
  compensated_words compensated;
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
    const auto place = compensated.at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) place.store(k, before.load(k));
  }
};

/// Adds to the compensated values: compensated = produce(residual).
template <class C, class Produce>
struct accumulate_kernel {
  residual_field<C> residual;
  Produce produce;
  active_mask active;
  tiles_from tiles;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(!SingleWordField<Produce>) {
    return tiles[i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = tiles.first + i;
    const tile t = tiles[i];
    const auto message = produce.template at<L>(t, index);
    const auto old = residual.template at<L>(t, index);
    const auto place = residual.compensated.template at<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      place.store(k, active.template keep<L>(t.word + k, message(k, old.of(place.load(k)))));
    }
  }
};

/// The server's new residual: what it meant to say minus what was received; `active` says of which
/// elements.
template <class Produce, class View>
struct server_residual_kernel {
  Produce produce;
  View latest;
  active_mask active;
  tiles_from tiles;
  slot_format format;
  compensated_words residual;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = tiles.first + i;
    const tile t = tiles[i];
    const auto message = produce.template at<L>(t, index);
    const auto value = latest.template at<L>(t, index);
    const auto e = residual.from<L>(format.server_word(t));
    const std::uint32_t n_words = t.n_words();
    constexpr bool several = L::words > 1;  // see encode_kernel
    auto held = several ? e.load(0) : L::set(0.0F), received = several ? value(0) : held;
    for (std::uint32_t k = 0; k < n_words; k += L::words) {
      const auto old = several ? held : e.load(k), came = several ? received : value(k);
      if (several && k + L::words < n_words) {
        held = e.load(k + L::words);
        received = value(k + L::words);
      }
      e.store(k, active.template keep<L>(t.word + k, L::sub(message(k, old), came)));
    }
  }
};

/// A momentum that is handed over: times its tensor's factor, and what the next message takes of
/// it.
struct scale_in_place_kernel {
  static constexpr bool one_isa = true;
  float* flat;
  const tile* tiles;
  const float* factors;           ///< by tensor, or null
  const tensor_scalars* scalars;  ///< by tensor, or null: all of it

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const float taken = scalars == nullptr ? 1.0F : scalars[t.tensor].own_beta1;
    const auto all = L::set(taken * (factors == nullptr ? 1.0F : factors[t.tensor]));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* p = flat + (t.word + k) * 32;
      L::store(p, L::mul(L::load(p), all));
    }
  }
};

/// The server's residual, each element times a factor of its own.
struct rescale_residual_kernel {
  static constexpr bool one_isa = true;
  const float* factors;  ///< on the flat axis
  tiles_from tiles;
  slot_format format;
  compensated_words residual;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto e = residual.from<L>(format.server_word(t));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      e.store(k, L::mul(e.load(k), L::load(factors + (t.word + k) * 32)));
    }
  }
};

/// Counts the active elements of each tile.
struct count_active_kernel {
  active_mask active;
  const tile* tiles;
  std::uint32_t* counts;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    std::uint32_t n = 0;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      n += L::count(active.words[t.word + k]);
    }
    L::store_scalar(counts + i, n);
  }
};

}  // namespace onebit::inline v0_2
