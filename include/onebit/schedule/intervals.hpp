// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/schedule.hpp>
#include <onebit/core/error.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <string>

/// The schedule of 0/1 Adam: averages and exchanges at growing intervals.
namespace onebit { inline namespace v0_3 {

/// Options of `intervals`.
struct intervals_options {
  /// Number of dense steps at the start. All of them average gradients. Not used if kappa is given.
  std::uint64_t after = 5;
  /// Of v: the gap after step t is t / refreshes steps, at most half of v's memory, 1 / (1 -
  /// beta2), or 200. Not used if kappa is given.
  std::uint64_t refreshes = 3;
  /// T_v of the paper, in place of `after` and `refreshes`: averages, from which v is updated, are
  /// in step 0 and then after gaps of 2^floor(j / kappa) steps, j = 0, 1, ... 0: as above.
  std::uint64_t kappa = 0;
  /// Number of steps at the start, the paper's warm-up, that all exchange (or average).
  std::uint64_t warmup_steps = 0;
  /// T_u, the interval between exchanges after the warm-up, doubles each time this number of steps
  /// has passed. 0: it doubles each time the learning rate has halved, as in the paper.
  std::uint64_t doubling_steps = 16;
  std::uint64_t max_interval = 8;  ///< H: largest interval between exchanges, at least 1
  /// With n for this number, steps n - 1, 2n - 1, ... exchange too: a trainer that evaluates or
  /// saves after these steps finds equal parameters on all ranks. 0: no such steps.
  std::uint64_t also_every = 0;
  /// True: average only while step < warmup_steps, as in the paper. False: always.
  bool stop_refreshing = false;
};

/// Says when ranks average for v, and when they exchange, both at growing intervals. A step
/// exchanges if its number is a multiple of the current interval. By default:
///
///     average     0 to 4, all dense; then refreshes of v in 6, 8, 10, 13, 17, 22, 29, ... 656,
///                 856, then every 200th (beta2 0.999), in exchanges and in local steps alike
///     exchange    5 to 15, all; 16 to 31, every 2nd; 32 to 47, every 4th; 48 on, every 8th
///
/// Averages are of gradients in dense steps, and without own_variance; later they refresh v.
/// Source: 0/1 Adam (arXiv 2202.06009), section 5 (T_v, T_u); doubling_steps is DeepSpeed's
/// local_step_scaler.
class intervals : public schedule_defaults {
 public:
  /// `beta2`: the smallest of all groups. `corrected`: false if v is corrected neither for its bias
  /// nor by refreshes, for a warning at the end of the warm-up. Throws invalid_input if
  /// max_interval is 0, or if v would never be updated.
  explicit intervals(intervals_options o, double beta2 = 0.999, bool corrected = true)
      : options_(o), gaps_{o.refreshes, beta2}, lacking_(corrected ? 0 : beta2) {
    if (o.max_interval == 0) {
      throw invalid_input(
          detail::error_text("intervals_options: max_interval is 0, must be at least 1"));
    }
    if (o.kappa == 0 && (o.after == 0 || o.refreshes == 0)) {
      throw invalid_input(detail::error_text("intervals_options: after is ", o.after,
                                             ", refreshes ", o.refreshes,
                                             "; both must be at least 1, or kappa, which replaces "
                                             "them: v needs a start, and changes"));
    }
    if (o.stop_refreshing && o.warmup_steps == 0) {
      throw invalid_input(detail::error_text(
          "intervals_options: stop_refreshing needs warmup_steps, at least 1: v is "
          "updated in the warm-up only"));
    }
  }

  /// An average, an exchange, both, or neither.
  [[nodiscard]] due due_in(std::uint64_t step, float lr) const {
    const bool extra = options_.also_every > 0 && (step + 1) % options_.also_every == 0;
    const bool warms_up = step < options_.warmup_steps;
    const bool average = step == next_average_ && (warms_up || !options_.stop_refreshing);
    const bool stops = options_.stop_refreshing && step + 1 == options_.warmup_steps;
    return {.average = average,
            .exchange = extra || step % interval(step, lr) == 0,
            .next_needs_outcome = lacking_ > 0 && stops,
            .frees_averages = stops || (average && gap(step) >= detail::long_gap)};
  }
  /// Computes the step of the next average, and the peak of the learning rate.
  void done(std::uint64_t step, float lr) {
    if (step == next_average_) {
      next_average_ += gap(step);
      ++averages_;
    }
    peak_ = step < options_.warmup_steps || lr > peak_ ? lr : peak_;
  }
  /// Warns after the warm-up if v, which is constant from then on, is much too small.
  [[nodiscard]] std::string warning() const {
    return detail::lacking_variance(lacking_, averages_);
  }
  /// Passes the state to `a`, for checkpoints.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(next_average_);
    a.scalar(averages_);
    a.scalar(peak_);
  }

 private:
  /// Returns the gap after the average in `step`.
  [[nodiscard]] std::uint64_t gap(std::uint64_t step) const {
    if (options_.kappa > 0)
      return std::uint64_t{1} << (std::min)(averages_ / options_.kappa, std::uint64_t{62});
    if (step + 1 < options_.after) return 1;
    // after the last dense step one without an average, in which each rank gets a v of its own
    return gaps_.gap_after(step) + (step + 1 == options_.after ? 1 : 0);
  }
  [[nodiscard]] std::uint64_t interval(std::uint64_t step, float lr) const {
    if (step < options_.warmup_steps) return 1;
    std::uint64_t doublings = 0;
    if (options_.doubling_steps > 0) {
      doublings = (step - options_.warmup_steps) / options_.doubling_steps;
    } else {
      const float peak = peak_ > lr ? peak_ : lr;
      for (float x = lr * 2; x <= peak && doublings < 62 && peak > 0; x *= 2) {
        ++doublings;
        if (x == 0) return options_.max_interval;
      }
    }
    return (std::min)(options_.max_interval,
                      std::uint64_t{1} << (std::min)(doublings, std::uint64_t{62}));
  }

  intervals_options options_;
  detail::refresh_gaps gaps_;
  double lacking_;
  std::uint64_t next_average_ = 0, averages_ = 0;
  float peak_ = 0;  ///< largest lr from the last warm-up step on: halvings count from here
};

static_assert(Schedule<intervals>);

}}  // namespace onebit
