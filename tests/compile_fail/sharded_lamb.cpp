// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this rule needs whole tensors

#include <onebit/onebit.hpp>
#include <onebit/sharded.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    using lamb = decltype(onebit::lamb(std::vector<onebit::param_group<>>{}, t));
    onebit::sharded<lamb, float, float> o(
        std::vector<onebit::param_group<>>{}, t, onebit::host(),
        [](const auto& groups, auto one, auto) { return onebit::lamb(groups, one); });
  });
}
