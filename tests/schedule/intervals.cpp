// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/testing/schedule.hpp>

#include "../golden/deepspeed_zero_one.hpp"

using namespace onebit::testing;

namespace {

struct intervals_by_steps {
  static constexpr bool local = true;
  static onebit::intervals make() {
    return onebit::intervals({.kappa = 2, .warmup_steps = 20, .doubling_steps = 9});
  }
};
struct intervals_by_rate {
  static constexpr bool local = true;
  static onebit::intervals make() {
    return onebit::intervals({.kappa = 1, .warmup_steps = 7, .also_every = 5});
  }
};
struct deepspeeds {  // from outside of the library
  static constexpr bool local = true;
  static deepspeed::zero_one_schedule make() {
    return deepspeed::zero_one_schedule({.var_freeze_step = 25,
                                         .var_update_scaler = 3,
                                         .local_step_scaler = 4,
                                         .local_step_clipper = 8});
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(schedule_conformance, intervals_by_steps, intervals_by_rate, deepspeeds);

TEST_CASE("intervals: the fields of a plan") {
  onebit::intervals s({.kappa = 1,
                       .warmup_steps = 6,
                       .doubling_steps = 4,
                       .max_interval = 2,
                       .also_every = 0,
                       .stop_refreshing = true});
  // refreshes at 0, 1, 3, and not at 7, after the warm-up; exchanges in every step, from 10 on in
  // every second
  for (std::uint64_t step = 0; step < 14; ++step) {
    CAPTURE(step);
    const bool refresh = step == 0 || step == 1 || step == 3;
    const bool exchanges = step < 10 || step % 2 == 0;
    const onebit::due plan = s.due_in(step, 0.1F);
    CHECK(plan ==
          onebit::due{.average = refresh, .exchange = exchanges, .frees_averages = step == 5});
    CHECK(plan.nothing() == (!refresh && !exchanges));
    s.done(step, 0.1F);
  }
}

TEST_CASE("intervals: options out of range are refused, with the numbers") {
  const auto refused = [](onebit::intervals_options o, const char* words) {
    try {
      const onebit::intervals schedule(o);
    } catch (const onebit::invalid_input& e) {
      return std::string(e.what()).find(words) != std::string::npos;
    }
    return false;
  };
  CHECK(refused({.after = 0}, "intervals_options: after is 0, refreshes 3"));
  CHECK(refused({.refreshes = 0}, "after is 5, refreshes 0"));
  CHECK(refused({.warmup_steps = 3, .max_interval = 0}, "max_interval is 0"));
  CHECK(refused({.stop_refreshing = true}, "stop_refreshing needs warmup_steps"));
  CHECK_FALSE(refused({}, ""));
  CHECK_FALSE(refused({.after = 0, .refreshes = 0, .kappa = 1}, ""));
}

TEST_CASE("intervals: dense steps, refreshes at growing gaps, exchanges ever more rarely") {
  onebit::intervals s({.doubling_steps = 8});
  onebit::freeze of_one_bit_adam({}, 0.999, 3);
  std::vector<std::uint64_t> refreshes, wanted, exchanges;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    const onebit::due plan = s.due_in(step, 0.1F), other = of_one_bit_adam.due_in(step, 0.1F);
    if (step < 5) CHECK((plan.average && other.average));
    if (step >= 5 && plan.average) refreshes.push_back(step);
    if (step >= 5 && other.average) wanted.push_back(step);
    if (plan.exchange && step < 60) exchanges.push_back(step);
    s.done(step, 0.1F);
    of_one_bit_adam.done(step, 0.1F);
  }
  CHECK(refreshes == wanted);
  CHECK(exchanges == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24,
                                                32, 40, 48, 56});
}

TEST_CASE("always_dense, and a schedule of a function") {
  const onebit::always_dense dense;
  CHECK(dense.due_in(7, 0.1F) == onebit::due{});
  static_assert(!onebit::always_dense::compresses);
  const onebit::custom_schedule mine([](std::uint64_t step, float lr) {
    return onebit::due{.average = step<2, .exchange = lr> 0};
  });
  static_assert(onebit::Schedule<std::remove_const_t<decltype(mine)>>);
  CHECK(mine.due_in(1, 0.5F) == onebit::due{.average = true, .exchange = true});
  CHECK(mine.due_in(2, 0.0F) == onebit::due{.average = false, .exchange = false});
}

TEST_CASE("intervals: the end of the warm-up says what a v without correction lacks") {
  const onebit::intervals_options options{.kappa = 2, .warmup_steps = 20, .stop_refreshing = true};
  const auto warned = [&](double lacking) {
    onebit::intervals s(options, lacking, lacking == 0);
    for (std::uint64_t step = 0; step < 20; ++step) {
      CHECK(s.due_in(step, 1).next_needs_outcome == (lacking > 0 && step == 19));
      s.done(step, 1);
    }
    return s.warning();
  };
  CHECK(warned(0).empty());
  CHECK(warned(0.5).empty());              // a v that forgets: 0.5^8
  const std::string text = warned(0.999);  // at 0, 1, 2, 4, 6, 10, 14
  CHECK(text.find("v has averaged 7 squares without bias correction, which is too few: v lacks a "
                  "fraction 0.993") != std::string::npos);
  CHECK(text.find("11.97 times too large") != std::string::npos);
}
