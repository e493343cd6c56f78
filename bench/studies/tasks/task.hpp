// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Base of all tasks: a small model with its gradients, and examples without end.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/random.hpp"
#include "common/tensor.hpp"

namespace tasks {

using common::counter_random;
using common::matrix;

/// A model and its examples. Real is double in the check of gradients.
template <class Real>
class task {
 public:
  using real = Real;

  std::vector<common::tensor<Real>> tensors;
  Real gradient_factor = 1;  // of all gradients, not of losses

  explicit task(int n_held_out) : n_held_out_(n_held_out) {}
  virtual ~task() = default;

  /// Draws a batch, and sets the tensors' gradients to the gradient of its mean loss.
  void gradient(counter_random& random, int n) {
    for (auto& t : tensors) std::fill(t.gradient.begin(), t.gradient.end(), Real(0));
    batch(random, n, true);
    if (gradient_factor == Real(1)) return;
    for (auto& t : tensors) {
      for (Real& g : t.gradient) g *= gradient_factor;
    }
  }
  /// Lets another truth than so far make the examples, also those that are held out.
  virtual void change_truth() = 0;

  /// Draws a batch, and returns its mean loss.
  double loss(counter_random random, int n) { return batch(random, n, false); }

  /// Returns losses by name. "": the loss on held-out examples, which are equal for all seeds and
  /// never trained on. Other names: further losses of the task.
  virtual std::map<std::string, double> evaluate() { return {{"", held_out_loss()}}; }

 protected:
  void add_tensor(int rows, int cols, double scale, counter_random& random) {
    tensors.emplace_back("", rows, cols, false);
    for (Real& x : tensors.back().value) x = static_cast<Real>(scale * random.normal());
  }
  double held_out_loss() { return loss(counter_random{1000}, n_held_out_); }

  /// Draws n examples. Returns their mean loss; if `learns`, adds its gradient to the gradients.
  virtual double batch(counter_random& random, int n, bool learns) = 0;

 private:
  int n_held_out_;
};

}  // namespace tasks
