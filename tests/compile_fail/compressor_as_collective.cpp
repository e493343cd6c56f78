// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: a compressor stands where a collective should
// errors: 2

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    auto o = onebit::one_bit_adam(groups, t, {}, onebit::sign<>{});
    o.step(0.1F);
  });
}
