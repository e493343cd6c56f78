// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// A linear regression on features in units from a thousandth to a thousand, not normalised, which
/// contribute equally to the target. There is hardly any noise.
template <class Real>
class units : public task<Real> {
 public:
  explicit units(std::uint64_t seed) : task<Real>(2000) {
    counter_random random{seed, 11}, of_truth{12};
    this->add_tensor(1, n_features, 0, random);
    for (int i = 0; i < n_features; ++i) {
      unit_(0, i) = std::pow(1e3, 1 - 2.0 * i / (n_features - 1));
      truth_(0, i) = of_truth.normal() / unit_(0, i);
    }
  }
  void change_truth() override { truth_ = -truth_; }

 private:
  static constexpr int n_features = 50;
  static constexpr double noise = 0.1;

  double batch(counter_random& random, int n, bool learns) override {
    auto& weights = this->tensors[0];
    double loss = 0;
    matrix<double> x(1, n_features);
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < n_features; ++k) x(0, k) = unit_(0, k) * random.normal();
      const double wanted = x.row(0).dot(truth_.row(0)) + noise * random.normal();
      const matrix<Real> seen = x.template cast<Real>();
      const double off = static_cast<double>(seen.row(0).dot(weights.values().row(0))) - wanted;
      loss += off * off / 2 / n;
      if (learns) weights.gradients().row(0) += static_cast<Real>(off / n) * seen.row(0);
    }
    return loss;
  }

  matrix<double> unit_{1, n_features}, truth_{1, n_features};
};

}  // namespace tasks
