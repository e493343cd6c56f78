// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Adam with a custom schedule, which compresses once the learning rate has passed its peak.

#include "from_the_peak.hpp"
#include "toy_problem.hpp"

int main() {
  const toy::result r = toy::train(4, 400, 0.02F, [](const auto& groups, onebit::threads comm) {
    return onebit::optimizer(
        "adam compressed from the peak on", groups, comm,
        // v is constant from then on: this schedule never refreshes it
        onebit::adam_rule({.beta2 = 0.99}, onebit::host(), {.own_variance = false}),
        from_the_peak{}, onebit::gather_scatter<onebit::sign<>>{});
  });
  return toy::verdict("Adam, compressed from the peak", r, 0.02);
}
