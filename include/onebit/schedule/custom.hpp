// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/schedule.hpp>
#include <utility>

/// Schedules without options: always dense, always compressed, or a function of the user.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Least gap between averages, in steps, for which to free their memory: allocating costs a pass.
inline constexpr std::uint64_t long_gap = 16;

}  // namespace detail

/// Averages gradients in every step and never exchanges: the schedule of uncompressed baselines.
struct always_dense : schedule_defaults {
  static constexpr bool compresses = false;  ///< the optimizer holds no exchange memory
  /// An average.
  [[nodiscard]] due due_in(std::uint64_t, float) const { return {}; }
};

/// Exchanges in every step, without dense steps: for rules whose steps need no v.
struct always_compressed : schedule_defaults {
  /// An exchange.
  [[nodiscard]] due due_in(std::uint64_t, float) const {
    return {.average = false, .exchange = true};
  }
};

/// Schedule given by a function (step, lr) -> due that returns the same on all ranks.
template <class F>
class custom_schedule : public schedule_defaults {
 public:
  /// Takes the function. For a schedule with state, write a class: see Schedule.
  explicit custom_schedule(F due_in) : due_in_(std::move(due_in)) {}
  /// Returns the result of the function.
  [[nodiscard]] due due_in(std::uint64_t step, float lr) const { return due_in_(step, lr); }

 private:
  F due_in_;
};

static_assert(Schedule<always_dense> && Schedule<always_compressed>);

}}  // namespace onebit
