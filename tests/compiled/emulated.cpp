// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "emulated.hpp"

namespace onebit {

ONEBIT_TESTS_EMULATED(ONEBIT_TESTS_DEFINE)

}  // namespace onebit
