// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// alone
// expect: compile without -ffast-math, -fassociative-math

#define __ASSOCIATIVE_MATH__ 1  // as g++ does with -ffast-math -fno-finite-math-only, too
#include <onebit/onebit.hpp>

int main() {}
