// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A schedule of one's own: compressed from the peak of the learning rate on. (One that remembers
// nothing is a function: onebit::custom_schedule.)

#include <algorithm>
#include <cstdint>
#include <onebit/core/concepts.hpp>

class from_the_peak : public onebit::schedule_defaults {
 public:
  // What the next step does. Every rank sees the same numbers and makes the same plan.
  onebit::step_plan plan(std::uint64_t, float lr) const {
    if (over_ || lr < peak_) return {.average_gradient = false, .exchange = true};
    return {.average_gradient = true, .ends_warm_up = true};
  }
  // After each step that was done, so not after one that all skipped.
  void done(std::uint64_t, float lr) {
    over_ = over_ || lr < peak_;
    peak_ = std::max(peak_, lr);
  }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(over_);
    a.scalar(peak_);
  }

 private:
  bool over_ = false;
  float peak_ = 0;
};
