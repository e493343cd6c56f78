// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit LAMB with one scale per layer instead of its momentum scaling: a combination that no paper
// has.

#include "toy_problem.hpp"

int main() {
  const onebit::gather_scatter collective{onebit::sign<>{onebit::granularity::layer()}};
  const toy::result r = toy::train(4, 400, 0.05F, [&](const auto& groups, onebit::threads comm) {
    return onebit::one_bit_lamb(
        groups, comm,
        onebit::one_bit_lamb_options{.lamb = {.beta2 = 0.99, .momentum_scaling = false},
                                     .freeze = {.after = 100}},
        collective);
  });
  return toy::verdict("1-bit LAMB, scales per layer", r, 0.02);
}
