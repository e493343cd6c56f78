// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/schedule.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/schedule/custom.hpp>
#include <string>

/// The schedule of 1-bit Adam and 1-bit LAMB: dense steps, then compressed steps.
namespace onebit { inline namespace v0_3 {

/// Options of `freeze`.
struct freeze_options {
  /// Number of dense steps at the start, counted from the first step of this optimizer, after
  /// optimizer::start_from too. 0: none, which needs moments from start_from; not for LAMB.
  std::uint64_t after = 5;
};

namespace detail {

/// Gaps between refreshes of v: the gap after t steps is t / refreshes steps, at least 1, and at
/// most half of v's memory, 1 / (1 - beta2), or 200 steps.
struct refresh_gaps {
  std::uint64_t refreshes = 0;  ///< 0: never
  double beta2 = 0;

  /// Returns the gap that follows a refresh in `step`, counted from 0.
  [[nodiscard]] std::uint64_t gap_after(std::uint64_t step) const {
    if (refreshes == 0) return 0;
    const double half = 0.5 / (1 - beta2);
    const auto most = static_cast<std::uint64_t>(half < 1 ? 1 : half > 200 ? 200 : half + 1e-6);
    const std::uint64_t gap = step / refreshes;
    return gap < 1 ? 1 : gap > most ? most : gap;
  }
};

/// Returns a warning if v, after n squares and uncorrected, is over a tenth too small; or nothing.
[[nodiscard, gnu::cold]] inline std::string lacking_variance(double beta2, std::uint64_t n) {
  const double lacks = std::pow(beta2, static_cast<double>(n));
  if (!(beta2 > 0 && lacks > 0.1)) return {};
  return join({"onebit: the dense steps end, and v has averaged ", n,
               " squares without bias correction, which is too few: v lacks a fraction ",
               rounded_text(lacks, 4), " of its value, and every step from here on is ",
               rounded_text(1 / std::sqrt(1 - lacks), 4), " times too large; average in ",
               static_cast<std::uint64_t>(std::ceil(std::log(0.1) / std::log(beta2))),
               " steps or more, or set bias_correction"});
}

}  // namespace detail

/// Dense steps first, then only compressed steps. Five dense steps are enough if v is refreshed
/// afterwards; if v is constant afterwards, 15-25% of all steps are usual.
/// Source: 1-bit Adam, algorithm 1, with T_w = `after`. Refreshes are this library's own.
class freeze : public schedule_defaults {
 public:
  /// `beta2`: the smallest of all groups. `refreshes`: as in one_bit_adam_options. `corrected`:
  /// true if the rule corrects the bias of v. Throws invalid_input if beta2 is not in [0, 1).
  freeze(freeze_options options, double beta2, std::uint64_t refreshes = 0, bool corrected = true);

  /// True if `step` comes after the dense steps.
  [[nodiscard]] bool frozen(std::uint64_t step) const { return step >= after_; }
  /// An average in a dense step; after these an exchange, and an average if a refresh is due.
  [[nodiscard]] due due_in(std::uint64_t step, float) const {
    if (!frozen(step)) {
      const bool last = step + 1 == after_;
      return {.next_needs_outcome = last, .frees_averages = last};
    }
    const bool refresh = gaps_.refreshes > 0 && step >= next_refresh_ && next_refresh_ > 0;
    return {.average = refresh,
            .exchange = true,
            .frees_averages = refresh && gaps_.gap_after(step) >= detail::long_gap};
  }
  /// Computes the step of the next refresh.
  void done(std::uint64_t step, float) {
    if (!frozen(step)) {
      next_refresh_ = step + 1 + gaps_.gap_after(step);  // not in the first compressed step
    } else if (step >= next_refresh_) {
      next_refresh_ = step + gaps_.gap_after(step);
    }
  }
  /// Warns after the last dense step if v, which is constant from then on, is much too small.
  [[nodiscard]] std::string warning() const {
    return corrected_ || gaps_.refreshes > 0 ? "" : detail::lacking_variance(gaps_.beta2, after_);
  }
  /// Warns of dense steps after optimizer::start_from, which gave moments of `steps` steps.
  [[nodiscard, gnu::cold]] std::string start_warning(std::uint64_t steps) const {
    if (after_ == 0) return {};
    return detail::join({"onebit: start_from: the moments are of ", steps,
                         " steps, and freeze.after counts from here on: ", after_,
                         " dense steps follow; 0 makes none (1-bit LAMB needs them)"});
  }
  /// Passes the state to `a`, for checkpoints.
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(after_);
    a.scalar(next_refresh_);
  }

 private:
  std::uint64_t after_;
  detail::refresh_gaps gaps_;
  bool corrected_;
  std::uint64_t next_refresh_ = 0;  ///< 0: no step was done yet, as after start_from
};

[[gnu::cold]] inline freeze::freeze(freeze_options options, double beta2, std::uint64_t refreshes,
                                    bool corrected)
    : after_(options.after), gaps_{refreshes, beta2}, corrected_(corrected) {
  if (!(beta2 >= 0 && beta2 < 1)) {
    throw invalid_input(detail::error_text("freeze: beta2 is ", beta2, ", must be in [0, 1)"));
  }
}

static_assert(Schedule<freeze>);

}}  // namespace onebit
