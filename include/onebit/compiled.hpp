// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/algorithms.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <vector>

/// The algorithms with their default policies, as other files compile them: those of the CMake
/// target onebit::compiled, which also sets ONEBIT_COMPILED, with which onebit.hpp includes this.
/// Without CMake, set the macro, and in some file write, for each algorithm that the program uses,
///
///     #include <onebit/onebit.hpp>
///     ONEBIT_COMPILE(one_bit_adam)
///     ONEBIT_COMPILE(threads)

// What is compiled of each, after `extern template` or `template`.
#define ONEBIT_COMPILED_OPTIMIZER(TEMPLATE, NAME, E, ...)                               \
  TEMPLATE class optimizer<__VA_ARGS__, E, E>;                                          \
  TEMPLATE auto detail::NAME##_over<E, E>(const std::vector<param_group<E, E>>& groups, \
                                          communicator comm, NAME##_options options);
#define ONEBIT_COMPILED_TYPES(TEMPLATE, NAME, ...)              \
  ONEBIT_COMPILED_OPTIMIZER(TEMPLATE, NAME, float, __VA_ARGS__) \
  ONEBIT_COMPILED_OPTIMIZER(TEMPLATE, NAME, bf16, __VA_ARGS__)

#define ONEBIT_COMPILED_adam(TEMPLATE) \
  ONEBIT_COMPILED_TYPES(TEMPLATE, adam, adam_rule<host>, always_dense, gather_scatter<identity>)
#define ONEBIT_COMPILED_lamb(TEMPLATE) \
  ONEBIT_COMPILED_TYPES(TEMPLATE, lamb, lamb_rule<host>, always_dense, gather_scatter<identity>)
#define ONEBIT_COMPILED_one_bit_adam(TEMPLATE) \
  ONEBIT_COMPILED_TYPES(TEMPLATE, one_bit_adam, adam_rule<host>, freeze, detail::one_bit_exchange)
#define ONEBIT_COMPILED_one_bit_lamb(TEMPLATE) \
  ONEBIT_COMPILED_TYPES(TEMPLATE, one_bit_lamb, lamb_rule<host>, freeze, detail::one_bit_exchange)
#define ONEBIT_COMPILED_zero_one_adam(TEMPLATE)                                  \
  ONEBIT_COMPILED_TYPES(TEMPLATE, zero_one_adam, zero_one_rule<host>, intervals, \
                        detail::zero_one_exchange)
// ONEBIT_COMPILE(mpi) is where the transport is: its header has the declaration.
#define ONEBIT_COMPILED_TRANSPORT(TEMPLATE, T) \
  TEMPLATE class detail::transport_holder<T>;  \
  TEMPLATE communicator::communicator(T transport);
#define ONEBIT_COMPILED_mpi(TEMPLATE) ONEBIT_COMPILED_TRANSPORT(TEMPLATE, mpi)
#define ONEBIT_COMPILED_threads(TEMPLATE)    \
  TEMPLATE class basic_threads<host_memory>; \
  ONEBIT_COMPILED_TRANSPORT(TEMPLATE, threads)

#define ONEBIT_COMPILE(NAME)       \
  namespace onebit {               \
  ONEBIT_COMPILED_##NAME(template) \
  }

#if !defined(__CUDACC__)  // nvcc's host backend is another type
// clang-format off
namespace onebit { inline namespace v0_3 {

ONEBIT_COMPILED_adam(extern template)
ONEBIT_COMPILED_lamb(extern template)
ONEBIT_COMPILED_one_bit_adam(extern template)
ONEBIT_COMPILED_one_bit_lamb(extern template)
ONEBIT_COMPILED_zero_one_adam(extern template)
ONEBIT_COMPILED_threads(extern template)

}}  // namespace onebit
// clang-format on
#endif
