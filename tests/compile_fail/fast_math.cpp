// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// alone
// expect: onebit detects non-finite gradients and promises equal bits: compile without -ffast-math

#define __FAST_MATH__ 1  // as the compiler does with -ffast-math
#include <onebit/onebit.hpp>

int main() {}
