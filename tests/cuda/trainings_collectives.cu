// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainings on a CUDA device have the bits of the host with the other collectives and compressors.

#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

TEST_CASE("cuda trainings: all_gather") {
  each_compressed(onebit::all_gather<onebit::sign<>>{}, [](const char* name, const auto& make) {
    check_same_bits<cuda_device>(name, 2, make);
  });
}

TEST_CASE("cuda trainings: two levels, and the one level that is left of them") {
  // nodes of 2: between them; a node of 2 alone: exact; nodes of 1: as gather_scatter
  each_compressed(onebit::hierarchical{onebit::sign<>{}, 2},
                  [](const char* name, const auto& make) {
                    check_same_bits<cuda_device>(name, 4, make);
                    check_same_bits<cuda_device>(name, 2, make);
                  });
}

TEST_CASE("cuda trainings: other scales, and none") {
  const auto with = [](auto collective) {
    return [collective](const auto& g, auto t, auto b) {
      return onebit::one_bit_adam(g, t, onebit::one_bit_adam_options{.freeze_after = 5}, collective,
                                  b);
    };
  };
  using l1 = onebit::sign<onebit::l1_scale>;
  check_same_bits<cuda_device>("l1 by chunk", 3,
                               with(onebit::gather_scatter{l1{onebit::granularity::chunk()}}));
  check_same_bits<cuda_device>("l1 by block", 2,
                               with(onebit::gather_scatter{l1{onebit::granularity::block(1)}}));
  check_same_bits<cuda_device>("identity", 2, with(onebit::gather_scatter<onebit::identity>{}));
}
