// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <string>
#include <utility>
#include <vector>

/// When a step averages gradients and when it exchanges compressed messages.
namespace onebit::inline v0_1 {

/// Steps without an average for which its memory is worth giving back: getting it costs a pass.
inline constexpr std::uint64_t long_gap = 16;

/// Never compresses: the schedule of the baselines.
struct always_dense : schedule_defaults {
  static constexpr bool compresses = false;  ///< see Schedule
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t, float) const { return {}; }
};

/// A user's own schedule: a function (step, lr) -> step_plan that is the same on every rank.
template <class F>
class custom_schedule : public schedule_defaults {
 public:
  /// plan(step, lr) says what the step does.
  explicit custom_schedule(F plan) : plan_(std::move(plan)) {}
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const { return plan_(step, lr); }

 private:
  F plan_;
};

/// Options of `freeze`: after a number of steps, or by itself.
struct freeze_options {
  /// Warm-up steps, the first of which has number 0; 0: freeze automatically.
  std::uint64_t after = 0;
  /// Automatic: freeze when ||v||_1, corrected for its bias, is what it was: the smaller at least
  /// this part of the larger. It is compared with the ||v||_1 of as many steps ago as v will then
  /// stay as it is, up to its first refresh; without refreshes, of half of all steps ago, at most
  /// 1 / (1 - beta2). At least 16 steps are warm-up, and in those that are looked back on the
  /// learning rate must not have risen.
  /// 0: 0.96 as in the paper, 0.9 with refreshes.
  double ratio = 0;
  /// Automatic: no earlier than after so many steps.
  std::uint64_t lr_warmup_steps = 0;
};

/// Warm-up with exact averages, then compressed for good. 15-25% of all steps are a usual warm-up
/// where v is constant afterwards, 5-10% where it is refreshed; `warning` says when v still moved.
/// Source: 1-bit Adam, algorithm 1 and section 7.1: without refreshes the automatic freeze is the
/// paper's from step 2 / (1 - beta2) on, but that a v that falls is not stable either.
class freeze : public schedule_defaults {
 public:
  static constexpr bool thaws = true;  ///< see optimizer::thaw
  /// The shortest automatic warm-up: an element's v is then an average of so many squares.
  static constexpr std::uint64_t least_warm_up = 16;
  /// The most steps that the automatic freeze looks back.
  static constexpr double max_window = 1e7;

  /// `refreshes` as one_bit_adam_options has it. Throws invalid_input when ratio is outside [0, 1],
  /// beta2 outside [0, 1), or too close to 1 for an automatic freeze.
  freeze(freeze_options options, double beta2, std::uint64_t refreshes = 0);

