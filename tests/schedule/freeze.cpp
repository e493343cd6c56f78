// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "../../examples/from_the_peak.hpp"
#include "../conformance/schedule.hpp"
#include "../support/training.hpp"

using namespace onebit_test;
using schedule_suite::operator==;

namespace {

struct dense_model {
  static constexpr bool local = false;
  static onebit::always_dense make() { return {}; }
};
struct freeze_after_12 {
  static constexpr bool local = false;
  static onebit::freeze make() { return {{.after = 12}, 0.999}; }
};
struct freeze_by_itself {  // D = 8
  static constexpr bool local = false;
  static onebit::freeze make() { return {{.after = 0, .ratio = 0.9}, 0.875}; }
};

/// The rule as it is written down, with the whole history kept. The step after which it freezes.
std::size_t naive_freeze(const std::vector<double>& norms, double beta2, double ratio,
                         std::size_t refreshes = 0) {
  const auto window = static_cast<std::size_t>(std::lround(1 / (1 - beta2)));
  for (std::size_t t = 15; t < norms.size(); ++t) {
    const std::size_t ago =
        std::min(window, std::max<std::size_t>(1, refreshes > 0 ? t / refreshes : (t + 1) / 2));
    if (t < ago || norms[t] <= 0 || norms[t - ago] <= 0) continue;
    const double now = norms[t], then = norms[t - ago];
    if (std::min(now, then) / std::max(now, then) >= ratio) return t;
  }
  return none;
}

std::size_t freeze_step(onebit::freeze schedule, const std::vector<double>& norms) {
  std::size_t found = none;
  for (std::size_t t = 0; t < norms.size(); ++t) {
    const onebit::step_plan plan = schedule.plan(t, 0.1F);
    CHECK(plan.needs_variance_norm == (found == none));
    CHECK(plan.may_end_warm_up == (found == none));
    CHECK(plan.frozen == (found != none));
    CHECK(schedule.frozen(t) == plan.frozen);
    schedule.done(t, 0.1F, norms[t]);
    if (found == none && schedule.frozen(t + 1)) found = t;
  }
  return found;
}

/// A user's: the rate rises for 12 steps.
struct peak_model {
  static from_the_peak make() { return {}; }
  static constexpr bool local = false;
  static float rate(std::size_t step) {
    return 0.01F * static_cast<float>(step < 12 ? step + 1 : 60 - step);
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(schedule_conformance, dense_model, freeze_after_12, freeze_by_itself,
                          peak_model);

TEST_CASE("freeze: after n warm-up steps, whatever the variance") {
  for (const std::uint64_t n : counts{1, 2, 7, 100}) {
    onebit::freeze schedule({.after = n}, 0.999);
    for (std::uint64_t t = 0; t < n; ++t) {
      const bool last = t + 1 == n;
      // looks at v at the end, and in the middle
      const bool looks = last || t + n / 2 + 1 == n;
      CHECK(schedule.plan(t, 0.1F) == onebit::step_plan{.needs_variance_norm = looks,
                                                        .may_end_warm_up = last,
                                                        .last_average = last});
      schedule.done(t, 0.1F, 1e9 * static_cast<double>(t));
      CHECK(schedule.frozen(t + 1) == last);
    }
    const onebit::step_plan compressed{.average_gradient = false, .exchange = true, .frozen = true};
    CHECK(schedule.plan(n, 0.1F) == compressed);
    schedule.done(n, 0.1F, 0);
    CHECK(schedule.plan(n + 1, 0.1F) == compressed);
  }
}

TEST_CASE("freeze: automatic, against the whole history") {
  for (const double beta2 : {0.0, 0.5, 0.75, 0.9, 0.96, 0.984375}) {
    for (const double ratio : {0.5, 0.9, 0.96, 1.0}) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        // grows to its stable value, with bumps; seed 3 starts with zeros, seed 2 falls
        std::vector<double> norms;
        for (std::size_t t = 0; t < 200; ++t) {
          const auto x = static_cast<double>(t + 1);
          double v =
              2 * (1 - std::pow(beta2, x)) + 0.05 * static_cast<double>(noise(seed, 0, 0, t));
          if (seed == 2) v = 5 / x;
          if (seed == 3 && t < 60) v = 0;
          norms.push_back(v);
        }
        CAPTURE(beta2);
        CAPTURE(ratio);
        CAPTURE(seed);
        for (const std::uint64_t refreshes : counts{0, 4, 16}) {
          CAPTURE(refreshes);
          const onebit::freeze schedule({.after = 0, .ratio = ratio}, beta2, refreshes);
          CHECK(freeze_step(schedule, norms) == naive_freeze(norms, beta2, ratio, refreshes));
        }
      }
    }
  }
}

TEST_CASE("freeze: the optimizer freezes at the step that its own variance tells") {
  // The naive rule over ||v||_1 of a naive Adam; gradients of constant size, so that v grows
  // smoothly and the ratio is far from the limit at every step but where it crosses.
  const double beta2 = 0.875;
  plan p;
  p.sizes = {100, 33};
  p.steps = 40;
  p.options.freeze.after = 0;
  p.options.adam.beta2 = beta2;
  p.options.freeze.ratio = 0.9;
  for (const int ranks : {1, 2, 3}) {
    p.ranks = ranks;
    p.disturb = [](memory& m, int, std::size_t step) {
      for (flat& g : m.grads) {
        for (float& x : g) x = step % 2 == 0 ? 0.5F : -0.5F;
      }
    };
    std::vector<double> norms;
    double v = 0;
    for (std::size_t t = 0; t < p.steps; ++t) {
      v = beta2 * v + (1 - beta2) * 0.25;
      norms.push_back(133 * v / (1 - std::pow(beta2, static_cast<double>(t + 1))));
    }
    const std::size_t expected = naive_freeze(norms, beta2, 0.9);
    REQUIRE(expected != none);
    for (const trace& t : on_ranks(ranks, [&](onebit::threads x) {
           return train(x, p, onebit::gather_scatter<onebit::sign<>>{});
         })) {
      for (std::size_t step = 0; step < p.steps; ++step) {
        CAPTURE(step);
        // one rank alone never ends its warm-up
        CHECK((t.reports[step].phase == onebit::phase::compressed) ==
              (ranks > 1 && step > expected));
      }
    }
  }
}

TEST_CASE("freeze: automatic, not while the learning rate rises") {
  onebit::freeze schedule({}, 0.999, 4);
  for (std::uint64_t t = 0; t < 200; ++t) {
    const float lr =
        t <= 100 ? 0.001F * static_cast<float>(t) : 0.1F - 0.0001F * static_cast<float>(t);
    schedule.done(t, lr, 3);
    // a v that is looked at over t / 4 steps
    CHECK(schedule.frozen(t + 1) == (t >= 100 + t / 4 && t >= 133));
  }
}

TEST_CASE("freeze: says when the warm-up ends while v moves") {
  const auto after_20 = [](std::uint64_t refreshes, const std::function<double(double)>& v) {
    onebit::freeze schedule({.after = 20}, 0.999, refreshes);
    for (std::uint64_t t = 0; t < 20; ++t) {
      CHECK(schedule.variance_ratio() == 0);
      CHECK(schedule.warning().empty());
      const bool looks = schedule.plan(t, 0.1F).needs_variance_norm;
      schedule.done(t, 0.1F, looks ? v(static_cast<double>(t)) : 1e9);
    }
    return schedule;
  };
  const auto still = after_20(0, [](double) { return 3.0; });
  CHECK(still.variance_ratio() == doctest::Approx(1));
  CHECK(still.warning().empty());
  const auto falls = after_20(0, [](double t) { return 100 - 4 * t; });  // 24 and, 10 steps ago, 64
  CHECK(falls.variance_ratio() == doctest::Approx(24.0 / 64));
  CHECK(falls.warning() == contains{"after 20 steps, in the last 10 of which"});
  CHECK(falls.warning() == contains{"0.375; it stays"});
  // where v follows, nobody looks
  const auto follows = after_20(16, [](double t) { return 100 - 4 * t; });
  CHECK(follows.variance_ratio() == 0);
  CHECK(follows.warning().empty());
  // without correction v lacks 0.98 of what it averages after 20 steps, and 0.05 after 3000
  onebit::freeze young({.after = 20}, 0.999, 0, false), old({.after = 3000}, 0.999, 0, false);
  CHECK(young.warning() == contains{"has averaged 20 squares without correction"});
  CHECK(young.warning() == contains{"7.1"});
  CHECK(young.warning() == contains{"average in 2302 steps or more"});
  CHECK(old.warning().empty());
  CHECK(onebit::freeze({.after = 20}, 0.999, 0, true).warning().empty());
}

namespace {
std::string heard;
}  // namespace

TEST_CASE("freeze: rank 0 warns, through the trainer's hook, and reports tell") {
  heard.clear();
  for (const bool moves : {false, true}) {
    const auto ratios = on_ranks(2, [&](onebit::threads comm) {
      training<> data({100});
      auto o = onebit::one_bit_adam(data.groups(), comm, {.freeze = {.after = 10}, .refreshes = 0});
      o.warn_with(comm.rank() == 0 ? [](const std::string& text) { heard += text; }
                                   : [](const std::string&) { heard += "rank 1 too"; });
      std::vector<float> found;
      for (int step = 0; step < 14; ++step) {
        data.grads[0].assign(100, moves ? 1.0F / static_cast<float>(1 + step) : 1.0F);
        const onebit::report r = o.step(0.01F);
        if (r.variance_ratio) found.push_back(*r.variance_ratio);
        if (r.variance_ratio) CHECK(r.step == 9);
      }
      return found;
    });
    for (const auto& found : ratios) {
      REQUIRE(found.size() == 1);
      CHECK((found[0] > 0.96F) == !moves);
    }
    CHECK(heard.empty() == !moves);
  }
  CHECK(heard == contains{"after 10 steps"});
  CHECK_FALSE(heard == contains{"rank 1"});
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
  CHECK(refused({.ratio = 1.5}, 0.9, "1.5"));
  CHECK(refused({.ratio = -0.5}, 0.9, "-0.5"));
  CHECK(refused({.ratio = std::nan("")}, 0.9, "nan"));
  CHECK(refused({}, 1.0, "beta2 is 1"));
  CHECK(refused({}, -0.25, "-0.25"));
  CHECK(refused({}, std::nan(""), "nan"));
}

TEST_CASE("freeze: refreshes come at gaps that grow with the step number") {
  const auto refreshes = [](onebit::freeze_options o, std::uint64_t n, std::uint64_t steps) {
    onebit::freeze schedule(o, 0.999, n);
    std::vector<std::uint64_t> found;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const onebit::step_plan plan = schedule.plan(step, 0.1F);
      CHECK(plan.exchange == (step >= o.after));
      if (plan.exchange && plan.average_gradient) found.push_back(step);
      schedule.done(step, 0.1F, 0.0);
    }
    return found;
  };
  CHECK(refreshes({.after = 10}, 0, 1000).empty());
  // never in the step that freezes; then t + t / 4, at least t + 1
  CHECK(refreshes({.after = 10}, 4, 60) ==
        std::vector<std::uint64_t>{12, 15, 18, 22, 27, 33, 41, 51});
  CHECK(refreshes({.after = 2}, 4, 12) == std::vector<std::uint64_t>{3, 4, 5, 6, 7, 8, 10});
  // a step that was skipped is not done, and asked for again
  onebit::freeze schedule({.after = 2}, 0.999, 4);
  for (std::uint64_t step = 0; step < 3; ++step) schedule.done(step, 0.1F, 0.0);
  CHECK(schedule.plan(3, 0.1F).average_gradient);
  CHECK(schedule.plan(3, 0.1F).average_gradient);
}
