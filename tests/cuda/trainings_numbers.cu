// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainings on a CUDA device have the bits of the host where averages travel in fewer bytes, groups
// have betas of their own or rest, and tensors say their type themselves.

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

TEST_CASE("cuda trainings: averages in int8, a group of its own betas, one that rests") {
  std::uint64_t refreshes = 3;
  const auto make = [&](auto g, auto t, auto b) {
    g[0].rests = true;
    g[1].own = {.beta1 = 0.8, .eps = 1e-6};
    onebit::one_bit_adam_options o{.freeze = {.after = 12}, .refreshes = refreshes};
    o.warm_up_sum = onebit::dense_sum::in_int8;
    return onebit::one_bit_adam(g, t, o, onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  for (const int n : {1, 3}) check_same_bits<cuda_device>("one_bit_adam", n, make);
  // a skipped step counts for the schedule of a deferred backend: after the freeze, no refreshes
  script s;
  s.bad = {14, 30};
  refreshes = 0;
  check_same_bits<cuda_device>("one_bit_adam, bad steps", 2, make, s);
}

TEST_CASE("cuda trainings: tensors that say their type themselves, averages in bf16") {
  const auto make = [](const auto& groups, auto t, auto b) {
    std::vector<onebit::param_group<onebit::any_element>> g;
    for (const auto& from : groups) {
      g.push_back({{}, from.lr_factor, from.weight_decay});
      for (const auto& x : from.tensors) g.back().tensors.push_back({x.params, x.grads, x.master});
    }
    onebit::zero_one_adam_options o{
        .schedule = {.kappa = 2, .warmup_steps = 12, .doubling_steps = 8, .max_interval = 4}};
    o.refresh_sum = onebit::dense_sum::in_bf16;
    return onebit::zero_one_adam(g, t, o, onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  check_same_bits<cuda_device>("floats", 2, make);
  check_same_bits<cuda_device, onebit::bf16>("bf16 with masters", 2, make, {}, true);
  check_same_bits<cuda_device, onebit::fp16>("fp16", 2, make);
}
