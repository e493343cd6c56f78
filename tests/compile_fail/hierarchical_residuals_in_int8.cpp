// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: hierarchical keeps residuals as floats

#include <onebit/onebit.hpp>

int main() { onebit::hierarchical<onebit::residual_in<onebit::int8, onebit::sign<>>> c; }
