// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <utility>

/// 0/1 Adam's schedules: ever rarer averages of the gradient, ever rarer exchanges of the momentum.
namespace onebit {

struct intervals_options {
  /// T_v: the variance is refreshed at step 0 and then in gaps of 2^floor(j / kappa) steps, j
  /// counting the refreshes, as long as step < warmup_steps.
  std::uint64_t kappa = 16;
  /// Also the steps in which every step exchanges: the learning rate's warm-up.
  std::uint64_t warmup_steps = 0;
  /// T_u after the warm-up: the interval between exchanges doubles after so many steps; 0: each
  /// time the learning rate has halved.
  std::uint64_t doubling_steps = 0;
  std::uint64_t max_interval = 16;  ///< H
  /// Exchange also in every so-manieth step (n - 1, 2n - 1, ...), so that what evaluates or saves
  /// after it finds equal parameters on all ranks; 0: never.
  std::uint64_t also_every = 0;
};

/// Exchanges when step is a multiple of the interval; the interval is 1 in the warm-up.
/// Source: 0/1 Adam (arXiv 2202.06009), section 5 (T_v, T_u); doubling_steps is DeepSpeed's
/// local_step_scaler.
class intervals {
 public:
  static constexpr bool compresses = true;

  /// Throws invalid_input when warmup_steps, kappa or max_interval is 0.
  explicit intervals(intervals_options o) : options_(o) {
    if (o.kappa == 0 || o.max_interval == 0 || o.warmup_steps == 0) {
      throw invalid_input(detail::message("intervals: kappa ", o.kappa, ", warmup_steps ",
                                          o.warmup_steps, ", max_interval ", o.max_interval,
                                          "; all must be at least 1"));
    }
  }

  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const {
    const bool refresh = step == next_refresh_ && step < options_.warmup_steps;
    const bool extra = options_.also_every > 0 && (step + 1) % options_.also_every == 0;
    const bool exchange = extra || step % interval(step, lr) == 0;
    return {refresh, exchange};
  }
  [[nodiscard]] bool wants_variance_norm() const { return false; }

  [[nodiscard]] bool freezes_after(std::uint64_t, double) { return false; }
  /// Will a step after this one average gradients?
  [[nodiscard]] bool averages_after(std::uint64_t step) const {
    return step + 1 < options_.warmup_steps;
  }

  /// Called once after every step that was done.
  void observe(std::uint64_t step, float lr) {
    if (step == next_refresh_) {
      next_refresh_ += std::uint64_t{1} << std::min<std::uint64_t>(refreshes_ / options_.kappa, 62);
      ++refreshes_;
    }
    if (step < options_.warmup_steps) {
      peak_ = lr;
    } else {
      peak_ = std::max(peak_, lr);
    }
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(next_refresh_);
    a.scalar(refreshes_);
    a.scalar(peak_);
  }

 private:
  [[nodiscard]] std::uint64_t interval(std::uint64_t step, float lr) const {
    if (step < options_.warmup_steps) return 1;
    std::uint64_t doublings = 0;
    if (options_.doubling_steps > 0) {
      doublings = (step - options_.warmup_steps) / options_.doubling_steps;
    } else {
      const float peak = std::max(peak_, lr);
      for (float x = lr * 2; x <= peak && doublings < 62 && peak > 0; x *= 2) {
        ++doublings;
        if (x == 0) return options_.max_interval;
      }
    }
    return std::min(options_.max_interval,
                    std::uint64_t{1} << std::min<std::uint64_t>(doublings, 62));
  }

  intervals_options options_;
  std::uint64_t next_refresh_ = 0, refreshes_ = 0;
  float peak_ = 0;  ///< the learning rate from which halvings count
};

struct variant_intervals_options {
  std::uint64_t var_freeze_step = 100000;
  std::uint64_t var_update_scaler = 16;
  std::uint64_t local_step_scaler = 32678;
  std::uint64_t local_step_clipper = 16;
};

/// The schedule of DeepSpeed's ZeroOneAdam, for those who come from there: options and step numbers
/// as theirs, whose first step only initialises (our step i is their step i + 2).
///
/// Stage A, to var_freeze_step: a dense step every var_interval steps, which doubles after
/// var_update_scaler of them; compressed gradients else. Stage B: an exchange every local_interval
/// steps, which doubles after local_step_scaler steps up to local_step_clipper.
class variant_intervals {
 public:
  static constexpr bool compresses = true;

  /// Throws invalid_input when an option is 0.
  explicit variant_intervals(variant_intervals_options o) : options_(o) {
    if (o.var_update_scaler == 0 || o.local_step_scaler == 0 || o.local_step_clipper == 0) {
      throw invalid_input(detail::message("variant_intervals: var_update_scaler ",
                                          o.var_update_scaler, ", local_step_scaler ",
                                          o.local_step_scaler, ", local_step_clipper ",
                                          o.local_step_clipper, "; all must be at least 1"));
    }
  }

  [[nodiscard]] step_plan plan(std::uint64_t step, float) const {
    const std::uint64_t theirs = step + 2;
    if (frozen_) return {false, theirs % local_interval_ == 0};
    const bool dense = theirs % var_interval_ == 0;
    return {dense, !dense};
  }
  [[nodiscard]] bool wants_variance_norm() const { return false; }

  /// True once: when stage A ends.
  [[nodiscard]] bool freezes_after(std::uint64_t step, double) {
    const std::uint64_t theirs = step + 2;
    if (!frozen_ && theirs % var_interval_ == 0 && ++var_counter_ == options_.var_update_scaler) {
      var_counter_ = 0;
      var_interval_ *= 2;
    }
    if (frozen_ && ++local_counter_ == options_.local_step_scaler) {
      local_counter_ = 0;
      local_interval_ = std::min(options_.local_step_clipper, 2 * local_interval_);
    }
    if (frozen_ || theirs <= options_.var_freeze_step) return false;
    frozen_ = true;
    return true;
  }

  [[nodiscard]] std::uint64_t var_interval() const { return var_interval_; }
  [[nodiscard]] std::uint64_t var_counter() const { return var_counter_; }
  [[nodiscard]] std::uint64_t local_interval() const { return local_interval_; }
  [[nodiscard]] std::uint64_t local_counter() const { return local_counter_; }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    a.scalar(var_interval_);
    a.scalar(var_counter_);
    a.scalar(local_interval_);
    a.scalar(local_counter_);
  }

 private:
  variant_intervals_options options_;
  bool frozen_ = false;
  std::uint64_t var_interval_ = 1, var_counter_ = 0, local_interval_ = 1, local_counter_ = 0;
};

/// A user's own schedule: a function (step, lr) -> step_plan that is the same on every rank.
template <class F>
class custom_schedule {
 public:
  static constexpr bool compresses = true;

  explicit custom_schedule(F plan) : plan_(std::move(plan)) {}
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const { return plan_(step, lr); }
  [[nodiscard]] bool wants_variance_norm() const { return false; }
  [[nodiscard]] bool freezes_after(std::uint64_t, double) { return false; }
  template <class Archive>
  void archive(Archive&) {}

 private:
  F plan_;
};

}  // namespace onebit
