// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: parameters must be float, bf16 or fp16, gradients the same or const

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<float, int>> groups;
    (void)onebit::one_bit_adam(groups, t, {});
  });
}
