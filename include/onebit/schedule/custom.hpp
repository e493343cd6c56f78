// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <utility>

/// Schedules without options: never compressed, and a function of the user's.
namespace onebit::inline v0_2 {

/// Steps without an average for which its memory is worth giving back: getting it costs a pass.
inline constexpr std::uint64_t long_gap = 16;

/// Never compresses: the schedule of the baselines.
struct always_dense : schedule_defaults {
  static constexpr bool compresses = false;  ///< see Schedule
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t, float) const { return {}; }
};

/// Compresses every step, without dense ones: for rules whose steps need no v.
struct always_compressed : schedule_defaults {
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t, float) const {
    return {.average_gradient = false, .exchange = true};
  }
};

/// A user's own schedule: a function (step, lr) -> step_plan that is the same on every rank.
template <class F>
class custom_schedule : public schedule_defaults {
 public:
  /// plan(step, lr) says what the step does.
  explicit custom_schedule(F plan) : plan_(std::move(plan)) {}
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const { return plan_(step, lr); }

 private:
  F plan_;
};

static_assert(Schedule<always_dense> && Schedule<always_compressed>);

}  // namespace onebit::inline v0_2
