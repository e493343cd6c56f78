// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainings on a CUDA device have the bits of the host with compressors that know tiles only.

#include <onebit/collective/all_gather.hpp>

#include "../../examples/int8_per_tile.hpp"
#include "../../examples/top_k.hpp"
#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

TEST_CASE("cuda trainings: compressors by tile") {
  const onebit::gather_scatter int8{int8_per_tile{}};
  check_same_bits<cuda_device>("int8", 3, one_bit_adam_with(int8), {.calls = 24});
  check_same_bits<cuda_device>("bad gradients", 2, one_bit_adam_with(int8, 0),
                               {.calls = 20, .bad = {13, 14, 18}}, false, true);
  check_same_bits<cuda_device>("top k", 2, one_bit_adam_with(onebit::gather_scatter{top_k{64}}),
                               {.calls = 18});
}

TEST_CASE("cuda trainings: compressors by tile, two messages in one kernel") {
  const script s{.calls = 24};
  check_same_bits<cuda_device>("messages", 2,
                               one_bit_lamb_with(onebit::gather_scatter{int8_per_tile{}}), s);
  check_same_bits<cuda_device>("means", 2, one_bit_lamb_with(onebit::all_gather{int8_per_tile{}}),
                               s);
}
