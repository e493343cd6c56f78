// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>

/// Encode kernels of an exchange, most of them one call per tile, and the residuals that it
/// carries.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Values on the flat axis from word `first` on: compensated values, or a server residual.
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
  /// Access to `values`, from its word `word` on.
  template <class L>
  ONEBIT_HD access<L> from(std::size_t word) const {
    return {values + word * 32};
  }
  template <class L>
  ONEBIT_HD access<L> at(const tile& t) const {
    return from<L>(t.word - first);
  }
};

/// Feedback without a residual: encoding losses are not carried over.
struct no_feedback {
  template <class L>
  struct access {
    ONEBIT_HD typename L::value load(std::uint32_t) const { return L::set(0.0F); }
    ONEBIT_HD typename L::value of(const typename L::value& old) const { return old; }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void replace(std::uint32_t, const typename L::value&,
                           const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile&, std::size_t) const {
    return {};
  }
};

/// Residual of the server: read-only while the step may still be called off.
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

/// Residual, rebuilt from compensated values, as a field.
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
    /// Residual of a word whose compensated value is y.
    ONEBIT_HD typename L::value of(const typename L::value& y) const {
      return codec_traits<C>::template residual<L>(codec, y, scale);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {codec, compensated.at<L>(t), scales[t.group]};
  }
};

/// Returns what is carried of a word whose compensated value is y: the residual of its active
/// elements, as they were encoded, and y itself in the others, of which nothing was sent.
template <class L, class Residual>
ONEBIT_HD typename L::value carried(const active_mask& active, std::size_t word,
                                    const typename L::value& y, const Residual& residual) {
  return active.template select<L>(word, residual.of(active.template keep<L>(word, y)), y);
}

/// What a worker carries, as a field: its residual, and in elements that are not active, of which
/// nothing is sent, the whole compensated value.
template <class C>
struct carried_field {
  residual_field<C> residual;
  active_mask active;

  template <class L>
  struct reader {
    typename residual_field<C>::template reader<L> residual;
    active_mask active;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return detail::carried<L>(active, word + k, residual.place.load(k), residual);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {residual.template at<L>(t, index), active.template of_tile<L>(t), t.word};
  }
};

/// Compensated values of a worker. By default (store_at_update) the encode pass only reads them.
/// With store_at_encode it saves the old values in `undo` and overwrites them. `saved` marks the
/// tiles that the pass reached: an exception may end it early.
template <class C, class Undo>
struct worker_feedback {
  residual_field<C> field;
  std::uint32_t* saved = nullptr;  ///< by tile: 1 if `undo` holds the old values
  Undo undo;

  template <class L>
  struct access {
    typename residual_field<C>::template reader<L> field;
    std::uint32_t* saved;
    typename Undo::template writer<L> undo;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return field.place.load(k); }
    ONEBIT_HD typename L::value of(const typename L::value& old) const { return field.of(old); }
    /// Marks the tile: its values are overwritten from here on.
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

/// Destination of encoded tiles.
struct code_slots {
  slot_format format;
  std::byte* slots;
  std::uint32_t chunks_per_slot;  ///< 1; for a server, which has one slot per bucket, W

