// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Moments taken over from another optimizer.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

TEST_CASE("start_from: moments of another Adam, and its step number") {
  constexpr std::uint64_t at = 20;
  const auto whole = [](int n_ranks, const auto& make, bool handed) {
    return on_ranks(n_ranks, [&](onebit::threads t) {
      training<> data;
      auto first = make(data.groups(), t);
      const auto train_to = [&](auto& o, std::uint64_t from, std::uint64_t to) {
        for (std::uint64_t s = from; s < to; ++s) {
          data.compute_gradients(t.rank(), s);
          CHECK_FALSE(o.step(0.01F).skipped);
        }
      };
      train_to(first, 0, at);
      if (!handed) {
        train_to(first, at, 2 * at);
        return data.params;
      }
      // of the flat axis: every tensor starts at a multiple of 32
      std::vector<onebit::given_moments> moments;
      std::size_t begin = 0;
      for (const auto& p : data.params) {
        moments.push_back({{first.rule().momentum() + begin, p.size()},
                           {first.rule().variance() + begin, p.size()}});
        begin += (p.size() + 31) / 32 * 32;
      }
      auto second = make(data.groups(), t);
      second.start_from(moments, at);
      CHECK(thrown<onebit::invalid_input>([&] { first.start_from(moments, at); }) ==
            contains{"before the first step"});
      const auto m = moments[2].m;
      moments[2].m = m.first(7);
      CHECK(thrown<onebit::invalid_input>([&] { second.start_from(moments, at); }) ==
            contains{"tensor 2 has 5000 parameters, but 7 of m"});
      moments.pop_back();
      CHECK(thrown<onebit::invalid_input>([&] { second.start_from(moments, at); }) ==
            contains{"5 tensors for 6"});
      train_to(second, at, 2 * at);
      return data.params;
    })[0];
  };
  const auto check = [&](const auto& make) {
    for (const int n_ranks : {1, 2}) {
      const auto a = whole(n_ranks, make, false), b = whole(n_ranks, make, true);
      for (std::size_t k = 0; k < a.size(); ++k) {
        for (std::size_t i = 0; i < a[k].size(); ++i) {
          // beta^20 is a power here and a product there, right to 1e-15: corrections differ at most
          // in the last bit of a float, for 20 steps of 0.01
          REQUIRE(std::fabs(a[k][i] - b[k][i]) < 20 * 0.01F * 2e-7F + 5e-7F);
        }
      }
    }
  };
  check([](const auto& g, auto t) { return onebit::adam(g, t); });
  check(
      [](const auto& g, auto t) { return onebit::one_bit_adam(g, t, {.freeze = {.after = 100}}); });
  check([](const auto& g, auto t) { return onebit::adam(g, t, {.bias_correction = false}); });
  check([](const auto& g, auto t) { return onebit::adam(g, t, {.beta1 = 0}); });
  check([](const auto& g, auto t) { return onebit::lamb(g, t, {.beta2 = 0}); });
}
