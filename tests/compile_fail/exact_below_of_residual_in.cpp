// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: residuals of exact_below<C> are stored as the whole says

#include <onebit/onebit.hpp>

int main() {
  onebit::exact_below<onebit::residual_in<onebit::int8, onebit::sign<>>> c;
  return c.exact ? 1 : 0;
}
