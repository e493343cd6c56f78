// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What `inspect` tells of a run is what its messages and residuals are.

#include <doctest/doctest.h>

#include <cmath>
#include <onebit/any_optimizer.hpp>
#include <onebit/backend/lanes.hpp>
#include <vector>

#include "../support/tile_codecs.hpp"
#include "../support/training.hpp"
#include "compositions.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

TEST_CASE("inspect: norms and flips, against values read one by one") {
  const auto check = [](const auto& make, bool keeps, bool messages, int w) {
    on_ranks(w, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      CHECK(o.inspect().has_value() == !keeps);  // 0/1 Adam exchanges from the first step on
      for (int i = 0; i < 9; ++i) (void)train(o, data);
      auto& x = o.exchange();
      auto& s = x.sender();
      double e_sum = 0, y_sum = 0, n = 0, flips = 0;
      const auto residual = s.residual(o.live());
      const auto agreed = x.agreed(o.live());
      for (auto k = x.carried_tiles().begin; k < x.carried_tiles().end; ++k) {
        const onebit::tile& tile = s.axis().tiles()[k];
        const auto e_at = residual.template at<onebit::portable_lanes>(tile, k);
        const auto y_at = s.carried().template at<onebit::portable_lanes>(tile);
        for (std::uint32_t i = 0; i < tile.n; ++i) {
          const std::uint32_t bits = o.live().words[tile.word + i / 32];
          if (((bits >> (i % 32)) & 1U) == 0) continue;
          const auto e = static_cast<double>(e_at(i / 32).lane[i % 32]);
          const float y = y_at.load(i / 32).lane[i % 32];
          e_sum += e * e;
          y_sum += static_cast<double>(y) * static_cast<double>(y);
          ++n;
          if (!keeps) continue;
          const auto a = agreed.template at<onebit::portable_lanes>(tile, k)(i / 32);
          flips += (a.lane[i % 32] >= 0) != (y >= 0) ? 1 : 0;
        }
      }
      const auto told = o.inspect();
      REQUIRE(told.has_value());
      CHECK(told->residual_norm == doctest::Approx(std::sqrt(e_sum)).epsilon(1e-5));
      CHECK(told->message_norm.has_value() == messages);
      if (messages) CHECK(*told->message_norm == doctest::Approx(std::sqrt(y_sum)).epsilon(1e-5));
      CHECK(told->compression_error().has_value() == messages);
      CHECK(told->sign_flips.has_value() == keeps);
      if (keeps) {
        CHECK(*told->sign_flips == doctest::Approx(flips / n).epsilon(1e-12));
        CHECK(*told->sign_flips > 0.02);
        CHECK(*told->sign_flips < 0.5);
      }
      return 0;
    });
  };
  SUBCASE("gather-scatter") { check(scattered, true, true, 3); }
  SUBCASE("residuals in 8 bits") { check(compact, true, true, 3); }
  SUBCASE("buckets") { check(bucketed, true, true, 2); }
  SUBCASE("all-gather") { check(gathered, true, true, 2); }
  SUBCASE("two levels") { check(by_node, true, true, 4); }
  SUBCASE("0/1 Adam") { check(skipping, false, true, 2); }
  SUBCASE("a compressor of tiles") {
    check(
        [](auto& data, auto t) {
          return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                                      onebit::gather_scatter<ternary>{});
        },
        true, false, 2);
  }
}

TEST_CASE("inspect: nothing where nothing is compressed, or owed") {
  on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto dense = plain(data, t);
    auto votes = voting(data, t);
    onebit::any_optimizer alone = scattered(data, t.split(t.rank(), 0));
    for (int i = 0; i < 5; ++i) (void)train(dense, data), (void)train(votes, data);
    for (int i = 0; i < 5; ++i) (void)train(alone, data);
    CHECK_FALSE(dense.inspect().has_value());
    CHECK_FALSE(votes.inspect().has_value());
    CHECK_FALSE(alone.inspect().has_value());
    dense.begin(0.01F);
    CHECK_THROWS_AS((void)dense.inspect(), onebit::invalid_input);
    (void)dense.step(0.01F);
    return 0;
  });
}
