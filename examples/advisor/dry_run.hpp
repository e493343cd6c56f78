// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/algorithms.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>

/// What a schedule will send, counted without training.
namespace advisor {

/// A sign for every element, and one float for the scale of a tile of 4096: bits per parameter.
inline constexpr double message_bits = 1 + 32.0 / 4096;
/// What a refresh of v sends beside a message, bits per parameter: squares in 8 bits and one more
/// byte for 32, and 66 numbers of the gradient for each tile, of 4096 elements in a model of 2^23
/// and more.
[[nodiscard]] inline double squares_bits(double parameters, double squares = 8.25,
                                         int numbers = 66) {
  const auto words = static_cast<std::size_t>(parameters) / onebit::word_elements;
  const std::size_t tile = onebit::word_elements * onebit::words_of_tiles(words);
  return squares + 16.0 * numbers / static_cast<double>(tile);
}
/// The same of 1-bit LAMB: also a sketch of its direction, 64 numbers for each tile.
[[nodiscard]] inline double lamb_squares_bits(double parameters) {
  return squares_bits(parameters, 8.25, 66 + 64);
}
/// The same of 0/1 Adam: squares in 16 bits.
[[nodiscard]] inline double zero_one_squares_bits(double parameters) {
  return squares_bits(parameters, 16);
}

/// Steps by what they send.
struct step_counts {
  std::uint64_t dense = 0;       ///< average the gradient
  std::uint64_t compressed = 0;  ///< exchange
  std::uint64_t both = 0;
  std::uint64_t local = 0;      ///< exchange nothing, and average at most squares
  std::uint64_t refreshes = 0;  ///< of those that exchange, or are local: average squares, too
  std::uint64_t alone = 0;      ///< of the local ones: average squares
  double squares = 0;           ///< bits per parameter that a refresh sends beside
  double message = 1;           ///< bits per parameter that an exchange sends

  /// Of the papers' 1-bit Adam and 1-bit LAMB.
  [[nodiscard]] static step_counts freeze_after(std::uint64_t warmup_steps, std::uint64_t steps) {
    const std::uint64_t dense = std::min(warmup_steps, steps);
    return {dense, steps - dense, 0, 0};
  }

  /// Steps that communicate.
  [[nodiscard]] std::uint64_t rounds() const { return dense + compressed + both + alone; }
  [[nodiscard]] std::uint64_t steps() const { return dense + compressed + both + local; }
  /// Bits per parameter and step, a dense round at `dense_bits`, a compressed one at 1, counted as
  /// the papers do: one round is one of the two, a step that does both counts as dense.
  [[nodiscard]] double papers_bits(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits + static_cast<double>(compressed)) /
           static_cast<double>(steps());
  }
  /// Bits per parameter and step, of all that is sent. (A slot's status of 12 bytes is left out: of
  /// models of less than a million parameters it is a part.)
  [[nodiscard]] double bits(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits +
            static_cast<double>(compressed + both) * message +
            static_cast<double>(refreshes) * squares) /
           static_cast<double>(steps());
  }
};

/// Runs a schedule for `steps` steps with lr(step) as learning rate. With `follows` an
/// average is one of squares once a step has exchanged, or, of rules with local steps, not
/// averaged.
template <class Schedule, class LearningRate>
[[nodiscard]] step_counts dry_run(Schedule schedule, std::uint64_t steps, LearningRate lr,
                                  bool follows = false, bool local_steps = false) {
  step_counts n;
  bool dense = local_steps;  // up to the first step that does not average
  for (std::uint64_t step = 0; step < steps; ++step) {
    const float rate = lr(step);
    const onebit::step_plan p = schedule.plan(step, rate);
    dense = dense && p.average_gradient;
    if (follows && dense) {
      ++n.dense;
    } else if (p.average_gradient && (!follows || !(p.exchange || local_steps))) {
      ++(p.exchange ? n.both : n.dense);
    } else {
      ++(p.exchange ? n.compressed : n.local);
      if (p.average_gradient) ++n.refreshes;
      if (p.average_gradient && !p.exchange) ++n.alone;
    }
    schedule.done(step, rate);
  }
  return n;
}

/// A constant learning rate, for schedules that do not ask.
[[nodiscard]] inline float constant_rate(std::uint64_t) { return 1; }

/// What one_bit_adam, with squares_bits, and one_bit_lamb, with lamb_squares_bits, send by their
/// defaults.
[[nodiscard]] inline step_counts one_bit_run(std::uint64_t steps, double squares) {
  const onebit::one_bit_adam_options o;
  step_counts n =
      dry_run(onebit::freeze(o.freeze, o.adam.beta2, o.refreshes), steps, constant_rate, true);
  n.squares = squares;
  n.message = message_bits;
  return n;
}

/// What zero_one_adam sends by this schedule: its first steps, up to the first that does not
/// average, are dense, and exchange nothing.
template <class LearningRate>
[[nodiscard]] step_counts zero_one_run(const onebit::intervals_options& o, std::uint64_t steps,
                                       LearningRate lr, double squares) {
  step_counts n = dry_run(onebit::intervals(o), steps, lr, true, true);
  n.squares = squares;
  n.message = message_bits;
  return n;
}

}  // namespace advisor
