// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Optimizer of a trainer that has many files: only optimizer.cpp compiles the template.

#ifndef ONEBIT_EXAMPLES_COMPILED_ONCE_OPTIMIZER_HPP
#define ONEBIT_EXAMPLES_COMPILED_ONCE_OPTIMIZER_HPP

#include <onebit/onebit.hpp>

// [extern template]
extern template class onebit::optimizer<onebit::adam_rule<onebit::host>, onebit::freeze,
                                        onebit::gather_scatter<onebit::sign<>>, float, float>;
// [/extern template]

#endif  // ONEBIT_EXAMPLES_COMPILED_ONCE_OPTIMIZER_HPP
