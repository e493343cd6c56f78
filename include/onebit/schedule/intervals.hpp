// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <string>

/// Averages and exchanges at growing intervals: 0/1 Adam.
namespace onebit::inline v0_2 {

/// Options of `intervals`.
struct intervals_options {
  /// T_v: the variance is refreshed at step 0 and then in gaps of 2^floor(j / kappa) steps, j
  /// counting the refreshes.
  std::uint64_t kappa = 16;
  /// The steps in which every step exchanges: the learning rate's warm-up.
  std::uint64_t warmup_steps = 0;
  /// T_u after the warm-up: the interval between exchanges doubles after so many steps; 0: each
  /// time the learning rate has halved.
  std::uint64_t doubling_steps = 0;
  std::uint64_t max_interval = 16;  ///< H
  /// Exchange also in every so-manieth step (n - 1, 2n - 1, ...), so that what evaluates or saves
  /// after it finds equal parameters on all ranks; 0: never.
  std::uint64_t also_every = 0;
  /// Refresh only while step < warmup_steps, as in the paper; false: always.
  bool stop_refreshing = false;
};

/// 0/1 Adam's: ever rarer averages of the gradient, ever rarer exchanges of the momentum. Exchanges
/// when step is a multiple of the interval; the interval is 1 in the warm-up.
/// Source: 0/1 Adam (arXiv 2202.06009), section 5 (T_v, T_u); doubling_steps is DeepSpeed's
/// local_step_scaler.
class intervals : public schedule_defaults {
 public:
  /// `lacking`: beta2 of a v whose bias nobody corrects, of which the end of the warm-up warns; 0:
  /// it is corrected. Throws invalid_input when warmup_steps, kappa or max_interval is 0.
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

  /// See Schedule.
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
  /// See Schedule.
  void done(std::uint64_t step, float lr) {
    if (step == next_refresh_) {
      next_refresh_ += gap(refreshes_);
      ++refreshes_;
    }
    peak_ = step < options_.warmup_steps || lr > peak_ ? lr : peak_;
  }
  /// After the warm-up: that v lacks much of what it averages.
  [[nodiscard]] std::string warning() const {
    return detail::lacking_variance(lacking_, refreshes_);
  }
  /// See Schedule.
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
  float peak_ = 0;  ///< the learning rate from which halvings count
};

static_assert(Schedule<intervals>);

}  // namespace onebit::inline v0_2
