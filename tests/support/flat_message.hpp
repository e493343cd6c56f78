// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_TESTS_SUPPORT_FLAT_MESSAGE_HPP
#define ONEBIT_TESTS_SUPPORT_FLAT_MESSAGE_HPP

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>

namespace onebit_test {

/// base + values: a message that lies on the flat axis.
struct flat_message {
  const float* values;

  template <class L>
  struct reader {
    const float* first;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, L::load(first + 32 * k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const onebit::tile& t, std::size_t) const {
    return {values + 32 * t.word};
  }
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_FLAT_MESSAGE_HPP