  [[nodiscard]] ONEBIT_HD std::byte* of(const tile& t, std::size_t index) const {
    return slots + t.chunk / chunks_per_slot * format.slot_bytes + format.payload_at(t, index);
  }
};

/// Computes value = produce(residual), writes its code to the slots and its statistic to `sums`.
/// One pass. With store_at_encode a worker's pass also stores the value (for a tile compressor, the
/// new residual) in the compensated buffer. Elements that are not active are encoded as
/// 0, and the worker carries their values until they are.
template <class C, class Produce, class Feedback>
struct encode_kernel {
  C codec;
  Produce produce;
  Feedback feedback;
  active_mask active;
  detail::tiles_from tiles;
  detail::code_slots to;
  float* sums;              ///< by tile
  const step_scalars* now;  ///< its number and, of a worker, the rank are keys of random rounding
  bool by_server;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(WordCompressor<C> && !detail::SingleWordField<Produce>) {
    return tiles[i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const std::size_t index = tiles.first + i;
    const tile t = tiles[i];
    const auto message = produce.template at<L>(t, index);
    const auto state = feedback.template at<L>(t, index);
    std::byte* out = to.of(t, index);
    const active_mask& mask = mask_of<L>(t);
    const std::uint32_t n_words = t.n_words();
    auto sum = word_lanes::set(0.0F), check = sum;
    if constexpr (WordCompressor<C>) {
      const C own = codec;  // a copy, which no store can alias
      const std::uint32_t key = detail::rounding_key<C>(now, by_server);
      state.begin();
      constexpr bool several = L::words > 1;  // if so, loads run ahead of arithmetic
      auto ahead = state.load(0);
      for (std::uint32_t k = 0; k < n_words; k += L::words) {
        const auto old = several ? ahead : state.load(k);
        if (several && k + L::words < n_words) ahead = state.load(k + L::words);
        const auto e = detail::carried<L>(mask, t.word + k, old, state);
        const auto y = message(k, e);
        state.replace(k, old, y);
        detail::encode_words<L>(own, out + k * own.word_bytes,
                                mask.template keep<L>(t.word + k, y, check), sum,
                                key + static_cast<std::uint32_t>(t.word + k) * 32);
      }
    } else {
      detail::tile_values<L> values(tile_buffer::work);
      for (std::uint32_t k = 0; k < n_words; ++k) {
        const auto old = state.load(k);
        const auto e = detail::carried<L>(mask, t.word + k, old, state);
        const auto y = mask.template keep<L>(t.word + k, message(k, e), check);
        L::store(values.data() + 32 * k, y);
        sum = L::fma(y, L::set(0.0F), sum);  // NaN if a value is not finite
      }
      detail::encode_tile<L>(codec, values, t.n, out);  // may throw: nothing is overwritten yet
      detail::decode_tile<L>(codec, out, t.n, values);
      state.begin();
      for (std::uint32_t k = 0; k < n_words; ++k) {  // makes the same message again
        const auto old = state.load(k);
        const auto e = detail::carried<L>(mask, t.word + k, old, state);
        const auto y = message(k, e);
        const auto lost = L::sub(y, L::load(values.data() + 32 * k));
        state.replace(k, old, mask.template select<L>(t.word + k, lost, y));
      }
    }
    L::store_scalar(sums + index, word_lanes::fold(word_lanes::add(sum, check)));
  }

 private:
  /// The mask of tile t: a reference to `active` where a copy would spill.
  template <class L>
  [[nodiscard]] ONEBIT_HD decltype(auto) mask_of(const tile& t) const {
    if constexpr (requires { requires Produce::short_of_registers; }) {
      return (active);
    } else {
      return active.template of_tile<L>(t);
    }
  }
};

/// Ends a step for the compensated values: clears `saved` and, if the step was called off, restores
/// the overwritten values. One call handles 32 tiles: most calls only clear `saved`, too little
/// work for a warp per tile.
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
    if (now->verdict.skip == 0) {
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

/// Stores a message made from the residual: compensated = produce(residual).
template <class C, class Produce>
struct compensate_kernel {
  detail::residual_field<C> residual;
  Produce produce;
  active_mask active;
  detail::tiles_from tiles;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(!detail::SingleWordField<Produce>) {
    return tiles[i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t index = tiles.first + i;
    const tile t = tiles[i];
    auto message = produce.template at<L>(t, index);
    if constexpr (requires { message.kept; }) message.kept = true;
    const auto old = residual.template at<L>(t, index);
    const auto place = residual.compensated.template at<L>(t);
    const active_mask mask = active.template of_tile<L>(t);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto y = place.load(k);
      place.store(k, message(k, detail::carried<L>(mask, t.word + k, y, old)));
    }
  }
};

/// New residual of the server: mean + old residual, minus what all ranks decode of it; 0 where an
/// element is not active.
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
    const active_mask mask = active.template of_tile<L>(t);
    const std::uint32_t n_words = t.n_words();
    constexpr bool several = L::words > 1;  // as in encode_kernel
    auto held = several ? e.load(0) : L::set(0.0F), received = several ? value(0) : held;
    for (std::uint32_t k = 0; k < n_words; k += L::words) {
      const auto old = several ? held : e.load(k), came = several ? received : value(k);
      if (several && k + L::words < n_words) {
        held = e.load(k + L::words);
        received = value(k + L::words);
      }
      e.store(k, mask.template keep<L>(t.word + k, L::sub(message(k, old), came)));
    }
  }
};

/// Scales a handed-over momentum in place: by the factor of its tensor and by beta1, the share that
/// the next message takes.
struct scale_in_place_kernel {
  static constexpr bool one_isa = true;
  float* flat;
  const tile* tiles;
  const float* factors;           ///< by tensor, or null
  const tensor_scalars* scalars;  ///< by tensor: beta1; null: 1

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

}  // namespace detail

}}  // namespace onebit
