// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_TESTS_SUPPORT_FAILING_ALLOCATIONS_HPP
#define ONEBIT_TESTS_SUPPORT_FAILING_ALLOCATIONS_HPP

namespace onebit_test {

/// Allocations of this thread until one fails; negative: none does. For programs that are linked
/// with failing_allocations.cpp.
inline thread_local long allocations_left = -1;

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_FAILING_ALLOCATIONS_HPP
