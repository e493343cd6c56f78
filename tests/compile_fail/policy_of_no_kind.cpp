// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: after the options come a collective
// errors: 2

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    auto o = onebit::one_bit_adam(groups, t, {}, 4);
    o.step(0.1F);
  });
}
