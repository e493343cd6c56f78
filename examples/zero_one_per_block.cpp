// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 0/1 Adam with a scale for every 256 elements: a combination that no paper has.

#include "toy_problem.hpp"

int main() {
  const onebit::gather_scatter collective{
      onebit::sign<onebit::l1_scale>{onebit::granularity::block(256)}};
  const toy::result r = toy::train(4, 400, 0.02F, [&](const auto& groups, onebit::threads comm) {
    return onebit::zero_one_adam(
        groups, comm,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 8, .warmup_steps = 100, .doubling_steps = 60, .max_interval = 8}},
        collective);
  });
  return toy::verdict("0/1 Adam, scales per block", r, 0.02);
}
