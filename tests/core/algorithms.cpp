// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The defaults of the pairings, and what a user's own compressor may be in them.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::frozen_after;
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
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
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
          contains{"saved with messages of bytes: "});
    CHECK(saved(b) == before);
  });
}

namespace {

/// The parameters after some steps on n ranks, all of them dense.
template <class Make>
std::vector<std::uint64_t> trained(int n, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto optimizer = make(data.groups(), t);
    const auto bytes = optimizer.state_bytes();
    for (int i = 0; i < 8; ++i) {
      const auto report = train(optimizer, data);
      CHECK_FALSE(report.skipped);
      CHECK(report.phase == onebit::phase::dense);
    }
    CHECK(optimizer.state_bytes() == bytes);  // no memory for what never travels
    return data.digest();
  });
}

/// Where `collective` has nobody to talk to, the algorithms are the uncompressed ones.
template <class Collective>
void check_uncompressed(int n, const Collective& collective) {
  CAPTURE(collective.name());
  CAPTURE(n);
  const auto adam = trained(n, [](const auto& g, auto t) { return onebit::adam(g, t); });
  CHECK(trained(n, [&](const auto& g, auto t) {
          return onebit::one_bit_adam(g, t, frozen_after(3), collective);
        }) == adam);
  CHECK(trained(n, [&](const auto& g, auto t) {
          return onebit::one_bit_lamb(g, t, {.lamb = {}, .freeze = {.after = 3}}, collective);
        }) == trained(n, [](const auto& g, auto t) { return onebit::lamb(g, t); }));
  CHECK(trained(n, [&](const auto& g, auto t) {
          const onebit::intervals_options when{
              .kappa = 1, .warmup_steps = 3, .doubling_steps = 1, .max_interval = 4};
          return onebit::zero_one_adam(g, t, {.adam = {}, .schedule = when}, collective);
        }) == adam);
  CHECK(trained(n, [&](const auto& g, auto t) {
          return deepspeed::zero_one_adam(g, t, {.var_freeze_step = 4}, collective);
        }) == trained(n, [](const auto& g, auto t) {
          return onebit::adam(g, t, {.bias_correction = false});
        }));
}

}  // namespace

TEST_CASE("where nothing would travel every algorithm is the uncompressed one, bit for bit") {
  check_uncompressed(1, onebit::gather_scatter<onebit::identity>{});
  check_uncompressed(1, onebit::gather_scatter<onebit::sign<>>{});
  check_uncompressed(1, onebit::all_gather<onebit::sign<>>{});
  check_uncompressed(1, onebit::hierarchical<onebit::sign<>>{{}, 1});
  check_uncompressed(3, onebit::hierarchical<onebit::sign<>>{{}, 3});
  CHECK(trained(1, [](const auto& g, auto t) {
          return onebit::one_bit_adam(g, t, frozen_after(3), onebit::all_gather{halves{}});
        }) == trained(1, [](const auto& g, auto t) { return onebit::adam(g, t); }));
}

TEST_CASE("two ranks that have the same gradients are one: v frozen, whatever the collective") {
  const auto run = [](const auto& collective) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto optimizer = onebit::one_bit_adam(data.groups(), t, frozen_after(3), collective);
      for (std::uint64_t i = 0; i < 8; ++i) {
        data.compute_gradients(0, i);
        CHECK(optimizer.step(0.01F).phase ==
              (i < 3 ? onebit::phase::dense : onebit::phase::compressed));
      }
      return data.digest();
    })[0];
  };
  const auto expected = run(onebit::gather_scatter<onebit::identity>{});
  CHECK(run(onebit::all_gather<onebit::identity>{}) == expected);
  CHECK(run(onebit::hierarchical<onebit::identity>{{}, 1}) == expected);
}

// An option that would do nothing does not compile.
template <class Options>
concept has_max_step = requires(Options o) {
  o.max_step;
};
static_assert(has_max_step<onebit::one_bit_adam_options> && !has_max_step<onebit::adam_options> &&
              !has_max_step<onebit::lamb_options>);
