// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of schedules. A model has make(), which returns equal new schedules; `local`,
// true if some steps do not communicate; optionally rate(step), the learning rate (default 0.1),
// and steps, how many are looked at (default 60).

#include <onebit/concepts/plan.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/testing/values.hpp>

namespace onebit { inline namespace v0_3 { namespace testing {
namespace schedule_suite {

template <class Model>
float rate_of(std::size_t step) {
  if constexpr (requires { Model::rate(step); }) return Model::rate(step);
  return 0.1F;
}

/// Informs the schedule of a completed step, as an optimizer does.
template <class Model, class Schedule>
void advance(Schedule& s, std::size_t step) {
  s.done(step, rate_of<Model>(step));
}

template <class Schedule>
std::string written(Schedule& s) {
  std::ostringstream out;
  onebit::detail::write_checkpoint(out, [&](auto& a) { s.archive(a); });
  return std::move(out).str();
}

}  // namespace schedule_suite

TEST_CASE_TEMPLATE_DEFINE("schedule", Model, schedule_conformance) {
  using namespace schedule_suite;
  constexpr std::size_t steps = [] {
    if constexpr (requires { Model::steps; }) return std::size_t{Model::steps};
    return std::size_t{60};
  }();
  auto first = Model::make();
  using schedule = decltype(first);

  auto second = Model::make();
  bool compressed = false, no_average_now = false;
  for (std::size_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    const float rate = rate_of<Model>(step);
    const onebit::due plan = first.due_in(step, rate);
    CHECK(plan == first.due_in(step, rate));   // due_in() has no side effects
    CHECK(plan == second.due_in(step, rate));  // ranks get equal plans
    if (!Model::local) CHECK_FALSE(plan.nothing());
    if (!schedule::compresses) CHECK_FALSE(plan.exchange);
    if (!Model::local && compressed) {
      INFO("dense steps have ended for good at the first exchange");
      CHECK(plan.exchange);
    }
    if (!Model::local && plan.exchange && !compressed) {
      INFO(
          "the first exchange may be skipped: it comes again at another rate, and dense steps have "
          "ended");
      CHECK(first.due_in(step, 4 * rate).exchange);
      CHECK(first.due_in(step, rate / 4).exchange);
    }
    if (no_average_now) CHECK_FALSE(plan.average);
    compressed = compressed || plan.exchange;
    no_average_now = plan.frees_averages;
    advance<Model>(first, step);
    advance<Model>(second, step);
    // Only a step with next_needs_outcome may be the last dense one.
    if (!Model::local && !plan.next_needs_outcome) {
      INFO("the last dense step must set next_needs_outcome");
      CHECK(first.due_in(step + 1, rate_of<Model>(step + 1)).exchange == plan.exchange);
    }
  }
  CHECK(compressed == schedule::compresses);

  // A schedule saved and restored at any step continues like the original.
  for (std::size_t stop = 0; stop < steps; stop += 7) {
    CAPTURE(stop);
    auto original = Model::make();
    for (std::size_t step = 0; step < stop; ++step) advance<Model>(original, step);
    auto restored = Model::make();
    std::istringstream in(written(original));
    onebit::detail::payload_reader reader(in);
    restored.archive(reader);
    CHECK_NOTHROW(reader.finish());
    reader.keep();
    CHECK(written(restored) == written(original));
    for (std::size_t step = stop; step < steps; ++step) {
      const float rate = rate_of<Model>(step);
      REQUIRE(original.due_in(step, rate) == restored.due_in(step, rate));
      advance<Model>(original, step);
      advance<Model>(restored, step);
    }
    CHECK(written(restored) == written(original));
  }
}

}}}  // namespace onebit::testing
