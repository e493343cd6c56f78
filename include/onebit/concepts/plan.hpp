// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

/// What kind of step it is: said once, by the rule, from what the schedule says is due.
///
///     schedule.due_in(step, lr) -> due  ->  rule.plan(due, step, lr) -> step_plan  ->  the step
///
///     update \ average     nothing       gradients           squares
///     mean_gradient           -          dense                  -
///     exchange            compressed     0/1 Adam's paper     compressed, with a refresh of v
///     own_gradient          local        0/1 Adam's paper     local, with a refresh of v
namespace onebit { inline namespace v0_3 {

/// What a schedule says is due in a step. All ranks must say the same.
struct due {
  /// An average over the ranks, from which v is updated: of gradients in dense steps (and in the
  /// paper's 0/1 Adam), else of what the ranks' own v have taken in: a refresh.
  bool average = true;
  bool exchange = false;  ///< a compressed exchange
  /// What is due in the next step depends on whether this one is kept: the host waits to know.
  bool next_needs_outcome = false;
  /// The next average is far: its memory is freed after this step. Saves memory, changes no bits.
  bool frees_averages = false;
  /// True if neither an average nor an exchange is due.
  [[nodiscard]] constexpr bool nothing() const { return !average && !exchange; }
  friend bool operator==(const due&, const due&) = default;
};

/// What a step of the parameters is made of.
enum class update_from : std::uint8_t {
  mean_gradient,  ///< the exact mean of the gradients: a dense step
  exchange,       ///< a compressed exchange of messages
  own_gradient    ///< each rank's own gradient: a local step, which only a LocalRule has
};
/// What the ranks average in a step, for v.
enum class averages : std::uint8_t {
  nothing,
  gradients,  ///< exactly
  squares     ///< what the ranks' own v have taken in: a refresh of v
};

/// Returns "mean gradient", "exchange" or "own gradient".
[[nodiscard]] constexpr std::string_view to_string(update_from x) {
  return x == update_from::mean_gradient ? "mean gradient"
         : x == update_from::exchange    ? "exchange"
                                         : "own gradient";
}
/// Returns "nothing", "gradients" or "squares".
[[nodiscard]] constexpr std::string_view to_string(averages x) {
  return x == averages::nothing ? "nothing" : x == averages::gradients ? "gradients" : "squares";
}

/// Kind of a step. All ranks make equal plans from equal numbers. By default a dense step.
struct step_plan {
  update_from update = update_from::mean_gradient;  ///< of the parameters
  averages average = averages::gradients;           ///< for v
  /// The dense steps are over: the first such step freezes the rule.
  bool dense_steps_ended = false;
  bool next_needs_outcome = false;  ///< as in `due`
  bool frees_averages = false;      ///< as in `due`

  /// True if nothing is sent.
  [[nodiscard]] constexpr bool sends_nothing() const {
    return update == update_from::own_gradient && average == averages::nothing;
  }
  /// True if the ranks average their gradients exactly.
  [[nodiscard]] constexpr bool averages_gradients() const { return average == averages::gradients; }
  /// True if the step refreshes v from averaged squares.
  [[nodiscard]] constexpr bool refreshes() const { return average == averages::squares; }
  friend bool operator==(const step_plan&, const step_plan&) = default;
};

namespace detail {

/// Returns the plan of a rule without local steps: an exchange if it is due, else a dense step. An
/// average beside an exchange is of squares, if ranks have a v of their own.
[[nodiscard]] constexpr step_plan plan_without_local_steps(const due& now, bool own_variance) {
  const averages average = !now.average                   ? averages::nothing
                           : now.exchange && own_variance ? averages::squares
                                                          : averages::gradients;
  return {.update = now.exchange ? update_from::exchange : update_from::mean_gradient,
          .average = average,
          .dense_steps_ended = now.exchange,
          .next_needs_outcome = now.next_needs_outcome,
          .frees_averages = now.frees_averages};
}

}  // namespace detail

}}  // namespace onebit
