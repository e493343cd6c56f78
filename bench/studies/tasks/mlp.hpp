// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// Two layers of 64 units learn the classes that another net, with random weights, assigns. Half of
/// the inputs are ten times smaller than the others, and so are the gradients of their weights.
template <class Real>
class mlp : public task<Real> {
 public:
  explicit mlp(std::uint64_t seed) : task<Real>(2000) {
    counter_random random{seed, 3}, of_teacher{9};
    for (std::size_t k = 0; k < n_layers; ++k) {
      this->add_tensor(sizes[k], sizes[k + 1], 1 / std::sqrt(sizes[k]), random);
      this->add_tensor(1, sizes[k + 1], 0, random);
    }
    for (double& w : first_.reshaped()) w = of_teacher.normal();
    for (double& w : second_.reshaped()) w = of_teacher.normal();
  }
  void change_truth() override { second_ = -second_; }

 private:
  static constexpr std::size_t n_layers = 3;
  static constexpr int sizes[n_layers + 1] = {20, 64, 64, 10};

  common::linear<Real> layer(std::size_t k) {
    return {&this->tensors[2 * k], &this->tensors[2 * k + 1]};
  }

  double batch(counter_random& random, int n, bool learns) override {
    matrix<double> input(n, sizes[0]);
    std::vector<int> labels(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
      for (double& x : input.row(i)) x = random.normal();
      input.row(i).tail(sizes[0] / 2) *= 0.1;
      const matrix<double> hidden = (input.row(i) * first_).array().tanh();
      (hidden * second_).row(0).maxCoeff(&labels[static_cast<std::size_t>(i)]);
    }

    std::vector<matrix<Real>> a(n_layers + 1);
    a[0] = input.template cast<Real>();
    for (std::size_t k = 0; k < n_layers; ++k) {
      layer(k).forward(a[k], a[k + 1]);
      if (k + 1 < n_layers) a[k + 1] = a[k + 1].cwiseMax(Real(0));
    }
    matrix<Real> da = a[n_layers], before;
    const double loss = common::softmax_loss<Real>(da, labels);
    if (!learns) return loss;

    common::softmax_gradient<Real>(da, labels);
    for (std::size_t k = n_layers; k-- > 0;) {
      layer(k).backward(a[k], da, before);
      da = before.cwiseProduct((a[k].array() > 0).matrix().template cast<Real>());
    }
    return loss;
  }

  matrix<double> first_{sizes[0], 12}, second_{12, sizes[n_layers]};  // the teacher
};

}  // namespace tasks
