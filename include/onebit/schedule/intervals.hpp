// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <string>

/// The schedule of 0/1 Adam: averages and exchanges at growing intervals.
namespace onebit::inline v0_2 {

/// Options of `intervals`.
struct intervals_options {
  /// T_v: averages, from which v is updated, are in step 0 and then after gaps of 2^floor(j /
  /// kappa) steps, j = 0, 1, ...
  std::uint64_t kappa = 16;
  /// Number of steps at the start that all exchange, at least 1: the warm-up of the learning rate.
  std::uint64_t warmup_steps = 0;
  /// T_u, the interval between exchanges after the warm-up, doubles each time this number of steps
  /// has passed. 0: it doubles each time the learning rate has halved.
  std::uint64_t doubling_steps = 0;
  std::uint64_t max_interval = 16;  ///< H: largest interval between exchanges, at least 1
  /// With n for this number, steps n - 1, 2n - 1, ... exchange too: a trainer that evaluates or
  /// saves after these steps finds equal parameters on all ranks. 0: no such steps.
  std::uint64_t also_every = 0;
  /// True: average only while step < warmup_steps, as in the paper. False: always.
  bool stop_refreshing = false;
};

/// Averages gradients, to update v, and exchanges messages, both at growing intervals. A step
/// exchanges if its number is a multiple of the current interval, which is 1 in the warm-up.
/// Source: 0/1 Adam (arXiv 2202.06009), section 5 (T_v, T_u); doubling_steps is DeepSpeed's
/// local_step_scaler.
class intervals : public schedule_defaults {
 public:
  /// `lacking`: beta2 if the bias of v is not corrected, for a warning at the end of the warm-up;
  /// else 0. Throws invalid_input if warmup_steps, kappa or max_interval is 0.
  explicit intervals(intervals_options o, double lacking = 0) : options_(o), lacking_(lacking) {
    if (o.warmup_steps == 0) {
      throw invalid_input(detail::message(
          "intervals_options: warmup_steps must be given, at least 1: for so many steps every step "
          "exchanges; the papers take the steps of the learning rate's warm-up"));
    }
    if (o.kappa == 0 || o.max_interval == 0) {
      throw invalid_input(detail::message("intervals_options: kappa is ", o.kappa,
                                          ", max_interval ", o.max_interval,
                                          "; both must be at least 1"));
    }
  }

  /// Plans an average, an exchange, both, or a local step.
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const {
    const bool extra = options_.also_every > 0 && (step + 1) % options_.also_every == 0;
    const bool warms_up = step < options_.warmup_steps;
    const bool refresh = step == next_refresh_ && (warms_up || !options_.stop_refreshing);
    const bool stops = options_.stop_refreshing && step + 1 == options_.warmup_steps;
    return {.average_gradient = refresh,
            .exchange = extra || step % interval(step, lr) == 0,
            .ends_warm_up = lacking_ > 0 && stops,
            .last_average = stops || (refresh && gap(refreshes_) >= long_gap)};
  }
  /// Computes the step of the next average, and the peak of the learning rate.
  void done(std::uint64_t step, float lr) {
    if (step == next_refresh_) {
      next_refresh_ += gap(refreshes_);
      ++refreshes_;
    }
    peak_ = step < options_.warmup_steps || lr > peak_ ? lr : peak_;
  }
  /// Warns after the warm-up if v, which is constant from then on, is much too small.
  [[nodiscard]] std::string warning() const {
    return detail::lacking_variance(lacking_, refreshes_);
  }
  /// Passes the state to `a`, for checkpoints.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(next_refresh_);
    a.scalar(refreshes_);
    a.scalar(peak_);
  }

 private:
  [[nodiscard]] static std::uint64_t least(std::uint64_t a, std::uint64_t b) {
    return a < b ? a : b;
  }
  [[nodiscard]] std::uint64_t gap(std::uint64_t refresh) const {
    return std::uint64_t{1} << least(refresh / options_.kappa, 62);
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
    return least(options_.max_interval, std::uint64_t{1} << least(doublings, 62));
  }

  intervals_options options_;
  double lacking_;
  std::uint64_t next_refresh_ = 0, refreshes_ = 0;
  float peak_ = 0;  ///< largest lr from the last warm-up step on: halvings count from here
};

static_assert(Schedule<intervals>);

}  // namespace onebit::inline v0_2
