// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_TESTS_KILL_ALLOCATIONS_HPP
#define ONEBIT_TESTS_KILL_ALLOCATIONS_HPP

namespace onebit_test::kill {

/// Allocations of this thread until one fails; negative: none does. For programs that are linked
/// with allocations.cpp.
inline thread_local long allocations_left = -1;

}  // namespace onebit_test::kill

#endif  // ONEBIT_TESTS_KILL_ALLOCATIONS_HPP
