// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// A net with a hidden layer fits a value to nine columns of a table as they are: their sizes go
/// from 0.2 to 80, and none has a mean of 0. So a step far too long in few weights is felt by all.
template <class Real>
class columns : public task<Real> {
 public:
  explicit columns(std::uint64_t seed) : task<Real>(2000) {
    counter_random random{seed, 13}, of_teacher{14};
    this->add_tensor(n_columns, n_units, 1 / std::sqrt(n_columns), random);
    this->add_tensor(1, n_units, 0, random);
    this->add_tensor(n_units, 1, 1 / std::sqrt(n_units), random);
    this->add_tensor(1, 1, 0, random);
    for (double& w : first_.reshaped()) w = 0.7 * of_teacher.normal();
    for (double& w : second_.reshaped()) w = of_teacher.normal();
  }
  void change_truth() override { second_ = -second_; }

 private:
  static constexpr int n_columns = 9, n_units = 64;
  static constexpr double noise = 0.3;  // deviation of values; least mean loss: noise^2 / 2

  double batch(counter_random& random, int n, bool learns) override {
    matrix<double> z(n, n_columns);
    for (double& x : z.reshaped<Eigen::RowMajor>()) x = random.normal();
    const matrix<double> of_teacher = (z * first_).array().tanh();
    matrix<Real> wanted = (of_teacher * second_).template cast<Real>();
    for (Real& x : wanted.reshaped()) x += static_cast<Real>(noise * random.normal());
    matrix<double> seen = (1 + 0.5 * z.array()).matrix();
    for (int k = 0; k < n_columns; ++k) {
      seen.col(k) *= 0.2 * std::pow(80 / 0.2, k / (n_columns - 1.0));
    }

    const matrix<Real> input = seen.template cast<Real>();
    const common::linear<Real> in{&this->tensors[0], &this->tensors[1]};
    const common::linear<Real> out{&this->tensors[2], &this->tensors[3]};
    matrix<Real> a, guess, da, unused;
    in.forward(input, a);
    const matrix<Real> h = a.cwiseMax(Real(0));
    out.forward(h, guess);
    const matrix<Real> off = guess - wanted;
    if (learns) {
      out.backward(h, off / static_cast<Real>(n), da);
      in.backward(input, da.cwiseProduct((a.array() > 0).matrix().template cast<Real>()), unused);
    }
    return static_cast<double>(off.squaredNorm()) / 2 / n;
  }

  matrix<double> first_{n_columns, 8}, second_{8, 1};  // the teacher
};

}  // namespace tasks
