// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainings on a CUDA device have the bits of the host with the other collectives and compressors.

#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

// Not with every algorithm: what a collective does hangs on whether the rule accumulates, and each
// pair costs many seconds of compiling.

TEST_CASE("cuda trainings: all_gather") {
  const onebit::all_gather<onebit::sign<>> c;
  check_same_bits<cuda_device>("one_bit_lamb", 2, one_bit_lamb_with(c));
  check_same_bits<cuda_device>("zero_one_adam", 3, zero_one_adam_with(c));
}

TEST_CASE("cuda trainings: two levels, and what is left of them") {
  // nodes of 2: between them; a node of 2 alone: every step is dense; nodes of 1 each: as
  // gather_scatter
  const onebit::hierarchical c{onebit::sign<>{}, 2};
  for (const int n : {4, 2}) {
    check_same_bits<cuda_device>("one_bit_adam", n, one_bit_adam_with(c));
    check_same_bits<cuda_device>("zero_one_adam", n, zero_one_adam_with(c));
  }
  check_same_bits<cuda_device>("nodes of 1", 2,
                               one_bit_adam_with(onebit::hierarchical{onebit::sign<>{}, 1}));
}

TEST_CASE("cuda trainings: other scales, and none") {
  using l1 = onebit::sign<onebit::l1_scale>;
  check_same_bits<cuda_device>(
      "l1 by chunk", 3,
      one_bit_adam_with(onebit::gather_scatter{l1{onebit::granularity::chunk()}}));
  check_same_bits<cuda_device>(
      "l1 by block", 2,
      one_bit_adam_with(onebit::gather_scatter{l1{onebit::granularity::block(1024)}}));
  check_same_bits<cuda_device>("identity", 2,
                               one_bit_adam_with(onebit::gather_scatter<onebit::identity>{}));
}
