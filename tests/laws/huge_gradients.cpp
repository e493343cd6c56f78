// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A finite gradient so large that squares overflow, now or later, is what NaN is: the step is
// skipped and not a bit of state has changed; in a local step the rank leaves it out.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::uint64_t n_steps = 30;

struct outcome_of_training {
  std::vector<std::uint64_t> skipped;  ///< steps, as this rank was told
  std::string checkpoint;
  std::vector<std::vector<float>> params;
  friend bool operator==(const outcome_of_training&, const outcome_of_training&) = default;
};

/// Trains; the first time that rank 1 comes to step `when`, one of its gradients is `what`.
template <class Make>
std::vector<outcome_of_training> train_with(const Make& make, float what, std::uint64_t when) {
  return on_ranks(3, [&](onebit::threads transport) {
    training data;
    auto o = make(data.groups(), transport);
    outcome_of_training result;
    bool done = false;
    while (o.steps() < n_steps) {
      data.compute_gradients(o.rank(), o.steps());
      const std::uint64_t step = o.steps();
      if (step == when && !done) {
        done = true;
        if (o.rank() == 1) data.grads[2][7] = what;
      }
      if (o.step(0.01F).skipped) result.skipped.push_back(step);
      REQUIRE(result.skipped.size() < 5);
    }
    result.checkpoint = saved(o);
    result.params = data.params;
    return result;
  });
}

template <class Make>
void check_all(const Make& make, const std::vector<std::uint64_t>& steps) {
  for (const std::uint64_t when : steps) {
    CAPTURE(when);
    const auto bad = train_with(make, std::numeric_limits<float>::quiet_NaN(), when);
    for (const float what : {2.9e14F, -1e15F, 1e21F, 1e25F, -3e38F}) {
      CAPTURE(what);
      CHECK((train_with(make, what, when) == bad));
    }
    for (const auto& rank : bad) CHECK(rank.skipped.size() <= 1);
    CHECK(bad[1].skipped.size() == 1);
    // as large as a gradient may be: all steps are kept, and what it leaves stops none
    for (const auto& rank : train_with(make, 2.8e14F, when)) {
      CHECK(rank.skipped.empty());
      for (const auto& p : rank.params) {
        CHECK(std::all_of(p.begin(), p.end(), [](float x) { return std::isfinite(x); }));
      }
    }
  }
}

}  // namespace

TEST_CASE("huge gradients: 1-bit Adam") {
  check_all(
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = 10}, .refreshes = 8});
      },
      {0, 3, 9, 10, 11, 20});
}

TEST_CASE("huge gradients: clipped") {
  check_all(
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(
            g, t, {.adam = {.max_grad_norm = 1}, .freeze = {.after = 10}, .refreshes = 8});
      },
      {3, 10, 20});
  check_all(
      [](const auto& g, auto t) {
        return onebit::zero_one_adam(
            g, t,
            {.adam = {.max_grad_norm = 1},
             .schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 4, .max_interval = 4}});
      },
      {2, 13, 14, 15});
}

TEST_CASE("huge gradients: LAMB and 1-bit LAMB") {
  check_all([](const auto& g, auto t) { return onebit::lamb(g, t); }, {3});
  check_all(
      [](const auto& g, auto t) { return onebit::one_bit_lamb(g, t, {.freeze = {.after = 10}}); },
      {3, 9, 10, 20});
}

TEST_CASE("huge gradients: 0/1 Adam, local steps too, and DeepSpeed's") {
  check_all(
      [](const auto& g, auto t) {
        return onebit::zero_one_adam(
            g, t,
            {.schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 4, .max_interval = 4}});
      },
      {0, 2, 11, 13, 14, 15, 20});
  check_all(
      [](const auto& g, auto t) {
        return deepspeed::zero_one_adam(g, t,
                                        deepspeed::zero_one_options{.var_freeze_step = 9,
                                                                    .var_update_scaler = 3,
                                                                    .local_step_scaler = 6,
                                                                    .local_step_clipper = 4});
      },
      {3, 15, 17, 18, 19});
}

TEST_CASE("1-bit LAMB: a tensor without gradients before the freeze moves no other tensor") {
  // After 20 steps tensor 1 has none for `gap` steps; they come back 20 steps after the freeze.
  const auto farthest = [](std::uint64_t gap, float size_of_second) {
    return on_ranks(2, [&](onebit::threads transport) {
      training<> data({5000, 500});
      for (auto& p : data.params) p.assign(p.size(), 0.5F);
      auto groups = data.groups();
      for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
      auto o = onebit::one_bit_lamb(groups, transport, {.freeze = {.after = 20 + gap}});
      while (o.steps() < gap + 220) {
        const std::uint64_t step = o.steps();
        data.compute_gradients(o.rank(), step);
        for (auto& tensor : data.grads) {
          for (float& g : tensor) g *= &tensor == &data.grads[1] ? 0.1F * size_of_second : 0.1F;
        }
        if (step >= 20 && step < gap + 40) data.grads[1].assign(500, 0.0F);
        CHECK_FALSE(o.step(0.001F).skipped);
      }
      float far = 0;
      for (const float x : data.params[0]) far = std::max(far, std::fabs(x - 0.5F));
      return far;
    })[0];
  };
  for (const float size : {1e-3F, 1.0F, 1e3F}) {
    CAPTURE(size);
    const float usual = farthest(0, size);
    for (const std::uint64_t gap : cases({50, 300, 1000}, {100, 200, 400, 550})) {
      CAPTURE(gap);
      // longer trainings go further, but by nothing like the orders of magnitude of a blow-up
      CHECK(farthest(gap, size) < 5 * usual);
    }
  }
}
