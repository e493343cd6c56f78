// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/core/concepts.hpp>

/// What a schedule will send, counted without training.
namespace advisor {

/// Steps by what they send.
struct step_counts {
  std::uint64_t dense = 0;       ///< average the gradient
  std::uint64_t compressed = 0;  ///< exchange
  std::uint64_t both = 0;
  std::uint64_t local = 0;  ///< send nothing

  /// Of 1-bit Adam and 1-bit LAMB.
  [[nodiscard]] static step_counts freeze_after(std::uint64_t warmup_steps, std::uint64_t steps) {
    const std::uint64_t dense = std::min(warmup_steps, steps);
    return {dense, steps - dense, 0, 0};
  }

  /// Steps that communicate.
  [[nodiscard]] std::uint64_t rounds() const { return dense + compressed + both; }
  [[nodiscard]] std::uint64_t steps() const { return rounds() + local; }
  /// Bits per parameter and step, a dense round at `dense_bits`, a compressed one at 1, counted as
  /// the papers do: one round is one of the two, a step that does both counts as dense.
  [[nodiscard]] double bits_per_step(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits + static_cast<double>(compressed)) /
           static_cast<double>(steps());
  }
  /// The same with both exchanges of a step that does both.
  [[nodiscard]] double sent_bits_per_step(double dense_bits) const {
    return bits_per_step(dense_bits) + static_cast<double>(both) / static_cast<double>(steps());
  }
};

/// Runs a schedule for `steps` steps with lr(step) as learning rate. The variance is taken to be
/// unknown, so an automatic freeze does not happen.
template <class Schedule, class LearningRate>
[[nodiscard]] step_counts dry_run(Schedule schedule, std::uint64_t steps, LearningRate lr) {
  step_counts n;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const float rate = lr(step);
    const onebit::step_plan p = schedule.plan(step, rate);
    if (p.average_gradient) {
      ++(p.exchange ? n.both : n.dense);
    } else {
      ++(p.exchange ? n.compressed : n.local);
    }
    schedule.done(step, rate, 0.0);
  }
  return n;
}

}  // namespace advisor
