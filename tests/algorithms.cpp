// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The defaults of the pairings, and what a user's own compressor may be in them.

#include <doctest/doctest.h>

#include <cstring>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

/// Halves: the upper 16 bits of each float.
struct halves {
  [[nodiscard]] std::size_t tile_bytes(std::size_t n) const { return 2 * n; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(out + 2 * i, reinterpret_cast<const std::byte*>(values + i) + 2, 2);
    }
  }
  void decode(const std::byte* in, std::size_t n, float* values) const {
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = 0;
      std::memcpy(reinterpret_cast<std::byte*>(values + i) + 2, in + 2 * i, 2);
    }
  }
};

/// The same with a header of so many bytes in each tile.
struct headed : halves {
  std::size_t header = 0;
  [[nodiscard]] std::size_t tile_bytes(std::size_t n) const { return 2 * n + header; }
};

onebit::one_bit_adam_options frozen_after(std::uint64_t n) {
  onebit::one_bit_adam_options o;
  o.freeze_after = n;
  return o;
}

template <class Collective>
void check_custom(const Collective& collective) {
  for (const int n : {1, 2, 3}) {
    const auto digests = on_ranks(n, [&](onebit::threads t) {
      training<> data({10000, 31, 1, 0, 4097});
      auto optimizer =
          onebit::one_bit_adam(data.groups(), t, frozen_after(2), collective, onebit::host(2));
      for (int i = 0; i < 6; ++i) CHECK_FALSE(train(optimizer, data).skipped);

      // A non-finite gradient is seen through any compressor.
      const auto before = saved(optimizer);
      data.compute_gradients(t.rank(), 6);
      if (t.rank() == n - 1) data.grads[4][4096] = std::numeric_limits<float>::quiet_NaN();
      CHECK(optimizer.step(0.01F).skipped);
      CHECK(saved(optimizer) == before);
      return data.digest();
    });
    for (const auto d : digests) CHECK(d == digests[0]);
  }
}

}  // namespace

TEST_CASE("a tile compressor of the user's own, in both collectives") {
  check_custom(onebit::gather_scatter{halves{}});
  check_custom(onebit::all_gather{halves{}});
}

TEST_CASE("a compressor without a name is told by what it sends: ranks") {
  const auto told = on_ranks(3, [](onebit::threads t) {
    training<> data;
    headed codec;
    codec.header = t.rank() == 2 ? 8 : 4;
    return thrown<onebit::rank_mismatch>([&] {
      (void)onebit::one_bit_adam(data.groups(), t, frozen_after(2), onebit::gather_scatter{codec});
    });
  });
  for (const auto& text : told) CHECK(text == contains{"rank 2 has messages of "});
}

TEST_CASE("a compressor without a name is told by what it sends: checkpoints") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    headed small, large;
    small.header = 4;
    large.header = 8;
    auto a = onebit::one_bit_adam(data.groups(), t, frozen_after(2), onebit::gather_scatter{small});
    for (int i = 0; i < 4; ++i) (void)train(a, data);
    auto b = onebit::one_bit_adam(data.groups(), t, frozen_after(2), onebit::gather_scatter{large});
    const auto before = saved(b);
    std::istringstream in(saved(a));
    CHECK(thrown<onebit::checkpoint_error>([&] { b.load(in); }) ==
          contains{"it has messages of bytes: "});
    CHECK(saved(b) == before);
  });
}

TEST_CASE("with one rank 1-bit Adam is Adam with v frozen, whatever the collective") {
  const auto run = [](const auto& collective) {
    return on_ranks(1, [&](onebit::threads t) {
      training<> data;
      auto optimizer = onebit::one_bit_adam(data.groups(), t, frozen_after(3), collective);
      for (int i = 0; i < 8; ++i) (void)train(optimizer, data);
      return data.digest();
    })[0];
  };
  const auto expected = run(onebit::gather_scatter<onebit::identity>{});
  CHECK(run(onebit::gather_scatter<onebit::sign<>>{}) == expected);
  CHECK(run(onebit::all_gather<onebit::sign<>>{}) == expected);
  CHECK(run(onebit::all_gather{halves{}}) == expected);
}
