// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: two policies of one kind after the options
// errors: 2

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    const onebit::all_gather<onebit::sign<>> twice{};
    auto o = onebit::one_bit_adam(groups, t, {}, twice, twice);
    o.step(0.1F);
  });
}
