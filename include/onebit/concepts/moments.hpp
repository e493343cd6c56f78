// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

/// Betas of moments, and what a step does to them.
namespace onebit { inline namespace v0_3 {

/// Betas and eps of Adam, for one group or for all.
struct moments {
  /// @{
  /// As in adam_options.
  double beta1 = 0, beta2 = 0, eps = 1;
  /// @}
};
namespace detail {

/// Betas and eps that a group sets for itself.
struct group_moments {
  /// @{
  /// Empty: the value of the rule.
  std::optional<double> beta1{}, beta2{}, eps{};
  /// @}
  /// True if the group sets at least one value.
  [[nodiscard]] bool any() const { return beta1 || beta2 || eps; }
  friend bool operator==(const group_moments&, const group_moments&) = default;
};

/// Bias of the moments: an average that starts from 0 is too small by the factor 1 - bias.
struct bias_decay {
  /// @{
  /// Product of beta1 (for v: beta2) over the gradients that the moment has taken in.
  double m = 0, v = 0;
  /// @}
};

}  // namespace detail
/// Effect of a step on the moments.
struct moments_updated {
  /// @{
  /// True if the step corrects the bias of m and v; if m takes in a gradient; if v does.
  bool corrected = false, m = false, v = false;
  /// @}
};

}}  // namespace onebit
