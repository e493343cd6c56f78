// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Storages of residuals as one may write them.

#ifndef ONEBIT_TESTS_SUPPORT_STORAGES_HPP
#define ONEBIT_TESTS_SUPPORT_STORAGES_HPP

#include <cstddef>
#include <onebit/compress/residual_in.hpp>
#include <onebit/element.hpp>

namespace onebit_test {

/// A storage from outside: bf16, in which a value that is not 0 does not become 0.
struct in_bf16 {
  using element = onebit::bf16;
  static constexpr std::size_t per_word = 32;
  static constexpr bool rounds = false;

  template <class L>
  ONEBIT_HD static typename L::value load(const element* in) {
    return L::load_as(in, 32);
  }
  template <class L>
  ONEBIT_HD static void store(element* out, const typename L::value& v, const typename L::value&) {
    const auto least = L::set(-1e-37F);  // below 0, and a normal number
    const auto below = L::sub(L::set(0), L::max(L::sub(L::set(0), v), L::sub(L::set(0), least)));
    L::store_as(out, L::select(L::not_negative(v), v, below), 32);
  }
};

/// Floats and what they are times two: more bytes than the gradients have.
struct in_two_floats {
  using element = float;
  static constexpr std::size_t per_word = 64;
  static constexpr bool rounds = false;

  template <class L>
  ONEBIT_HD static typename L::value load(const element* in) {
    return L::sub(L::load(in + 32), L::load(in));
  }
  template <class L>
  ONEBIT_HD static void store(element* out, const typename L::value& v, const typename L::value&) {
    L::store(out, v);
    L::store(out + 32, L::add(v, v));
  }
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_STORAGES_HPP
