// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Elements whose first gradient comes after the freeze: rare tokens, experts, layers unfrozen late.
// Where v is refreshed they wake up, and nothing but their gradients moves them.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using onebit_test::on_ranks;
using onebit_test::training;

namespace {

constexpr float lr = 1e-3F;
constexpr std::uint64_t late = 20, all_steps = 60;

/// Of one tensor of 96: the first 32 elements have gradients always, the next from step `late` on,
/// the last never. What each third has moved at most when the second wakes, one step later, and in
/// the end, in units of lr.
struct moves {
  double at_waking[3], after_waking[3], in_the_end[3];
};

template <class Make>
std::vector<moves> train(int n_ranks, const Make& make) {
  return on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data({96});
    data.params[0].assign(96, 0.0F);
    auto groups = data.groups();
    for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
    auto o = make(groups, transport);
    moves result{};
    const auto look = [&](double(&to)[3]) {
      for (std::size_t i = 0; i < 96; ++i) {
        const double x =
            std::fabs(static_cast<double>(data.params[0][i])) / static_cast<double>(lr);
        to[i / 32] = std::max(to[i / 32], x);
      }
    };
    bool woken = false;
    while (o.steps() < all_steps) {
      const std::uint64_t step = o.steps();
      const auto plan = o.schedule().plan(step, lr);
      const bool wakes = step >= late && plan.average_gradient && !woken;
      if (wakes) look(result.at_waking);
      for (std::size_t i = 0; i < 96; ++i) {
        const bool has = i < 32 || (i < 64 && step >= late);
        data.grads[0][i] = has ? 1.0F : 0.0F;
      }
      CHECK_FALSE(o.step(lr).skipped);
      if (wakes) look(result.after_waking);
      woken = woken || wakes;
    }
    look(result.in_the_end);
    return result;
  });
}

template <class Make>
void check_waking(const Make& make) {
  for (const int n_ranks : {2, 3}) {
    CAPTURE(n_ranks);
    for (const moves& m : train(n_ranks, make)) {
      CHECK(m.at_waking[1] == 0);  // noise moves nothing that had no gradient
      // m = 0.1 of a gradient over the root of a v that has seen one of n: 0.1 sqrt(n) corrected;
      // and at most a few times that, since the message's scale is that of the others
      CHECK(m.after_waking[1] > 0.05);
      CHECK(m.after_waking[1] < 5);
      CHECK(m.in_the_end[1] > 0.5 * static_cast<double>(all_steps - late) / 2);
      CHECK(m.in_the_end[2] == 0);
      CHECK(m.in_the_end[0] > 0.9 * static_cast<double>(all_steps));
      CHECK(m.in_the_end[0] < 1.1 * static_cast<double>(all_steps));
    }
  }
}

}  // namespace

TEST_CASE("late elements: a refresh wakes those that have gradients by then, and no others") {
  SUBCASE("1-bit Adam") {
    check_waking([](const auto& g, auto t) {
      return onebit::one_bit_adam(g, t, {.freeze = {.after = 10}, .refreshes = 4});
    });
  }
  SUBCASE("0/1 Adam, every step an exchange") {
    check_waking([](const auto& g, auto t) {
      return onebit::zero_one_adam(g, t, {.schedule = {.kappa = 4, .warmup_steps = all_steps}});
    });
  }
  SUBCASE("0/1 Adam with local steps") {
    check_waking([](const auto& g, auto t) {
      return onebit::zero_one_adam(
          g, t,
          {.schedule = {.kappa = 4, .warmup_steps = 10, .doubling_steps = 10, .max_interval = 4}});
    });
  }
}

TEST_CASE("late elements: without refreshes they stay where they are, as in the papers") {
  const auto still = [](const auto& make) {
    for (const moves& m : train(2, make)) {
      CHECK(m.in_the_end[1] == 0);
      CHECK(m.in_the_end[0] > 0.9 * static_cast<double>(all_steps));
    }
  };
  still([](const auto& g, auto t) {
    return onebit::one_bit_adam(g, t, {.freeze = {.after = 10}, .refreshes = 0});
  });
  still([](const auto& g, auto t) {
    return onebit::zero_one_adam(
        g, t, {.schedule = {.kappa = 4, .warmup_steps = 10, .stop_refreshing = true}});
  });
}

