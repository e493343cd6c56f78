// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The one C++ file of a trainer in C.

#ifdef TRAIN_WITH_MPI
#define ONEBIT_C_WITH_MPI
#endif
#include <onebit/c/onebit_c.hpp>
