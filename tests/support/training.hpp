// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The suites' small trainer, and options that it runs with.

#ifndef ONEBIT_TESTS_SUPPORT_TRAINING_HPP
#define ONEBIT_TESTS_SUPPORT_TRAINING_HPP

#include <cstdint>
#include <onebit/algorithms.hpp>
#include <onebit/testing/training.hpp>

#include "ranks.hpp"

namespace onebit_test {

inline onebit::one_bit_adam_options frozen_after(std::uint64_t n) {
  onebit::one_bit_adam_options o;
  o.freeze.after = n;
  o.refreshes = 0;
  return o;
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_TRAINING_HPP
