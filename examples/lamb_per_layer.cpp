// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The paper's 1-bit LAMB with one scale per layer instead of its momentum scaling: a combination
// that no paper has.

#include <onebit/extras/papers.hpp>

#include "toy_problem.hpp"

int main() {
  const onebit::gather_scatter collective{onebit::sign<>{onebit::granularity::layer(), 1}};
  const toy::result r = toy::train(4, 400, 0.05F, [&](const auto& groups, onebit::threads comm) {
    onebit::papers::one_bit_lamb_options options(100);
    options.lamb.beta2 = 0.99;
    options.lamb.momentum_scaling = false;
    return onebit::one_bit_lamb(groups, comm, options, collective);
  });
  return toy::verdict("1-bit LAMB, scales per layer", r, 0.02);
}
