// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// State that is shared out: trainings on a CUDA device have the bits of the host.

#include <onebit/sharded.hpp>

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

TEST_CASE("cuda trainings: each rank owns a part") {
  const auto with = [](const onebit::sharding& how) {
    return [how](const auto& g, auto t, auto b) { return onebit::sharded_adam(g, t, {}, how, b); };
  };
  check_same_bits<cuda_device>("in place", 3, with({.bucket_elements = 0}));
  check_same_bits<cuda_device>("in buckets", 2, with({.bucket_elements = 2000}),
                               {.bad = {3, 9, 10, 40}});
  check_same_bits<cuda_device, onebit::bf16>("means beside", 2, with({}));
  check_same_bits<cuda_device, onebit::bf16>("masters", 3,
                                             with({.bucket_elements = 3000, .masters = true}));
  check_same_bits<cuda_device>("lion", 2, [](const auto& g, auto t, auto b) {
    return onebit::sharded_lion<onebit::bf16>(g, t, {}, {.sum = onebit::dense_sum::in_int8}, b);
  });
}
