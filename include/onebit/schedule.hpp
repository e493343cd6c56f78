// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <utility>
#include <vector>

/// When a step averages gradients and when it exchanges compressed messages.
namespace onebit {

/// Steps without an average for which its memory is worth giving back: getting it costs a pass.
inline constexpr std::uint64_t long_gap = 16;

/// Never compresses: the schedule of the baselines.
struct always_dense : schedule_defaults {
  static constexpr bool compresses = false;
  [[nodiscard]] step_plan plan(std::uint64_t, float) const { return {}; }
};

/// A user's own schedule: a function (step, lr) -> step_plan that is the same on every rank.
template <class F>
class custom_schedule : public schedule_defaults {
 public:
  explicit custom_schedule(F plan) : plan_(std::move(plan)) {}
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const { return plan_(step, lr); }

 private:
  F plan_;
};

/// Options of `freeze`: after a number of steps, or by itself.
struct freeze_options {
  /// Warm-up steps, the first of which has number 0; 0: freeze automatically.
  std::uint64_t after = 0;
  /// Automatic: freeze when ||v_{t-D}||_1 / ||v_t||_1 >= ratio, D = 1 / (1 - beta2) steps ...
  double ratio = 0.96;
  /// ... and no earlier than after the learning rate's own warm-up.
  std::uint64_t lr_warmup_steps = 0;
  /// Afterwards v still sees an exact average of the gradients now and then: from a step t to the
  /// next such step it is t / refreshes, at least 1, so that 0.7 times as many come until t has
  /// doubled. 0: v is constant from the freeze on, as in the papers. For rules that can (Adam's).
  std::uint64_t refreshes = 0;
};

/// Warm-up with exact averages, then compressed for good. 15-25% of all steps are a usual warm-up
/// where v is constant afterwards.
/// Source: 1-bit Adam, algorithm 1 and section 7.1 (the automatic freeze).
class freeze : public schedule_defaults {
 public:
  /// The most steps that the automatic freeze looks back.
  static constexpr double max_window = 1e7;

  /// Throws invalid_input when ratio is outside (0, 1], beta2 outside [0, 1), or too close to 1 for
  /// an automatic freeze.
  freeze(freeze_options options, double beta2);

  /// Is step the first after the warm-up, or later?
  [[nodiscard]] bool frozen(std::uint64_t step) const {
    return automatic() ? stable_ : step >= options_.after;
  }
  [[nodiscard]] step_plan plan(std::uint64_t step, float) const {
    if (frozen(step)) {
      const bool refresh = options_.refreshes > 0 && step >= next_refresh_ && next_refresh_ > 0;
      return {.average_gradient = refresh,
              .exchange = true,
              .frozen = true,
              .last_average = refresh && gap_after(step) >= long_gap};
    }
    const bool last = !automatic() && step + 1 >= options_.after;
    return {.needs_variance_norm = automatic(),
            .may_end_warm_up = automatic() || last,
            .last_average = last};
  }
  void done(std::uint64_t step, float, double variance_norm) {
    if (!frozen(step))
      next_refresh_ = step + 1 + gap_after(step);  // not in the first one
    else if (step >= next_refresh_)
      next_refresh_ = step + gap_after(step);
    if (!automatic() || stable_) return;
    double& slot = norms_[step % norms_.size()];
    const double before = slot;  // D steps ago
    slot = variance_norm;
    stable_ = step >= norms_.size() && step + 1 >= options_.lr_warmup_steps && variance_norm > 0 &&
              before / variance_norm >= options_.ratio;
  }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(stable_);
    a.scalar(next_refresh_);
    a.vector(norms_);
  }

 private:
  [[nodiscard]] bool automatic() const { return options_.after == 0; }
  [[nodiscard]] std::uint64_t gap_after(std::uint64_t step) const {
    if (options_.refreshes == 0) return 0;
    return step > options_.refreshes ? step / options_.refreshes : 1;
  }

  freeze_options options_;
  bool stable_ = false;  ///< what the automatic freeze found
  std::uint64_t next_refresh_ = 0;
  std::vector<double> norms_;  ///< of the last D steps
};

[[gnu::cold]] inline freeze::freeze(freeze_options options, double beta2) : options_(options) {
  if (!(options.ratio > 0 && options.ratio <= 1)) {
    throw invalid_input(
        detail::message("freeze: ratio is ", options.ratio, ", must be above 0 and at most 1"));
  }
  if (!(beta2 >= 0 && beta2 < 1)) {
    throw invalid_input(detail::message("freeze: beta2 is ", beta2, ", must be in [0, 1)"));
  }
  if (!automatic()) return;
  const double window = 1 / (1 - beta2);
  if (window > max_window) {
    throw invalid_input(detail::message("freeze: beta2 ", beta2, " asks for the norms of ", window,
                                        " steps; freeze after a number of steps"));
  }
  norms_.resize(static_cast<std::size_t>(window + 0.5));
}

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
  /// Throws invalid_input when warmup_steps, kappa or max_interval is 0.
  explicit intervals(intervals_options o) : options_(o) {
    if (o.kappa == 0 || o.max_interval == 0 || o.warmup_steps == 0) {
      throw invalid_input(detail::message("intervals: kappa ", o.kappa, ", warmup_steps ",
                                          o.warmup_steps, ", max_interval ", o.max_interval,
                                          "; all must be at least 1"));
    }
  }

  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const {
    const bool extra = options_.also_every > 0 && (step + 1) % options_.also_every == 0;
    const bool refresh =
        step == next_refresh_ && (step < options_.warmup_steps || !options_.stop_refreshing);
    const bool stops = options_.stop_refreshing && step + 1 >= options_.warmup_steps;
    return {.average_gradient = refresh,
            .exchange = extra || step % interval(step, lr) == 0,
            .last_average = stops || (refresh && gap(refreshes_) >= long_gap)};
  }
  void done(std::uint64_t step, float lr, double) {
    if (step == next_refresh_) {
      next_refresh_ += gap(refreshes_);
      ++refreshes_;
    }
    peak_ = step < options_.warmup_steps || lr > peak_ ? lr : peak_;
  }
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
  std::uint64_t next_refresh_ = 0, refreshes_ = 0;
  float peak_ = 0;  ///< the learning rate from which halvings count
};

static_assert(Schedule<always_dense> && Schedule<freeze> && Schedule<intervals>);

}  // namespace onebit
