// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Top-k sparsification with error feedback inside 1-bit Adam's loop.

#include "top_k.hpp"

#include "toy_problem.hpp"

int main() {
  const onebit::gather_scatter collective{top_k{.k = 410}};
  const toy::result r = toy::train(4, 600, 0.02F, [&](const auto& groups, onebit::threads comm) {
    return onebit::one_bit_adam(
        groups, comm,
        onebit::one_bit_adam_options{.adam = {.beta2 = 0.99}, .freeze = {.after = 100}},
        collective);
  });
  return toy::verdict("Adam, top 10% per tile", r, 0.02);
}
