// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/testing/schedule.hpp>
#include <string>
#include <vector>

#include "../../examples/from_the_peak.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

struct dense_model {
  static constexpr bool local = false;
  static onebit::always_dense make() { return {}; }
};
struct freeze_after_12 {
  static constexpr bool local = false;
  static onebit::freeze make() { return {{.after = 12}, 0.999}; }
};
/// A user's: the rate rises for 12 steps.
struct peak_model {
  static from_the_peak make() { return {}; }
  static constexpr bool local = false;
  static float rate(std::size_t step) {
    return 0.01F * static_cast<float>(step < 12 ? step + 1 : 60 - step);
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(schedule_conformance, dense_model, freeze_after_12, peak_model);

TEST_CASE("freeze: after n dense steps") {
  for (const std::uint64_t n : counts{1, 2, 7, 100}) {
    onebit::freeze schedule({.after = n}, 0.999);
    for (std::uint64_t t = 0; t < n; ++t) {
      const bool last = t + 1 == n;
      CHECK(schedule.due_in(t, 0.1F) ==
            onebit::due{.next_needs_outcome = last, .frees_averages = last});
      schedule.done(t, 0.1F);
      CHECK(schedule.frozen(t + 1) == last);
    }
    const onebit::due compressed{.average = false, .exchange = true};
    CHECK(schedule.due_in(n, 0.1F) == compressed);
    schedule.done(n, 0.1F);
    CHECK(schedule.due_in(n + 1, 0.1F) == compressed);
  }
}

TEST_CASE("freeze: says when a v without correction has averaged too little") {
  // it lacks 0.98 of what it averages after 20 steps, and 0.05 after 3000
  onebit::freeze young({.after = 20}, 0.999, 0, false), old({.after = 3000}, 0.999, 0, false);
  CHECK(young.warning() == contains{"has averaged 20 squares without bias correction"});
  CHECK(young.warning() == contains{"7.1"});
  CHECK(young.warning() == contains{"average in 2302 steps or more"});
  CHECK(old.warning().empty());
  CHECK(onebit::freeze({.after = 20}, 0.999, 0, true).warning().empty());
  CHECK(onebit::freeze({.after = 20}, 0.999, 16, false).warning().empty());  // v follows
}

TEST_CASE("freeze: rank 0 warns once, through the trainer's hook, when the dense steps end") {
  for (const bool corrects : {true, false}) {
    std::string heard;
    onebit::run_threads(2, [&](onebit::threads comm) {
      training<> data({100});
      auto o = onebit::one_bit_adam(
          data.groups(), comm,
          {.adam = {.bias_correction = corrects}, .freeze = {.after = 10}, .refreshes = 0});
      if (comm.rank() == 0) o.warn_with([&](const std::string& text) { heard += text; });
      if (comm.rank() == 1) o.warn_with([&](const std::string&) { heard += "rank 1 too"; });
      for (int step = 0; step < 14; ++step) {
        CHECK((comm.rank() != 0 || step > 9 || heard.empty()));
        data.grads[0].assign(100, 1.0F);
        (void)o.step(0.01F);
      }
    });
    CHECK(heard.empty() == corrects);
    CHECK_FALSE(heard == contains{"rank 1"});
    if (!corrects) CHECK(heard == contains{"has averaged 10 squares"});
    CHECK(heard.find("onebit:") == heard.rfind("onebit:"));
  }
}

TEST_CASE("freeze: options out of range are refused, with the number") {
  const auto refused = [](onebit::freeze_options o, double beta2, const char* number) {
    try {
      const onebit::freeze schedule(o, beta2);
    } catch (const onebit::invalid_input& e) {
      return std::string(e.what()).find(number) != std::string::npos;
    }
    return false;
  };
  CHECK(refused({}, 1.0, "beta2 is 1"));
  CHECK(refused({}, -0.25, "-0.25"));
  CHECK(refused({}, std::nan(""), "nan"));
}

TEST_CASE("freeze: refreshes come at gaps that grow with the step number") {
  const auto refreshes = [](onebit::freeze_options o, std::uint64_t n, std::uint64_t steps) {
    onebit::freeze schedule(o, 0.999, n);
    std::vector<std::uint64_t> found;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const onebit::due plan = schedule.due_in(step, 0.1F);
      CHECK(plan.exchange == (step >= o.after));
      if (plan.exchange && plan.average) found.push_back(step);
      schedule.done(step, 0.1F);
    }
    return found;
  };
  CHECK(refreshes({.after = 10}, 0, 1000).empty());
  // never in the step that freezes; then t + t / 4, at least t + 1
  CHECK(refreshes({.after = 10}, 4, 60) ==
        std::vector<std::uint64_t>{12, 15, 18, 22, 27, 33, 41, 51});
  CHECK(refreshes({.after = 2}, 4, 12) == std::vector<std::uint64_t>{3, 4, 5, 6, 7, 8, 10});
  // no gap is longer than half of v's memory, or than 200 steps
  const auto longest = [](double beta2) {
    onebit::freeze schedule({.after = 5}, beta2, 3);
    std::uint64_t last = 5, most = 0;
    for (std::uint64_t step = 0; step < 30000; ++step) {
      const onebit::due plan = schedule.due_in(step, 0.1F);
      if (plan.exchange && plan.average) {
        most = std::max(most, step - last);
        last = step;
      }
      schedule.done(step, 0.1F);
    }
    return most;
  };
  CHECK(longest(0.9999) == 200);
  CHECK(longest(0.999) == 200);
  CHECK(longest(0.99) == 50);
  CHECK(longest(0.95) == 10);
  CHECK(longest(0.0) == 1);
  // a step that was skipped is not done, and asked for again
  onebit::freeze schedule({.after = 2}, 0.999, 4);
  for (std::uint64_t step = 0; step < 3; ++step) schedule.done(step, 0.1F);
  CHECK(schedule.due_in(3, 0.1F).average);
  CHECK(schedule.due_in(3, 0.1F).average);
}
