// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/concepts.hpp>

/// What a schedule will send, counted without training.
namespace onebit {

/// Steps by what they send. `both` average the gradient and exchange.
struct step_counts {
  std::uint64_t steps = 0;
  std::uint64_t dense = 0;
  std::uint64_t compressed = 0;
  std::uint64_t both = 0;
  std::uint64_t local = 0;

  /// Steps that communicate.
  [[nodiscard]] std::uint64_t rounds() const { return steps - local; }
  /// Bits per parameter and step, a dense round at `dense_bits`, a compressed one at 1, counted as
  /// the papers do: one round is one of the two, a step that does both counts as dense.
  [[nodiscard]] double bits_per_step(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits + static_cast<double>(compressed)) /
           static_cast<double>(steps);
  }
  /// The same with both exchanges of a step that does both.
  [[nodiscard]] double sent_bits_per_step(double dense_bits) const {
    return bits_per_step(dense_bits) + static_cast<double>(both) / static_cast<double>(steps);
  }
};

/// Runs a schedule for `steps` steps with lr(step) as learning rate. The variance is taken to be
/// unknown, so an automatic freeze does not happen.
template <class Schedule, class LearningRate>
[[nodiscard]] step_counts dry_run(Schedule schedule, std::uint64_t steps, LearningRate lr) {
  step_counts n;
  n.steps = steps;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const float rate = lr(step);
    const step_plan p = schedule.plan(step, rate);
    if (p.average_gradient && p.exchange) {
      ++n.both;
    } else if (p.average_gradient) {
      ++n.dense;
    } else if (p.exchange) {
      ++n.compressed;
    } else {
      ++n.local;
    }
    if constexpr (requires { schedule.observe(step, rate); }) schedule.observe(step, rate);
    (void)schedule.freezes_after(step, 0.0);
  }
  return n;
}

}  // namespace onebit
