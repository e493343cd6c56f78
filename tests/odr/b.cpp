// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <span>
#include <vector>

#include "every_host_header.hpp"

float first_parameter_after_a_step();

float first_parameter_after_a_step() {
  std::vector<float> w(10), g(10, 1.f);
  onebit::run_threads(1, [&](onebit::threads comm) {
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({std::span<float>(w), std::span<float>(g)});
    // not one that is compiled elsewhere
    auto optimizer = onebit::one_bit_adam(groups, comm, onebit::one_bit_adam_options{},
                                          onebit::all_gather<onebit::sign<onebit::l1_scale>>{});
    optimizer.step(0.1f);
  });
  return w[0];
}
