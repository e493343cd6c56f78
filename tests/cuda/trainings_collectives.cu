// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainings on a CUDA device have the bits of the host with the other collectives and compressors.

#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressor/quantized.hpp>

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
  check_same_bits<cuda_device>("4 bits", 2,
                               one_bit_adam_with(onebit::gather_scatter<onebit::four_bits>{}));
}

namespace {

/// What each rank has after each call of a compressed mean by itself; call 3 is skipped.
template <class Device, class C>
auto means_on(int n, const C& collective) {
  return on<Device>(n, [&](auto transport, Device& device) {
    std::size_t total = 0;
    for (const std::size_t size : odd_sizes) total += size;
    area<float, Device> data(total);
    auto memory = device.memory();
    auto backend = device.backend();
    onebit::compressed_allreduce<C, float, decltype(backend)> allreduce(transport, odd_sizes,
                                                                        collective, backend);
    std::vector<std::span<float>> spans;
    std::size_t first = 0;
    for (const std::size_t size : odd_sizes) {
      spans.emplace_back(data.data() + first, size);
      first += size;
    }
    std::vector<float> here(total), all;
    for (std::uint64_t call = 0; call < 8; ++call) {
      const auto rank = static_cast<std::uint64_t>(transport.rank());
      for (std::size_t i = 0; i < total; ++i) here[i] = noise((call * 16 + rank) * 1000003 + i);
      if (call == 3 && rank == 1) here[77] = std::numeric_limits<float>::infinity();
      memory.copy(data.data(), here.data(), data.bytes());
      if (call % 2 == 0) {
        allreduce.mean(spans);
      } else {
        allreduce.start(spans);
        allreduce.wait();
      }
      CHECK((allreduce.settle() == onebit::outcome::skipped) == (call == 3));
      memory.copy(here.data(), data.data(), data.bytes());
      memory.wait();
      all.insert(all.end(), here.begin(), here.end());
    }
    return all;
  });
}

}  // namespace

TEST_CASE("cuda: compressed_allreduce has the bits of the host") {
  const auto check = [](const char* name, int n, const auto& collective) {
    CAPTURE(name);
    const auto host = means_on<host_device>(n, collective);
    const auto device = means_on<cuda_device>(n, collective);
    const bool same = host == device;
    CHECK(same);
  };
  check("gather_scatter", 3, onebit::gather_scatter<onebit::sign<>>{});
  check("buckets", 2, onebit::gather_scatter{onebit::sign<>{}, 2048});
  check("two levels", 4, onebit::hierarchical{onebit::sign<>{}, 2});
  check("2 bits", 3, onebit::gather_scatter<onebit::two_bits>{});
}
