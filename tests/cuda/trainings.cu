// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole trainings on a CUDA device have the bits of the host, with 1 and 3 ranks on one device;
// a gradient that is not finite changes nothing, and settle() tells. What deferred/trainings.cpp
// tests on emulated warps, on a device.

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

TEST_CASE("cuda trainings: every algorithm has the bits of the host") {
  // One function for both, since each is compiled for both backends.
  const auto check = [](std::vector<int> ranks) {
    return [ranks](const char* name, const auto& make) {
      for (const int n : ranks) check_same_bits<cuda_device>(name, n, make);
    };
  };
  each_algorithm(check({1, 3}));
  each_algorithm(check({3}), 1000);  // in buckets
}

TEST_CASE("cuda trainings: a bad gradient changes nothing, and settle() tells") {
  // After the freeze the schedule does not count steps any more, and the device's goes on as the
  // host's: before it a skipped step counts on a deferred backend.
  const auto lamb = [](const auto& g, auto t, auto b) {
    return onebit::one_bit_lamb(g, t, onebit::papers::one_bit_lamb_options(4),
                                onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  for (const std::vector<std::uint64_t>& bad :
       {std::vector<std::uint64_t>{4}, {5}, {8, 9}, {12, 14, 16}}) {
    CAPTURE(bad[0]);
    check_same_bits<cuda_device>("one_bit_lamb", 2, lamb, {.calls = 20, .bad = bad}, false, true);
    check_same_bits<cuda_device>("one_bit_lamb", 3, lamb, {.calls = 20, .bad = bad});
  }
  const auto exchanges = [](const auto& g, auto t, auto b) {
    return onebit::zero_one_adam(
        g, t, onebit::zero_one_adam_options{.schedule = {.kappa = 16, .warmup_steps = 50}},
        onebit::gather_scatter<onebit::sign<>>{}, b);
  };
  check_same_bits<cuda_device>("zero_one_adam", 2, exchanges, {.calls = 9, .bad = {0, 3, 6}}, false,
                               true);

  // In the warm-up: all ranks agree, and the parameters stay.
  const auto warm_up = [&](auto transport, cuda_device& device) {
    const script s{.calls = 12, .bad = {0, 2, 3}};
    model<cuda_device> data(device, transport.rank(), transport.size(), s);
    auto o = lamb(data.groups(), transport, device.backend());
    const trajectory t = steps(o, data, true);
    CHECK(t[3] == t[1]);
    CHECK(t[1] != t[0]);
    CHECK(o.n_skipped() == 3);
    return t;
  };
  const auto ranks = on<cuda_device>(2, warm_up);
  CHECK(ranks[0] == ranks[1]);
}
