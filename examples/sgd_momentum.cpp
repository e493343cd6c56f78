// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit SGD with momentum, by a custom rule. Without v it needs no dense steps.

#include "sgd_rule.hpp"
#include "toy_problem.hpp"

int main() {
  const toy::result r = toy::train(4, 400, 0.5F, [](const auto& groups, onebit::threads comm) {
    return onebit::optimizer("sgd, momentum 0.9", groups, comm, sgd_rule({}),
                             onebit::always_compressed{}, onebit::gather_scatter<onebit::sign<>>{});
  });
  return toy::verdict("1-bit SGD with momentum", r, 0.02);
}
