// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The optimizers that several files of tests train with: compiled once, in this folder, and with
// optimisation also where the tests are without (ONEBIT_TESTS_COMPILED).

#ifndef ONEBIT_TESTS_COMPILED_OPTIMIZERS_HPP
#define ONEBIT_TESTS_COMPILED_OPTIMIZERS_HPP

#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>

// Of every element type, where all tests are built.
#if defined(ONEBIT_TESTS_ALL)
#define ONEBIT_TESTS_OF_TYPES(...) __VA_ARGS__
#else
#define ONEBIT_TESTS_OF_TYPES(...)
#endif

#define ONEBIT_TESTS_ADAM(X)                                                                  \
  X(adam_rule<host>, always_dense, gather_scatter<identity>, float, float)                    \
  X(adam_rule<host>, freeze, gather_scatter<identity>, float, float)                          \
  ONEBIT_TESTS_OF_TYPES(                                                                      \
      X(adam_rule<host>, always_dense, gather_scatter<identity>, float, const float)          \
          X(adam_rule<host>, always_dense, gather_scatter<identity>, bf16, bf16)              \
              X(adam_rule<host>, always_dense, gather_scatter<identity>, bf16, float)         \
                  X(adam_rule<host>, always_dense, gather_scatter<identity>, fp16, fp16)      \
                      X(adam_rule<host>, always_dense, gather_scatter<identity>, any_element, \
                        any_element))

#define ONEBIT_TESTS_ONE_BIT_ADAM(X)                                                   \
  X(adam_rule<host>, freeze, gather_scatter<sign<>>, float, float)                     \
  X(adam_rule<host>, freeze, gather_scatter<sign<>>, float, const float)               \
  X(adam_rule<host>, freeze, gather_scatter<sign<l1_scale>>, float, float)             \
  X(adam_rule<host>, freeze, all_gather<sign<>>, float, float)                         \
  X(adam_rule<host>, freeze, all_gather<sign<l1_scale>>, float, float)                 \
  X(adam_rule<host>, freeze, hierarchical<sign<>>, float, float)                       \
  ONEBIT_TESTS_OF_TYPES(X(adam_rule<host>, freeze, gather_scatter<sign<>>, bf16, bf16) \
                            X(adam_rule<host>, freeze, all_gather<sign<>>, float, const float))

#define ONEBIT_TESTS_LAMB(X)                                                             \
  X(lamb_rule<host>, always_dense, gather_scatter<identity>, float, float)               \
  X(lamb_rule<host>, freeze, gather_scatter<sign<>>, float, float)                       \
  X(lamb_rule<host>, freeze, all_gather<sign<>>, float, float)                           \
  X(papers::lamb_rule<host>, freeze, gather_scatter<sign<>>, float, float)               \
  X(lamb_rule<host>, freeze, hierarchical<sign<>>, float, float)                         \
  ONEBIT_TESTS_OF_TYPES(                                                                 \
      X(lamb_rule<host>, always_dense, gather_scatter<identity>, float, const float)     \
          X(lamb_rule<host>, always_dense, gather_scatter<identity>, bf16, bf16)         \
              X(papers::lamb_rule<host>, freeze, gather_scatter<identity>, float, float) \
                  X(lamb_rule<host>, freeze, gather_scatter<sign<>>, float, const float) \
                      X(lamb_rule<host>, freeze, gather_scatter<sign<>>, bf16, bf16))

#define ONEBIT_TESTS_ZERO_ONE_ADAM(X)                                                            \
  X(zero_one_rule<host>, intervals, gather_scatter<sign<>>, float, float)                        \
  X(zero_one_rule<host>, intervals, all_gather<sign<>>, float, float)                            \
  X(zero_one_rule<host>, intervals, hierarchical<sign<>>, float, float)                          \
  ONEBIT_TESTS_OF_TYPES(X(zero_one_rule<host>, intervals, gather_scatter<sign<>>, bf16, bf16) X( \
      zero_one_rule<host>, intervals, gather_scatter<identity>, float, float))

namespace onebit {

#define ONEBIT_TESTS_DECLARE(...) extern template class optimizer<__VA_ARGS__>;
#define ONEBIT_TESTS_DEFINE(...) template class optimizer<__VA_ARGS__>;

#if defined(ONEBIT_TESTS_COMPILED)
ONEBIT_TESTS_ADAM(ONEBIT_TESTS_DECLARE)
ONEBIT_TESTS_ONE_BIT_ADAM(ONEBIT_TESTS_DECLARE)
ONEBIT_TESTS_LAMB(ONEBIT_TESTS_DECLARE)
ONEBIT_TESTS_ZERO_ONE_ADAM(ONEBIT_TESTS_DECLARE)
#endif

}  // namespace onebit

#endif  // ONEBIT_TESTS_COMPILED_OPTIMIZERS_HPP
