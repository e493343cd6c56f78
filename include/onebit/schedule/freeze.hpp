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

/// Dense steps, then compressed ones: 1-bit Adam and 1-bit LAMB.
namespace onebit::inline v0_2 {

/// Options of `freeze`.
struct freeze_options {
  std::uint64_t after = 10;  ///< dense steps, at least 1, the first of which has number 0
};

namespace detail {

/// What becomes of a v that has averaged n squares, where nobody corrects its bias; empty: little.
[[nodiscard, gnu::cold]] inline std::string lacking_variance(double beta2, std::uint64_t n) {
  const double lacks = std::pow(beta2, static_cast<double>(n));
  if (!(beta2 > 0 && lacks > 0.1)) return {};
  return join(4, {"onebit: the dense steps end, and v has averaged ", n,
                  " squares without correction of biases: it lacks ", lacks,
                  " of what it averages, and every step from here on is ", 1 / std::sqrt(1 - lacks),
                  " times too large; average in ", std::ceil(std::log(0.1) / std::log(beta2)),
                  " steps or more, or set bias_correction"});
}

}  // namespace detail

/// Steps with exact averages, then compressed for good. Where v is refreshed, ten dense steps are
/// enough; where it is constant afterwards, 15-25% of all steps are usual.
/// Source: 1-bit Adam, algorithm 1, with T_w = `after`; refreshes are this library's.
class freeze : public schedule_defaults {
 public:
  /// `refreshes` as one_bit_adam_options has it. `corrected`: the rule corrects the bias of v,
  /// which else stays in it. Throws invalid_input when `after` is 0, or beta2 outside [0, 1).
  freeze(freeze_options options, double beta2, std::uint64_t refreshes = 0, bool corrected = true);

  /// Is step the first after the dense ones, or later?
  [[nodiscard]] bool frozen(std::uint64_t step) const { return step >= after_; }
  /// See Schedule.
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
  /// See Schedule.
  void done(std::uint64_t step, float) {
    if (!frozen(step)) {
      next_refresh_ = step + 1 + gap_after(step);  // not in the first compressed one
    } else if (step >= next_refresh_) {
      next_refresh_ = step + gap_after(step);
    }
  }
  /// After the last dense step: that v lacks much of what it averages.
  [[nodiscard]] std::string warning() const {
    return corrected_ || refreshes_ > 0 ? "" : detail::lacking_variance(beta2_, after_);
  }
  /// See Schedule.
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
  std::uint64_t next_refresh_ = 0;  ///< 0: no step was done, as after start_from
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
