// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>

/// Passes over fields (index -> value) of the flat axis.
namespace onebit {

namespace detail {

/// Stores a field (index -> value) into the slots as the identity compressor has them.
template <class Field>
struct store_field_kernel {
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

struct scale_in_place_kernel {
  float* flat;
  const tile* tiles;
  const float* factors;  ///< by tensor, or null
  float factor;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto all = L::set(factor * (factors == nullptr ? 1.0F : factors[t.tensor]));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* p = flat + (t.word + k) * 32;
      L::store(p, L::mul(L::load(p), all));
    }
  }
};

/// Stores a field on the flat axis.
template <class Field>
struct copy_field_kernel {
  Field field;
  const tile* tiles;
  float* flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = field.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) L::store(flat + (t.word + k) * 32, value(k));
  }
};

/// A buffer on the flat axis, read as a field.
struct flat_field {
  const float* flat;

  template <class L>
  struct reader {
    const float* first;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::load(first + 32 * k);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {flat + t.word * 32};
  }
};

}  // namespace detail

}  // namespace onebit
