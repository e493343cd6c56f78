// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A custom schedule: compresses once the learning rate has passed its peak. (A schedule without
// state can be a function: onebit::custom_schedule.)

#include <algorithm>
#include <cstdint>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/schedule.hpp>

class from_the_peak : public onebit::schedule_defaults {
 public:
  // What is due in the next step. Every rank gets equal arguments and says the same. A skipped step
  // comes again, perhaps at another rate: what `done` has seen decides, not `lr`.
  onebit::due due_in(std::uint64_t, float) const {
    if (over_) return {.average = false, .exchange = true};
    return {.average = true, .next_needs_outcome = true};
  }
  // Called after each step, except a step that all ranks skipped.
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
