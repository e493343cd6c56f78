// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "optimizers.hpp"

namespace onebit {

ONEBIT_TESTS_ONE_BIT_ADAM_FORMS(ONEBIT_TESTS_DEFINE)

}  // namespace onebit
