// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <utility>

/// Schedules without options: always dense, always compressed, or a function of the user.
namespace onebit::inline v0_2 {

/// Least gap between averages, in steps, for which to free their memory: allocating costs a pass.
inline constexpr std::uint64_t long_gap = 16;

/// Averages gradients in every step and never exchanges: the schedule of uncompressed baselines.
struct always_dense : schedule_defaults {
  static constexpr bool compresses = false;  ///< the optimizer holds no exchange memory
  /// Plans a dense step.
  [[nodiscard]] step_plan plan(std::uint64_t, float) const { return {}; }
};

/// Exchanges in every step, without dense steps: for rules whose steps need no v.
struct always_compressed : schedule_defaults {
  /// Plans a compressed step.
  [[nodiscard]] step_plan plan(std::uint64_t, float) const {
    return {.average_gradient = false, .exchange = true};
  }
};

/// Schedule given by a function (step, lr) -> step_plan that returns equal plans on all ranks.
template <class F>
class custom_schedule : public schedule_defaults {
 public:
  /// Takes the function. For a schedule with state, write a class: see Schedule.
  explicit custom_schedule(F plan) : plan_(std::move(plan)) {}
  /// Returns the result of the function.
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const { return plan_(step, lr); }

 private:
  F plan_;
};

static_assert(Schedule<always_dense> && Schedule<always_compressed>);

}  // namespace onebit::inline v0_2
