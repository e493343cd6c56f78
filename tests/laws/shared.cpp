// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "shared.hpp"

namespace onebit_test {

ONEBIT_TESTS_SHARED_ALL()

}  // namespace onebit_test
