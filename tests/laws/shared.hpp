// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The trainings that several laws look at: compiled once, in shared.cpp.

#ifndef ONEBIT_TESTS_LAWS_SHARED_HPP
#define ONEBIT_TESTS_LAWS_SHARED_HPP

#include <onebit/any_optimizer.hpp>

#include "../support/plan.hpp"

namespace onebit_test {

/// 1-bit Adam over a trainer's memory, without its type.
template <class G, class Collective>
onebit::any_optimizer make_one_bit_adam(memory& own, const plan& p, onebit::threads transport,
                                        Collective collective) {
  return onebit::one_bit_adam(own.groups<G>(p.all_groups()), transport, p.options, collective);
}

#define ONEBIT_TESTS_SHARED(KEYWORD, G, ...)                                              \
  KEYWORD template trace train<G, __VA_ARGS__>(onebit::threads, const plan&, __VA_ARGS__, \
                                               onebit::host);                             \
  KEYWORD template onebit::any_optimizer make_one_bit_adam<G, __VA_ARGS__>(               \
      memory&, const plan&, onebit::threads, __VA_ARGS__);
#if defined(ONEBIT_TESTS_ALL)
#define ONEBIT_TESTS_SHARED_BOTH(KEYWORD, ...)     \
  ONEBIT_TESTS_SHARED(KEYWORD, float, __VA_ARGS__) \
  ONEBIT_TESTS_SHARED(KEYWORD, const float, __VA_ARGS__)
#else
#define ONEBIT_TESTS_SHARED_BOTH(KEYWORD, ...) ONEBIT_TESTS_SHARED(KEYWORD, float, __VA_ARGS__)
#endif
#define ONEBIT_TESTS_SHARED_ALL(KEYWORD)                                                      \
  ONEBIT_TESTS_SHARED(KEYWORD, float, onebit::gather_scatter<onebit::sign<onebit::l2_scale>>) \
  ONEBIT_TESTS_SHARED(KEYWORD, const float,                                                   \
                      onebit::gather_scatter<onebit::sign<onebit::l2_scale>>)                 \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::gather_scatter<onebit::sign<onebit::l1_scale>>)   \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::all_gather<onebit::sign<onebit::l2_scale>>)       \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::all_gather<onebit::sign<onebit::l1_scale>>)       \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::gather_scatter<onebit::identity>)                 \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::gather_scatter<ternary>)                          \
  ONEBIT_TESTS_SHARED_BOTH(KEYWORD, onebit::all_gather<int8_tile>)                            \
  ONEBIT_TESTS_SHARED(KEYWORD, float, onebit::gather_scatter<int8_tile>)                      \
  ONEBIT_TESTS_SHARED(KEYWORD, float, onebit::all_gather<ternary>)

ONEBIT_TESTS_SHARED_ALL(extern)

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_LAWS_SHARED_HPP
