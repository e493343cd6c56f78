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

/// The schedule of 1-bit Adam and 1-bit LAMB: dense steps, then compressed steps.
namespace onebit::inline v0_2 {

/// Options of `freeze`.
struct freeze_options {
  std::uint64_t after = 10;  ///< number of dense steps at the start, at least 1
};

namespace detail {

/// Returns a warning if v, after n squares and uncorrected, is over a tenth too small; or nothing.
[[nodiscard, gnu::cold]] inline std::string lacking_variance(double beta2, std::uint64_t n) {
  const double lacks = std::pow(beta2, static_cast<double>(n));
  if (!(beta2 > 0 && lacks > 0.1)) return {};
  return join(4, {"onebit: the dense steps end, and v has averaged ", n,
                  " squares without bias correction, which is too few: v lacks a fraction ", lacks,
                  " of its value, and every step from here on is ", 1 / std::sqrt(1 - lacks),
                  " times too large; average in ", std::ceil(std::log(0.1) / std::log(beta2)),
                  " steps or more, or set bias_correction"});
}

}  // namespace detail

/// Dense steps first, then only compressed steps. Ten dense steps are enough if v is refreshed
/// afterwards; if v is constant afterwards, 15-25% of all steps are usual.
/// Source: 1-bit Adam, algorithm 1, with T_w = `after`. Refreshes are this library's own.
class freeze : public schedule_defaults {
 public:
  /// `refreshes`: as in one_bit_adam_options. `corrected`: true if the rule corrects the bias of v.
  /// Throws invalid_input if `after` is 0, or if beta2 is not in [0, 1).
  freeze(freeze_options options, double beta2, std::uint64_t refreshes = 0, bool corrected = true);

  /// True if `step` comes after the dense steps.
  [[nodiscard]] bool frozen(std::uint64_t step) const { return step >= after_; }
  /// Plans a dense step, or after these steps a compressed one, with a refresh if it is due.
  [[nodiscard]] step_plan plan(std::uint64_t step, float) const {
    if (!frozen(step)) {
      const bool last = step + 1 == after_;
      return {.ends_warm_up = last, .last_average = last};
    }
    const bool refresh = refreshes_ > 0 && step >= next_refresh_ && next_refresh_ > 0;
    return {.average_gradient = refresh,
            .exchange = true,
            .frozen = true,
            .last_average = refresh && gap_after(step) >= long_gap};
  }
  /// Computes the step of the next refresh.
  void done(std::uint64_t step, float) {
    if (!frozen(step)) {
      next_refresh_ = step + 1 + gap_after(step);  // not in the first compressed step
    } else if (step >= next_refresh_) {
      next_refresh_ = step + gap_after(step);
    }
  }
  /// Warns after the last dense step if v, which is constant from then on, is much too small.
  [[nodiscard]] std::string warning() const {
    return corrected_ || refreshes_ > 0 ? "" : detail::lacking_variance(beta2_, after_);
  }
  /// Passes the state to `a`, for checkpoints.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(after_);
    a.scalar(next_refresh_);
  }

 private:
  [[nodiscard]] std::uint64_t gap_after(std::uint64_t step) const {
    if (refreshes_ == 0) return 0;
    const std::uint64_t gap = step / refreshes_;
    return gap < 1 ? 1 : gap;
  }

  std::uint64_t after_, refreshes_;
  double beta2_;
  bool corrected_;
  std::uint64_t next_refresh_ = 0;  ///< 0: no step was done yet, as after start_from
};

[[gnu::cold]] inline freeze::freeze(freeze_options options, double beta2, std::uint64_t refreshes,
                                    bool corrected)
    : after_(options.after), refreshes_(refreshes), beta2_(beta2), corrected_(corrected) {
  if (after_ == 0) {
    throw invalid_input(
        detail::message("freeze_options: after (DeepSpeed: freeze_step) is 0, must be at least 1: "
                        "the first steps are dense, so that v has a start; 10 is the default"));
  }
  if (!(beta2 >= 0 && beta2 < 1)) {
    throw invalid_input(detail::message("freeze: beta2 is ", beta2, ", must be in [0, 1)"));
  }
}

static_assert(Schedule<freeze>);

}  // namespace onebit::inline v0_2
