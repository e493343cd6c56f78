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
    bool woken = false, moved = false;
    while (o.steps() < all_steps) {
      const std::uint64_t step = o.steps();
      const auto plan = o.schedule().due_in(step, lr);
      const bool wakes = step > late && plan.average && !woken;
      if (wakes) look(result.at_waking);
      for (std::size_t i = 0; i < 96; ++i) {
        const bool has = i < 32 || (i < 64 && step >= late);
        data.grads[0][i] = has ? 1.0F : 0.0F;
      }
      CHECK_FALSE(o.step(lr).skipped);
      if (woken && !moved) look(result.after_waking);  // in the step after the refresh
      moved = woken;
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
      // momentum repeats a residual, at most max_step, 1 / (1 - beta1) = 10 times
      CHECK(m.in_the_end[0] < static_cast<double>(all_steps) + 20);
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

namespace {

/// How far element 0 goes, in learning rates, in the 40 steps from its first large gradient on,
/// which comes after 60 steps of gradients a thousand times smaller, of changing signs.
template <class Make>
double way_after_a_spike(const Make& make) {
  constexpr std::uint64_t spike = 60, steps = 100;
  const auto ways = on_ranks(2, [&](onebit::threads transport) {
    training<> data({32});
    data.params[0].assign(32, 0.0F);
    auto groups = data.groups();
    for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
    auto o = make(groups, transport);
    float before = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < 32; ++i) {
        data.grads[0][i] = (step + i) % 2 == 0 ? 1e-3F : -1e-3F;
      }
      if (step == spike) {
        before = data.params[0][0];
        data.grads[0][0] = 1;
      }
      REQUIRE_FALSE(o.step(lr).skipped);
    }
    return std::fabs(static_cast<double>(data.params[0][0] - before)) / static_cast<double>(lr);
  });
  CHECK(ways[0] == ways[1]);
  return ways[0];
}

}  // namespace

TEST_CASE("late elements: the first large gradient of one moves it no further than Adam does") {
  const double adam = way_after_a_spike(
      [](const auto& groups, auto transport) { return onebit::adam(groups, transport, {}); });
  CHECK(adam > 4);  // sqrt(61) of one gradient in 61, less what v forgets of the others
  // A v that has not seen the gradient makes a thousand of it.
  const auto check = [&](const char* name, const auto& make) {
    INFO(std::string(name));
    const double way = way_after_a_spike(make);
    CHECK(way < 1.5 * adam);
    // not as far: a refresh makes the residual, which has most of it, and the momentum smaller by
    // the root, and comes in the very next step: the way of one step, a third of a learning rate
    CHECK(way > 0.3);
  };
  check("1-bit Adam, exact messages", [](const auto& groups, auto transport) {
    return onebit::one_bit_adam(groups, transport, {}, onebit::gather_scatter<onebit::identity>{});
  });
  check("1-bit Adam", [](const auto& groups, auto transport) {
    return onebit::one_bit_adam(groups, transport, {});
  });
  check("0/1 Adam", [](const auto& groups, auto transport) {
    return onebit::zero_one_adam(groups, transport,
                                 {.schedule = {.warmup_steps = 20, .max_interval = 1}});
  });
}

namespace {

/// How far elements go on average, in learning rates, where each has gradients on one rank of 8.
template <class Make>
double way_of_one_rank_each(const Make& make) {
  constexpr int n_ranks = 8;
  const auto ways = on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data({256});
    data.params[0].assign(256, 0.0F);
    auto groups = data.groups();
    for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
    auto o = make(groups, transport);
    for (std::uint64_t step = 0; step < 200; ++step) {
      for (std::size_t i = 0; i < 256; ++i) {
        const bool has = i % n_ranks == static_cast<std::size_t>(transport.rank());
        data.grads[0][i] = has ? -1.0F : 0.0F;
      }
      REQUIRE_FALSE(o.step(lr).skipped);
    }
    double sum = 0;
    for (const float x : data.params[0]) sum += static_cast<double>(x);
    return sum / 256 / static_cast<double>(lr);
  });
  return ways[0];
}

}  // namespace

TEST_CASE("late elements: those that have gradients on one rank alone go as far as with Adam") {
  // beta2 0.8: a mean is at most 2.2 times the root of v, a rank's gradient 8 times
  const double adam = way_of_one_rank_each([](const auto& groups, auto transport) {
    return onebit::adam(groups, transport, {.beta2 = 0.8});
  });
  CHECK(adam == doctest::Approx(200).epsilon(0.01));
  CHECK(way_of_one_rank_each([](const auto& groups, auto transport) {
          return onebit::one_bit_adam(groups, transport, {.adam = {.beta2 = 0.8}});
        }) == doctest::Approx(adam).epsilon(0.05));
  CHECK(way_of_one_rank_each([](const auto& groups, auto transport) {
          return onebit::zero_one_adam(
              groups, transport,
              {.adam = {.beta2 = 0.8}, .schedule = {.warmup_steps = 20, .max_interval = 1}});
        }) == doctest::Approx(adam).epsilon(0.05));
}
