// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Values that follow from the length of a run: learning rate, validations, steps before freezing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <onebit/schedule/freeze.hpp>
#include <string>

namespace common {

// Learning rate of a step: warm-up over the share `warm_up` of the run, then a cosine down to a
// twentieth of the peak.
inline float learning_rate(double peak, std::int64_t step, std::int64_t steps,
                           double warm_up = 0.1) {
  const auto s = static_cast<double>(step), n = static_cast<double>(steps);
  const double warm = std::max(1.0, std::ceil(warm_up * n));
  if (s < warm) return static_cast<float>(peak * (s + 1) / warm);
  const double done = (s - warm) / std::max(1.0, n - warm);
  const double cosine = 0.5 + 0.5 * std::cos(3.141592653589793 * done);
  return static_cast<float>(peak * (0.05 + 0.95 * cosine));
}

// Steps between validations: at most 16 validations in a run, at most one per ten steps, at equal
// distances, the last one after the last step.
inline std::int64_t validation_interval(std::int64_t steps) {
  auto validations = std::clamp<std::int64_t>(steps / 10, 1, 16);
  while (steps % validations != 0) --validations;
  return steps / validations;
}

// Default of freeze_after: the library's for 1-bit Adam and 1-bit LAMB, which refresh v later; for
// 0/1 Adam a tenth of the run, in which every step exchanges.
inline std::int64_t default_freeze(const std::string& algorithm, std::int64_t steps) {
  const auto few = std::min(steps, static_cast<std::int64_t>(onebit::freeze_options{}.after));
  return algorithm == "zero_one_adam" ? std::max(steps / 10, few) : few;
}

}  // namespace common
