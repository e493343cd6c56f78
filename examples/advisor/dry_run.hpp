// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/algorithms.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/schedule.hpp>
#include <onebit/core/words.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>

/// Counts what a schedule sends, without training.
namespace advisor {

/// Bits per parameter of a message: a sign per element, and one float (scale) per tile of 4096.
inline constexpr double message_bits = 1 + 32.0 / 4096;
/// Bits per parameter of a message in 2 bits (`quantized<2>`): three words and one scale per tile.
inline constexpr double two_bits_message = 3 + 32.0 / 4096;
/// Bits per parameter of a message in 4 bits (`quantized<4>`): five words and one scale per tile.
inline constexpr double four_bits_message = 5 + 32.0 / 4096;
/// Bits per parameter that a refresh of v sends beside a message: squares in 5 bits and an exponent
/// of 32 bits for 32 elements, and a sketch of the gradient, 16 bits for 128 elements and 16 per
/// tile. A tile has 4096 elements in a model of 2^23 or more. `more`: numbers of 16 bits per tile.
[[nodiscard]] inline double squares_bits(double parameters, int more = 0) {
  const auto words = static_cast<std::size_t>(parameters) / onebit::word_elements;
  const std::size_t tile = onebit::word_elements * onebit::words_of_tiles(words);
  return 6 + 16.0 / 128 + 16.0 * (1 + more) / static_cast<double>(tile);
}
/// squares_bits of 1-bit LAMB, which also sends a sketch of its direction, 64 numbers per tile.
[[nodiscard]] inline double lamb_squares_bits(double parameters) {
  return squares_bits(parameters, 64);
}

/// Numbers of steps, by the data that a step sends.
struct step_counts {
  std::uint64_t dense = 0;       ///< steps that average the gradient
  std::uint64_t compressed = 0;  ///< steps that exchange
  std::uint64_t both = 0;
  std::uint64_t local = 0;      ///< steps that exchange nothing, and average at most squares
  std::uint64_t refreshes = 0;  ///< compressed or local steps that also average squares
  std::uint64_t alone = 0;      ///< local steps that average squares
  double squares = 0;           ///< bits per parameter that a refresh sends beside a message
  double message = 1;           ///< bits per parameter that an exchange sends

  /// Counts of the papers' 1-bit Adam and 1-bit LAMB.
  [[nodiscard]] static step_counts freeze_after(std::uint64_t warmup_steps, std::uint64_t steps) {
    const std::uint64_t dense = std::min(warmup_steps, steps);
    return {dense, steps - dense, 0, 0};
  }

  /// Number of steps that communicate.
  [[nodiscard]] std::uint64_t rounds() const { return dense + compressed + both + alone; }
  [[nodiscard]] std::uint64_t steps() const { return dense + compressed + both + local; }
  /// Bits per parameter and step as the papers count them: a dense round at `dense_bits`, a
  /// compressed one at 1. A step that does both counts as one dense round.
  [[nodiscard]] double papers_bits(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits + static_cast<double>(compressed)) /
           static_cast<double>(steps());
  }
  /// Bits per parameter and step, of everything that is sent. (Leaves out the status of 12 bytes
  /// per slot, which matters in models of less than a million parameters.)
  [[nodiscard]] double bits(double dense_bits) const {
    return (static_cast<double>(dense + both) * dense_bits +
            static_cast<double>(compressed + both) * message +
            static_cast<double>(refreshes) * squares) /
           static_cast<double>(steps());
  }
};

/// Runs a schedule for `steps` steps with learning rates lr(step). With `follows`, a step that
/// averages and exchanges averages squares, not gradients; with `local_steps`, so do all averages
/// from the first step that does not average on.
template <class Schedule, class LearningRate>
[[nodiscard]] step_counts dry_run(Schedule schedule, std::uint64_t steps, LearningRate lr,
                                  bool follows = false, bool local_steps = false) {
  step_counts n;
  bool dense = local_steps;  // up to the first step that does not average
  for (std::uint64_t step = 0; step < steps; ++step) {
    const float rate = lr(step);
    const onebit::due p = schedule.due_in(step, rate);
    dense = dense && p.average;
    if (follows && dense) {
      ++n.dense;
    } else if (p.average && (!follows || !(p.exchange || local_steps))) {
      ++(p.exchange ? n.both : n.dense);
    } else {
      ++(p.exchange ? n.compressed : n.local);
      if (p.average) ++n.refreshes;
      if (p.average && !p.exchange) ++n.alone;
    }
    schedule.done(step, rate);
  }
  return n;
}

/// A constant learning rate, for schedules that ignore it.
[[nodiscard]] inline float constant_rate(std::uint64_t) { return 1; }

/// Counts of one_bit_adam (squares: squares_bits) and of one_bit_lamb (lamb_squares_bits), with
/// default options.
[[nodiscard]] inline step_counts one_bit_run(std::uint64_t steps, double squares) {
  const onebit::one_bit_adam_options o;
  step_counts n =
      dry_run(onebit::freeze(o.freeze, o.adam.beta2, o.refreshes), steps, constant_rate, true);
  n.squares = squares;
  n.message = message_bits;
  return n;
}

/// Counts of a trainer that averages gradients by compressed_allreduce in 4 bits, and keeps its own
/// Adam.
[[nodiscard]] inline step_counts four_bits_run(std::uint64_t steps) {
  step_counts n{0, steps};
  n.message = four_bits_message;
  return n;
}

/// Counts of zero_one_adam with this schedule. Steps before the first step without an average are
/// dense, and exchange nothing.
template <class LearningRate>
[[nodiscard]] step_counts zero_one_run(const onebit::intervals_options& o, std::uint64_t steps,
                                       LearningRate lr, double squares) {
  step_counts n = dry_run(onebit::intervals(o), steps, lr, true, true);
  n.squares = squares;
  n.message = two_bits_message;
  return n;
}

}  // namespace advisor