  /// Is step the first after the warm-up, or later?
  [[nodiscard]] bool frozen(std::uint64_t step) const {
    return automatic() ? stable_ : step >= end_;
  }
  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t step, float) const {
    if (frozen(step)) {
      const bool refresh = refreshes_ > 0 && step >= next_refresh_ && next_refresh_ > 0;
      return {.average_gradient = refresh,
              .exchange = true,
              .frozen = true,
              .last_average = refresh && gap_after(step) >= long_gap};
    }
    const bool last = !automatic() && step + 1 >= end_;
    return {.needs_variance_norm = automatic() || last || is_looked_back_on(step),
            .may_end_warm_up = automatic() || last,
            .last_average = last};
  }
  /// See Schedule.
  void done(std::uint64_t step, float lr, double variance_norm) {
    if (lr > lr_) last_rise_ = step;
    lr_ = lr;
    if (plan(step, lr).needs_variance_norm) compare(step, variance_norm);
    if (!frozen(step))
      next_refresh_ = step + 1 + gap_after(step);  // not in the first one
    else if (step >= next_refresh_)
      next_refresh_ = step + gap_after(step);
  }
  /// ||v||_1 now over what it was, or the other way round where it fell, as `ratio` is compared
  /// with, in the last warm-up step that looked; 0: none did.
  [[nodiscard]] double variance_ratio() const { return ratio_; }
  /// After the last step of the warm-up: that it ended while v moved.
  [[nodiscard]] std::string warning() const {
    if (automatic() || ratio_ >= options_.ratio || !(ratio_ > 0)) return {};
    const std::uint64_t last = end_ - 1;
    return detail::join(3,
                        {"onebit: the warm-up ends after ", end_ - begin_, " steps, in the last ",
                         look_back(last), " of which ||v||_1 changed by a factor of ", ratio_,
                         refreshes_ > 0 ? "; refreshes will follow it, rarer and rarer"
                                        : "; it stays as it is from here on",
                         ": a longer warm-up (", options_.ratio, " is stable) trains better"});
  }
  /// From `step` on a warm-up anew, of `after` steps, or, 0, until v is stable. Throws
  /// invalid_input where the constructor would; then nothing has changed.
  void thaw(std::uint64_t step, std::uint64_t after) {
    if (after == 0 && window_ >= static_cast<std::uint64_t>(max_window)) refuse_window();
    constexpr std::uint64_t never = ~std::uint64_t{0};
    const std::uint64_t end = after == 0 ? 0 : after > never - step ? never : step + after;
    std::vector<double> norms(n_norms(end), 0.0);  // throws before anything changes
    norms_.swap(norms);
    begin_ = step;
    end_ = end;
    stable_ = false;
    ratio_ = 0;
    next_refresh_ = 0;
  }
  /// See Schedule.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(begin_);
    a.scalar(end_);
    a.scalar(stable_);
    a.scalar(next_refresh_);
    a.scalar(ratio_);
    a.scalar(last_rise_);
    a.scalar(lr_);
    a.vector(norms_, n_norms(end_));
  }

 private:
  [[nodiscard]] bool automatic() const { return end_ == 0; }
  [[nodiscard]] std::uint64_t gap_after(std::uint64_t step) const {
    if (refreshes_ == 0) return 0;
    const std::uint64_t gap = (step - begin_) / refreshes_;
    return gap < 1 ? 1 : gap;
  }

  /// With how many steps ago the norm of a step is compared.
  [[nodiscard]] std::uint64_t look_back(std::uint64_t step) const {
    const std::uint64_t done = step - begin_;
    const std::uint64_t n = refreshes_ > 0 ? gap_after(step) : (done + 1) / 2;
    return n < 1 ? 1 : n > window_ ? window_ : n;
  }
  [[nodiscard]] bool is_looked_back_on(std::uint64_t step) const {
    return end_ > begin_ + 1 && step + look_back(end_ - 1) == end_ - 1;
  }
  [[nodiscard]] std::size_t n_norms(std::uint64_t end) const {
    return end == 0 ? static_cast<std::size_t>(window_) : 1;
  }
  [[noreturn, gnu::cold]] void refuse_window() const {
    throw invalid_input(detail::message("freeze_options: after is 0, and beta2 ", beta2_,
                                        " asks for the norms of ", 1 / (1 - beta2_),
                                        " steps; freeze after a number of steps"));
  }
  void compare(std::uint64_t step, double variance_norm) {
    const double now = variance_norm;
    const std::uint64_t ago = look_back(step);
    // read before it is overwritten: it may be the same
    const double then = step >= begin_ + ago ? norms_[(step - ago) % norms_.size()] : 0;
    norms_[step % norms_.size()] = now;
    if (!automatic() && step + 1 < end_) return;
    ratio_ = !(now > 0 && then > 0) ? 0 : now < then ? now / then : then / now;
    stable_ = automatic() && ratio_ >= options_.ratio && step + 1 >= begin_ + least_warm_up &&
              step + 1 >= begin_ + options_.lr_warmup_steps && step >= last_rise_ + ago;
  }

  freeze_options options_;
  std::uint64_t refreshes_;
  double beta2_;
  std::uint64_t window_;           ///< 1 / (1 - beta2)
  std::uint64_t begin_ = 0, end_;  ///< steps of the warm-up; end 0: when v is stable
  bool stable_ = false;            ///< what the automatic freeze found
  std::uint64_t next_refresh_ = 0;
  double ratio_ = 0;
  std::uint64_t last_rise_ = 0;  ///< the last step whose learning rate was above the one before
  float lr_ = 0;
  std::vector<double> norms_;  ///< of the last steps, or of the one that is looked back on
};