namespace {

/// An embedding of 40 rows of 16, fitted to fixed vectors from noisy samples; the last 12 rows
/// first occur after step 60, in which v is frozen. Mean squared errors of the early and the late
/// rows.
template <class Make>
std::pair<double, double> fit_embedding(int n_ranks, std::uint64_t seed, const Make& make) {
  constexpr std::size_t rows = 40, early = 28, dim = 16;
  constexpr std::uint64_t freeze = 60, steps = 600;
  const auto of_ranks = on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data({rows * dim});
    auto& x = data.params[0];
    auto& g = data.grads[0];
    const auto wanted = [](std::size_t i) { return onebit_test::noise(i * 977 + 5); };
    x.assign(rows * dim, 0.0F);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto o = make(groups, transport);
    while (o.steps() < steps) {
      const std::uint64_t step = o.steps();
      const std::size_t n = step > freeze ? rows : early;
      g.assign(rows * dim, 0.0F);
      for (std::uint64_t k = 0; k < 8; ++k) {
        const std::uint64_t draw =
            ((seed * 1000 + step) * 16 + static_cast<std::uint64_t>(transport.rank())) * 8 + k;
        const float at = (1 + onebit_test::noise(draw * 7919)) / 2 * static_cast<float>(n);
        const std::size_t row = std::min(static_cast<std::size_t>(at), n - 1);
        for (std::size_t j = 0; j < dim; ++j) {
          const std::size_t i = row * dim + j;
          g[i] += (x[i] - wanted(i) + 0.3F * onebit_test::noise(draw * 31 + j * 104729)) / 8;
        }
      }
      const float left = 1 - static_cast<float>(step) / static_cast<float>(steps);
      CHECK_FALSE(o.step(0.02F * left).skipped);
    }
    double error[2] = {0, 0};
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double d = static_cast<double>(x[i]) - static_cast<double>(wanted(i));
      error[i / dim < early ? 0 : 1] += d * d;
    }
    return std::pair(error[0] / (early * dim), error[1] / ((rows - early) * dim));
  });
  return of_ranks[0];
}

}  // namespace

TEST_CASE("late elements: an embedding of which 30% of the rows occur late learns as with Adam") {
  for (const int n_ranks : {2, 4}) {
    CAPTURE(n_ranks);
    double adam = 0, refreshed = 0, zero_one = 0, frozen = 0;
    for (const std::uint64_t seed : {1, 2, 3}) {
      adam += fit_embedding(n_ranks, seed, [](const auto& g, auto t) {
                return onebit::adam(g, t);
              }).second;
      refreshed += fit_embedding(n_ranks, seed, [](const auto& g, auto t) {
                     return onebit::one_bit_adam(g, t, {.freeze = {.after = 60}});
                   }).second;
      zero_one += fit_embedding(n_ranks, seed, [](const auto& g, auto t) {
                    return onebit::zero_one_adam(g, t, {.schedule = {.warmup_steps = 60}});
                  }).second;
      frozen += fit_embedding(n_ranks, seed, [](const auto& g, auto t) {
                  return onebit::one_bit_adam(g, t, {.freeze = {.after = 60}, .refreshes = 0});
                }).second;
    }
    // the loss has the samples' own noise in it: a third of 0.3^2
    const double noise = 3 * 0.09 / 3;
    CAPTURE(adam);
    CAPTURE(refreshed);
    CAPTURE(zero_one);
    CHECK(frozen > 3 * 0.3);  // asleep for ever
    if (n_ranks == 4) {
      CHECK(noise + refreshed < 1.05 * (noise + adam));
      CHECK(noise + zero_one < 1.05 * (noise + adam));
    } else {  // with few samples a row sleeps on for long: until it has occurred, and v is
              // refreshed
      CHECK(noise + refreshed < 1.12 * (noise + adam));
      CHECK(noise + zero_one < 1.15 * (noise + adam));
    }
  }
}

TEST_CASE("late elements: a bad gradient of one that sleeps is seen, in any step") {
  for (const float bad : {NAN, INFINITY, -1e30F}) {
    on_ranks(2, [&](onebit::threads transport) {
      training<> data({96});
      data.params[0].assign(96, 0.0F);
      auto o =
          onebit::one_bit_adam(data.groups(), transport, {.freeze = {.after = 4}, .refreshes = 4});
      for (int attempts = 0; attempts < 30; ++attempts) {
        for (std::size_t i = 0; i < 96; ++i) data.grads[0][i] = i < 32 ? 1.0F : 0.0F;
        const bool poisoned = attempts % 2 == 1;
        if (poisoned && transport.rank() == 1) data.grads[0][50] = bad;
        CHECK(o.step(lr).skipped == poisoned);
      }
      for (std::size_t i = 32; i < 96; ++i) CHECK(data.params[0][i] == 0);
      return 0;
    });
  }
}
