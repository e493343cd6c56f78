// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <vector>

/// When a step averages gradients and when it exchanges compressed messages.
namespace onebit {

/// Never compresses: the schedule of the baselines.
struct always_dense {
  static constexpr bool compresses = false;
  [[nodiscard]] step_plan plan(std::uint64_t, float) const { return {true, false}; }
  [[nodiscard]] bool wants_variance_norm() const { return false; }
  [[nodiscard]] bool freezes_after(std::uint64_t, double) { return false; }
  template <class Archive>
  void archive(Archive&) {}
};

/// Options of `freeze`: after a number of steps, or by itself.
struct freeze_options {
  /// Warm-up steps, the first of which has number 0; 0: freeze automatically.
  std::uint64_t after = 0;
  /// Automatic: freeze when ||v_{t-D}||_1 / ||v_t||_1 >= ratio, D = 1 / (1 - beta2) steps ...
  double ratio = 0.96;
  /// ... and no earlier than after the learning rate's own warm-up.
  std::uint64_t lr_warmup_steps = 0;
};

/// Warm-up with exact averages, then compressed for good. 15-25% of all steps are a usual warm-up.
/// Source: 1-bit Adam, algorithm 1 and section 7.1 (the automatic freeze).
class freeze {
 public:
  static constexpr bool compresses = true;

  /// The most steps that the automatic freeze looks back.
  static constexpr double max_window = 1e7;

  /// Throws invalid_input when ratio is outside (0, 1], beta2 outside [0, 1), or too close to 1 for
  /// an automatic freeze.
  freeze(freeze_options options, double beta2) : options_(options) {
    if (!(options.ratio > 0 && options.ratio <= 1)) {
      throw invalid_input(
          detail::message("freeze: ratio is ", options.ratio, ", must be above 0 and at most 1"));
    }
    if (!(beta2 >= 0 && beta2 < 1)) {
      throw invalid_input(detail::message("freeze: beta2 is ", beta2, ", must be in [0, 1)"));
    }
    if (options.after > 0) return;
    const double window = 1 / (1 - beta2);
    if (window > max_window) {
      throw invalid_input(detail::message("freeze: beta2 ", beta2, " asks for the norms of ",
                                          window, " steps; freeze after a number of steps"));
    }
    norms_.resize(static_cast<std::size_t>(std::lround(window)));
  }

  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] step_plan plan(std::uint64_t, float) const {
    return frozen_ ? step_plan{false, true} : step_plan{true, false};
  }

  /// Whether freezes_after looks at ||v||_1.
  [[nodiscard]] bool wants_variance_norm() const { return !frozen_ && options_.after == 0; }

  /// Whether freezes_after may say yes: then the step's outcome must be known, since one that was
  /// skipped is not the last of the warm-up.
  [[nodiscard]] bool may_freeze_after(std::uint64_t step) const {
    return !frozen_ && (options_.after == 0 || step + 1 >= options_.after);
  }
  /// Called once after every dense step; step counts from 0. True: this was the last of the
  /// warm-up.
  [[nodiscard]] bool freezes_after(std::uint64_t step, double variance_norm) {
    if (frozen_) return false;
    if (options_.after > 0) {
      frozen_ = step + 1 >= options_.after;
    } else {
      double& slot = norms_[step % norms_.size()];
      const double before = slot;  // D steps ago
      slot = variance_norm;
      frozen_ = step >= norms_.size() && step + 1 >= options_.lr_warmup_steps &&
                variance_norm > 0 && before / variance_norm >= options_.ratio;
    }
    return frozen_;
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    a.vector(norms_);
  }

 private:
  freeze_options options_;
  bool frozen_ = false;
  std::vector<double> norms_;  ///< of the last D steps
};

}  // namespace onebit
