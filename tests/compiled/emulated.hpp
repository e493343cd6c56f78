// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// As optimizers.hpp: those on emulated warps behind an emulated stream.

#ifndef ONEBIT_TESTS_COMPILED_EMULATED_HPP
#define ONEBIT_TESTS_COMPILED_EMULATED_HPP

#include <onebit/onebit.hpp>

#include "../support/emulated.hpp"
#include "optimizers.hpp"

#define ONEBIT_TESTS_EMULATED(X)                                                            \
  X(adam_rule<onebit_test::emulated>, always_dense, gather_scatter<identity>, float, float) \
  X(adam_rule<onebit_test::emulated>, freeze, gather_scatter<sign<>>, float, float)         \
  X(adam_rule<onebit_test::emulated>, freeze, gather_scatter<sign<>>, bf16, bf16)           \
  X(lamb_rule<onebit_test::emulated>, always_dense, gather_scatter<identity>, float, float) \
  X(lamb_rule<onebit_test::emulated>, freeze, gather_scatter<sign<>>, float, float)         \
  X(zero_one_rule<onebit_test::emulated>, intervals, gather_scatter<sign<>>, float, float)

namespace onebit {

#if defined(ONEBIT_TESTS_COMPILED) && defined(ONEBIT_TESTS_ALL)
ONEBIT_TESTS_EMULATED(ONEBIT_TESTS_DECLARE)
#endif

}  // namespace onebit

#endif  // ONEBIT_TESTS_COMPILED_EMULATED_HPP