[[gnu::cold]] inline freeze::freeze(freeze_options options, double beta2, std::uint64_t refreshes)
    : options_(options), refreshes_(refreshes), beta2_(beta2), window_(1), end_(options.after) {
  if (!(options.ratio >= 0 && options.ratio <= 1)) {
    throw invalid_input(detail::message("freeze_options: ratio is ", options.ratio,
                                        ", must be 0 (by itself) or above 0 and at most 1"));
  }
  if (options.ratio == 0) options_.ratio = refreshes > 0 ? 0.9 : 0.96;
  if (!(beta2 >= 0 && beta2 < 1)) {
    throw invalid_input(detail::message("freeze: beta2 is ", beta2, ", must be in [0, 1)"));
  }
  const double window = 1 / (1 - beta2);
  if (automatic() && window > max_window) refuse_window();
  window_ = static_cast<std::uint64_t>((window < max_window ? window : max_window) + 0.5);
  norms_.resize(n_norms(end_));
}

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
  static constexpr bool thaws = true;  ///< see optimizer::thaw
  /// Throws invalid_input when warmup_steps, kappa or max_interval is 0.
  explicit intervals(intervals_options o) : options_(o), warm_up_(o.warmup_steps) {
    if (o.kappa == 0 || o.max_interval == 0 || o.warmup_steps == 0) {
      throw invalid_input(detail::message("intervals_options: kappa is ", o.kappa,
                                          ", warmup_steps ", o.warmup_steps, ", max_interval ",
                                          o.max_interval, "; all must be at least 1"));
    }
  }

  /// See Schedule.
  [[nodiscard]] step_plan plan(std::uint64_t step, float lr) const {
    const std::uint64_t s = step - begin_;
    const bool extra = options_.also_every > 0 && (step + 1) % options_.also_every == 0;
    const bool refresh = s == next_refresh_ && (s < warm_up_ || !options_.stop_refreshing);
    const bool stops = options_.stop_refreshing && s + 1 == warm_up_;
    return {.average_gradient = refresh,
            .exchange = extra || s % interval(s, lr) == 0,
            .last_average = stops || (refresh && gap(refreshes_) >= long_gap)};
  }
  /// See Schedule.
  void done(std::uint64_t step, float lr, double) {
    const std::uint64_t s = step - begin_;
    if (s == next_refresh_) {
      next_refresh_ += gap(refreshes_);
      ++refreshes_;
    }
    peak_ = s < warm_up_ || lr > peak_ ? lr : peak_;
  }
  /// From `step` on as from the first step on, with a warm-up of `warm_up` steps.
  /// Throws invalid_input when it is 0.
  void thaw(std::uint64_t step, std::uint64_t warm_up) {
    if (warm_up == 0) {
      throw invalid_input(
          detail::message("intervals: a warm-up anew of 0 steps; must be at least 1"));
    }
    begin_ = step;
    warm_up_ = warm_up;
    next_refresh_ = refreshes_ = 0;
    peak_ = 0;
  }
  /// See Schedule.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(begin_);
    a.scalar(warm_up_);
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
  /// `step` and `next_refresh_` count from `begin_`.
  [[nodiscard]] std::uint64_t interval(std::uint64_t step, float lr) const {
    if (step < warm_up_) return 1;
    std::uint64_t doublings = 0;
    if (options_.doubling_steps > 0) {
      doublings = (step - warm_up_) / options_.doubling_steps;
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
  std::uint64_t begin_ = 0, warm_up_;
  std::uint64_t next_refresh_ = 0, refreshes_ = 0;
  float peak_ = 0;  ///< the learning rate from which halvings count
};

static_assert(Schedule<always_dense> && Schedule<freeze> && Schedule<intervals>);

}  // namespace onebit::inline v0_1
