// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/tensor.hpp>

/// What an encode pass carries from step to step, and how it takes it back.
namespace onebit {

/// Values of the flat axis from the word `first` on.
struct flat_part {
  float* values = nullptr;
  std::size_t first = 0;

  [[nodiscard]] ONEBIT_HD float* at(const tile& t) const { return values + (t.word - first) * 32; }
};

/// Saves the carried values that a step overwrites where the gradients lay: they are consumed as
/// the values are produced, word by word.
template <class P, class G>
struct undo_in_gradients {
  const tensor_entry<P, G>* tensors = nullptr;

  template <class L>
  struct writer {
    G* first;
    std::uint32_t n;
    ONEBIT_HD void save(std::uint32_t k, const typename L::value& v) const {
      detail::store_elements<L>(first, k, n, v);
    }
    ONEBIT_HD typename L::value load(std::uint32_t k) const {
      return detail::load_elements<L>(first, k, n);
    }
  };
  template <class L>
  ONEBIT_HD writer<L> at(const tile& t) const {
    return {tensors[t.tensor].grads + t.offset, t.n};
  }
};

/// Saves them in a buffer of the optimizer's own, for gradients that must not be written.
struct undo_in_buffer {
  float* values = nullptr;
  std::size_t first_word = 0;  ///< of the flat axis

  template <class L>
  struct writer {
    float* first;
    ONEBIT_HD void save(std::uint32_t k, const typename L::value& v) const {
      L::store(first + 32 * k, v);
    }
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return L::load(first + 32 * k); }
  };
  template <class L>
  ONEBIT_HD writer<L> at(const tile& t) const {
    return {flat_part{values, first_word}.at(t)};
  }
};

/// Carries nothing: identity.
struct no_carry {
  template <class L>
  struct access {
    ONEBIT_HD typename L::value load(std::uint32_t) const { return L::set(0.0F); }
    ONEBIT_HD typename L::value residual(const typename L::value& old) const { return old; }
    ONEBIT_HD void store(std::uint32_t, const typename L::value&, const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile&) const {
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
    ONEBIT_HD typename L::value residual(const typename L::value& old) const { return old; }
    ONEBIT_HD void store(std::uint32_t, const typename L::value&, const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t) const {
    return {flat + format.served_word(t) * 32};
  }
};

/// The worker's carried values, overwritten in the encode pass, the old ones saved in `undo`.
template <class C, class Undo>
struct worker_carry {
  C codec;
  flat_part flat;
  const float* scales = nullptr;  ///< of the last exchange, by group; null: carried is the residual
  Undo undo;

  template <class L>
  struct access {
    C codec;
    float* first;
    float scale;
    typename Undo::template writer<L> undo;
    ONEBIT_HD typename L::value load(std::uint32_t k) const { return L::load(first + 32 * k); }
    ONEBIT_HD typename L::value residual(const typename L::value& old) const {
      if constexpr (WordCompressor<C>) {
        return codec.template residual<L>(old, scale);
      } else {
        return old;
      }
    }
    ONEBIT_HD void store(std::uint32_t k, const typename L::value& old,
                         const typename L::value& now) const {
      undo.save(k, old);
      L::store(first + 32 * k, now);
    }
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t) const {
    return {codec, flat.at(t), scales == nullptr ? 0.0F : scales[t.group], undo.template at<L>(t)};
  }
};

}  // namespace onebit
