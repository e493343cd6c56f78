// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/compress/residual_in.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>

/// What an encode pass carries from step to step, by tile.
namespace onebit::inline v0_1 {

/// Words that are carried, as Storage stores them, from the word `first` of the flat axis on.
template <class Storage>
struct carried_words {
  typename Storage::element* values = nullptr;
  std::size_t first = 0;
  const step_scalars* now = nullptr;  ///< of the step in which they are stored

  static constexpr std::size_t bytes_per_word =
      Storage::per_word * sizeof(typename Storage::element);
  /// Whether what is overwritten is saved as it is stored, not as floats.
  static constexpr bool saved_as_stored = !std::is_same_v<Storage, residuals_in_float>;

  struct no_chance {};
  template <class L>
  struct some_chance {
    std::uint32_t step;
    typename one_word<L>::value of_lanes;
  };
  template <class L>
  struct access {
    typename Storage::element* first;
    std::size_t word;  ///< of the first, for chance
    std::conditional_t<Storage::rounds, some_chance<L>, no_chance> chance;

    ONEBIT_HD typename L::value load(std::uint32_t k) const {
      typename L::value v;
      for (unsigned j = 0; j < L::words; ++j) {
        word_of<L>(v, j) = Storage::template load<one_word<L>>(at(k + j));
      }
      return v;
    }
    ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
      put<Storage::rounds>(k, v);
    }
    /// Word k as it is stored, to memory of the undo's and from there. Where lanes share memory
    /// each copies bytes that others have stored or have yet to read, of the word and of the
    /// gradients.
    ONEBIT_HD void copy_to(unsigned char* to, std::uint32_t k) const {
      copy<false>(to, reinterpret_cast<const unsigned char*>(at(k)));
    }
    ONEBIT_HD void copy_from(const unsigned char* from, std::uint32_t k) const {
      copy<true>(reinterpret_cast<unsigned char*>(at(k)), from);
    }
    /// What `load` gave.
    ONEBIT_HD void put_back(std::uint32_t k, const typename L::value& v) const { put<false>(k, v); }

   private:
    /// `rarely`: with a loop, since what is rare shares a kernel that has no registers to spare.
    template <bool rarely>
    ONEBIT_HD static void copy(unsigned char* to, const unsigned char* from) {
      using one = one_word<L>;
      if constexpr (SharingLanes<one>) {
        one::sync();
        if constexpr (rarely) {
          for (auto i = one::own_index(); i < bytes_per_word; i += one::n_indices())
            to[i] = from[i];
        } else {
          for (std::size_t i = 0; i < bytes_per_word; i += one::n_indices()) {
            const auto own = i + one::own_index();
            if (own < bytes_per_word) to[own] = from[own];
          }
        }
        one::sync();
      } else {
        __builtin_memcpy(to, from, bytes_per_word);
      }
    }
    template <bool by_chance>
    ONEBIT_HD void put(std::uint32_t k, const typename L::value& v) const {
      using one = one_word<L>;
      for (unsigned j = 0; j < L::words; ++j) {
        auto by = one::set(0.0F);
        if constexpr (by_chance) {
          by = detail::dither<one>(chance.of_lanes, word + k + j, chance.step);
        }
        Storage::template store<one>(at(k + j), word_of<L>(v, j), by);
      }
    }
    [[nodiscard]] ONEBIT_HD typename Storage::element* at(std::uint32_t k) const {
      return first + k * Storage::per_word;
    }
  };
  /// From a word of `values` on; chance is that of its number there.
  template <class L>
  ONEBIT_HD access<L> from(std::size_t word) const {
    typename Storage::element* const there = values + word * Storage::per_word;
    if constexpr (Storage::rounds) {
      const std::uint32_t step = now == nullptr ? 0 : now->number;
      return {there, word, {step, detail::dither_of_lanes<one_word<L>>()}};
    } else {
      return {there, word, {}};
    }
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
template <class Storage>
struct read_carry {
  carried_words<Storage> residual;
  slot_format format;

  template <class L>
  struct access {
    typename carried_words<Storage>::template access<L> place;
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
    return {residual.template from<L>(format.served_word(t))};
  }
};

/// The residual that a carried buffer stands for: index -> value.
template <class C>
struct residual_field {
  C codec;
  carried_words<residual_storage_of<C>> carried;
  const float* scales = nullptr;  ///< of the last exchange, by group
  live_mask before{};             ///< what the others carry is no residual

  template <class L>
  struct reader {
    C codec;
    typename carried_words<residual_storage_of<C>>::template access<L> place;
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
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {detail::of_tile(codec, index), carried.template at<L>(t), scales[t.group], before,
            t.word};
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
        save(k, old);
        field.place.store(k, now);
      }
    }

   private:
    using words = carried_words<residual_storage_of<C>>;
    ONEBIT_HD void save(std::uint32_t k, const typename L::value& old) const {
      if constexpr (words::saved_as_stored) {
        bool all = true;
        for (unsigned j = 0; j < L::words; ++j) {
          unsigned char* const to = undo.template place<words::bytes_per_word>(k + j);
          if (to != nullptr) field.place.copy_to(to, k + j);
          all = all && to != nullptr;
        }
        if (all) return;
      }
      undo.save(k, old);
    }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t index) const {
    return {field.template at<L>(t, index), saved + index, undo.template at<L>(t)};
  }
};

}  // namespace onebit::inline v0_1
