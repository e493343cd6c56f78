// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/schedule/custom.hpp>
#include <string>
#include <vector>

/// A warm-up that averages gradients, then compressed messages: 1-bit Adam and 1-bit LAMB.
namespace onebit::inline v0_2 {

/// Options of `freeze`: after a number of steps, or by itself.
struct freeze_options {
  /// Warm-up steps, the first of which has number 0; 0: freeze automatically.
  std::uint64_t after = 0;
  /// Automatic: freeze when ||v||_1, corrected for its bias, is what it was: the smaller at least
  /// this part of the larger. It is compared with the ||v||_1 of as many steps ago as there are up
  /// to the first refresh; without refreshes, of half of all steps ago, at most
  /// 1 / (1 - beta2). At least 16 steps are warm-up, and in those that are looked back on the
  /// learning rate must not have risen.
  /// 0: 0.96 as in the paper, 0.9 with refreshes.
  double ratio = 0;
};

namespace detail {

/// What becomes of a v that has averaged n squares, where nobody corrects its bias; empty: little.
[[nodiscard, gnu::cold]] inline std::string lacking_variance(double beta2, std::uint64_t n) {
  const double lacks = std::pow(beta2, static_cast<double>(n));
  if (!(beta2 > 0 && lacks > 0.1)) return {};
  return join(4, {"onebit: the warm-up ends, and v has averaged ", n,
                  " squares without correction of biases: it lacks ", lacks,
                  " of what it averages, and every step from here on is ", 1 / std::sqrt(1 - lacks),
                  " times too large; average in ", std::ceil(std::log(0.1) / std::log(beta2)),
                  " steps or more, or set bias_correction"});
}

}  // namespace detail

/// Warm-up with exact averages, then compressed for good. 15-25% of all steps are a usual warm-up
/// where v is constant afterwards, and `warning` says when v still moved; where it is refreshed,
/// ten steps are enough. Source: 1-bit Adam, algorithm 1 and section 7.1: without refreshes the
/// automatic freeze is the paper's from step 2 / (1 - beta2) on, but that a v that falls is not
/// stable either.
class freeze : public schedule_defaults {
 public:
  /// The shortest automatic warm-up: an element's v is then an average of so many squares.
  static constexpr std::uint64_t least_warm_up = 16;
  /// The most steps that the automatic freeze looks back.
  static constexpr double max_window = 1e7;

  /// `refreshes` as one_bit_adam_options has it. Throws invalid_input when ratio is outside [0, 1],
  /// beta2 outside [0, 1), or too close to 1 for an automatic freeze.
  /// `corrected`: the rule corrects the bias of v, which else stays in it.
  freeze(freeze_options options, double beta2, std::uint64_t refreshes = 0, bool corrected = true);

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
    const bool looks = automatic() || (refreshes_ == 0 && (last || is_looked_back_on(step)));
    return {
        .needs_variance_norm = looks, .may_end_warm_up = automatic() || last, .last_average = last};
  }
  /// See Schedule.
  void done(std::uint64_t step, float lr, double variance_norm) {
    if (lr > lr_) last_rise_ = step;
    lr_ = lr;
    const bool warms_up = !frozen(step);
    if (plan(step, lr).needs_variance_norm) compare(step, variance_norm);
    if (warms_up)
      next_refresh_ = step + 1 + gap_after(step);  // not in the first one
    else if (step >= next_refresh_)
      next_refresh_ = step + gap_after(step);
  }
  /// ||v||_1 now over what it was, or the other way round where it fell, as `ratio` is compared
  /// with, in the last warm-up step that looked; 0: none did.
  [[nodiscard]] double variance_ratio() const { return ratio_; }
  /// After the last step of the warm-up: that v lacks much of what it averages, or that it moved.
  [[nodiscard]] std::string warning() const {
    const bool follows = refreshes_ > 0;  // v goes on
    if (!corrected_ && !follows && !automatic()) {
      std::string lacking = detail::lacking_variance(beta2_, end_);
      if (!lacking.empty()) return lacking;
    }
    if (follows || automatic() || ratio_ >= options_.ratio || !(ratio_ > 0)) return {};
    const std::uint64_t last = end_ - 1;
    return detail::join(3, {"onebit: the warm-up ends after ", end_, " steps, in the last ",
                            look_back(last), " of which ||v||_1 changed by a factor of ", ratio_,
                            "; it stays as it is from here on: a longer warm-up (", options_.ratio,
                            " is stable) trains better"});
  }
  /// See Schedule.
  template <class Archive>
  void archive(Archive& a) {
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
    const std::uint64_t gap = step / refreshes_;
    return gap < 1 ? 1 : gap;
  }

  /// With how many steps ago the norm of a step is compared.
  [[nodiscard]] std::uint64_t look_back(std::uint64_t step) const {
    const std::uint64_t n = refreshes_ > 0 ? gap_after(step) : (step + 1) / 2;
    return n < 1 ? 1 : n > window_ ? window_ : n;
  }
  [[nodiscard]] bool is_looked_back_on(std::uint64_t step) const {
    return end_ > 1 && step + look_back(end_ - 1) == end_ - 1;
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
    const double then = step >= ago ? norms_[(step - ago) % norms_.size()] : 0;
    norms_[step % norms_.size()] = now;
    if (!automatic() && step + 1 < end_) return;
    ratio_ = !(now > 0 && then > 0) ? 0 : now < then ? now / then : then / now;
    stable_ = automatic() && ratio_ >= options_.ratio && step + 1 >= least_warm_up &&
              step >= last_rise_ + ago;
  }

  freeze_options options_;
  std::uint64_t refreshes_;
  double beta2_;
  bool corrected_;
  std::uint64_t window_;  ///< 1 / (1 - beta2)
  std::uint64_t end_;     ///< of the warm-up; 0: when v is stable
  bool stable_ = false;   ///< what the automatic freeze found
  std::uint64_t next_refresh_ = 0;
  double ratio_ = 0;
  std::uint64_t last_rise_ = 0;  ///< the last step whose learning rate was above the one before
  float lr_ = 0;
  std::vector<double> norms_;  ///< of the last steps, or of the one that is looked back on
};

[[gnu::cold]] inline freeze::freeze(freeze_options options, double beta2, std::uint64_t refreshes,
                                    bool corrected)
    : options_(options),
      refreshes_(refreshes),
      beta2_(beta2),
      corrected_(corrected),
      window_(1),
      end_(options.after) {
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

static_assert(Schedule<freeze>);

}  // namespace onebit::inline v0_2
