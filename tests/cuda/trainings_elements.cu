// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 16-bit parameters and gradients on a CUDA device: the bits of the host, with and without master
// parameters, with a loss scale, whose overflow is skipped.

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;
using onebit::bf16;
using onebit::fp16;

namespace {

const auto one_bit_adam = [](const auto& g, auto t, auto b) {
  return onebit::one_bit_adam(g, t, onebit::one_bit_adam_options{.freeze_after = 12},
                              onebit::gather_scatter<onebit::sign<>>{}, b);
};

}  // namespace

TEST_CASE("cuda elements: bf16") {
  const script s{.loss_scale = 1024};
  check_same_bits<cuda_device, bf16>("master", 2, one_bit_adam, s, true);
  check_same_bits<cuda_device, bf16>("no master", 2, one_bit_adam, s, false);
  check_same_bits<cuda_device, bf16>("one rank", 1, one_bit_adam, s, true);
  check_same_bits<cuda_device, float, bf16>("gradients alone", 2, one_bit_adam, s);
  const auto zero_one = [](const auto& g, auto t, auto b) {
    return onebit::zero_one_adam(
        g, t,
        onebit::zero_one_adam_options{
            .schedule = {.kappa = 2, .warmup_steps = 12, .doubling_steps = 8, .max_interval = 4}},
        onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  check_same_bits<cuda_device, bf16>("zero_one_adam", 2, zero_one, s, true);
}

TEST_CASE("cuda elements: fp16, and a loss scale that overflows") {
  check_same_bits<cuda_device, fp16>("master", 2, one_bit_adam, {.loss_scale = 1024}, true);
  const script bad{.calls = 20, .bad = {14, 17}, .loss_scale = 1024};
  check_same_bits<cuda_device, fp16>("overflow", 2, one_bit_adam, bad, true, true);
  const auto lamb = [](const auto& g, auto t, auto b) {
    return onebit::one_bit_lamb(g, t, onebit::one_bit_lamb_options{.freeze = {.after = 12}},
                                onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  check_same_bits<cuda_device, fp16>("one_bit_lamb", 2, lamb, {.loss_scale = 1024}, true);
}
