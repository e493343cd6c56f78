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

const onebit::gather_scatter<onebit::sign<>> exchange;
const auto one_bit_adam = one_bit_adam_with(exchange);

}  // namespace

TEST_CASE("cuda elements: bf16") {
  const script s{.loss_scale = 1024};
  check_same_bits<cuda_device, bf16>("master", 2, one_bit_adam, s, true);
  const script unset{.loss_scale = 1024, .sets_masters = false};
  check_same_bits<cuda_device, bf16>("masters at 0", 2, one_bit_adam, unset, true);
  check_same_bits<cuda_device, bf16>("no master", 2, one_bit_adam, s, false);
  const script stochastic{.loss_scale = 1024, .stochastic_rounding = true};
  check_same_bits<cuda_device, bf16>("stochastic rounding", 2, one_bit_adam, stochastic);
  check_same_bits<cuda_device, bf16>("stochastic rounding, zero_one_adam", 2,
                                     zero_one_adam_with(exchange), stochastic);
  check_same_bits<cuda_device, bf16>("one rank", 1, one_bit_adam, s, true);
  check_same_bits<cuda_device, float, bf16>("gradients alone", 2, one_bit_adam, s);
  check_same_bits<cuda_device, bf16>("zero_one_adam", 2, zero_one_adam_with(exchange), s, true);
}

TEST_CASE("cuda elements: fp16, and a loss scale that overflows") {
  check_same_bits<cuda_device, fp16>("master", 2, one_bit_adam, {.loss_scale = 1024}, true);
  const script bad{.calls = 20, .bad = {14, 17}, .loss_scale = 1024};
  // No refreshes: on a deferred backend the schedule counts skipped steps, and they would come
  // sooner.
  check_same_bits<cuda_device, fp16>("overflow", 2, one_bit_adam_with(exchange, 0), bad, true,
                                     true);
  check_same_bits<cuda_device, fp16>("masters at 0", 2, one_bit_adam,
                                     {.loss_scale = 1024, .sets_masters = false}, true);
  check_same_bits<cuda_device, fp16>("one_bit_lamb", 2, one_bit_lamb_with(exchange),
                                     {.loss_scale = 1024}, true);
}
