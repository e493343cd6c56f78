// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>

/// What an encode pass carries from step to step, by tile.
namespace onebit::inline v0_1 {

/// The carried values, from the word `first` of the flat axis on.
struct carried_words {
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

/// Carries nothing: identity.
struct no_carry {
  template <class L>
  struct access {
    ONEBIT_HD typename L::value load(std::uint32_t) const { return L::set(0.0F); }
    ONEBIT_HD typename L::value residual(std::uint32_t, const typename L::value& old) const {
      return old;
    }
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
struct read_carry {
  carried_words residual;
  slot_format format;

  template <class L>
  struct access {
    carried_words::access<L> place;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return place.load(k); }
    ONEBIT_HD typename L::value residual(std::uint32_t, const typename L::value& old) const {
      return old;
    }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void replace(std::uint32_t, const typename L::value&,
                           const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t) const {
    return {residual.from<L>(format.served_word(t))};
  }
};

/// The residual that a carried buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  carried_words carried;
  const float* scales = nullptr;  ///< of the last exchange, by group
  live_mask before{};             ///< what the others carry is no residual

  template <class L>
  struct reader {
    C codec;
    carried_words::access<L> place;
    float scale;
    live_mask before;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return of(k, place.load(k)); }
    /// That of word k, which carries y.
    ONEBIT_HD typename L::value of(std::uint32_t k, const typename L::value& y) const {
      if constexpr (WordCompressor<C>) {
        return before.template keep<L>(word + k, detail::residual_of_words<L>(codec, y, scale));
      } else {
        return y;
      }
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {codec, carried.at<L>(t), scales[t.group], before, t.word};
  }
};

/// The worker's carried values, overwritten in the encode pass, the old ones saved in `undo` (but
/// for undo_by_repeating, which overwrites none). Tiles that were reached are marked: a pass may
/// end early.
template <class C, class Undo>
struct worker_carry {
  residual_field<C> field;
  std::uint32_t* saved = nullptr;  ///< by tile: 1 where `undo` holds what was there
  Undo undo;

  template <class L>
  struct access {
    typename residual_field<C>::template reader<L> field;
    std::uint32_t* saved;
    typename Undo::template writer<L> undo;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return field.place.load(k); }
    ONEBIT_HD typename L::value residual(std::uint32_t k, const typename L::value& old) const {
      return field.of(k, old);
    }
    /// From here on the tile's values are overwritten.
    ONEBIT_HD void begin() const {
      if constexpr (!Undo::repeats) L::store_scalar(saved, std::uint32_t{1});
    }
    ONEBIT_HD void replace(std::uint32_t k, const typename L::value& old,
                           const typename L::value& now) const {
      if constexpr (!Undo::repeats) {
        undo.save(k, old);
        field.place.store(k, now);
      }
    }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t index) const {
    return {field.template at<L>(t, index), saved + index, undo.template at<L>(t)};
  }
};

}  // namespace onebit::inline v0_1
