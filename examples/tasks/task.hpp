// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What all tasks are: a small model with its gradients, and examples without end.
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

/// A model and what it learns. Real is double where gradients are checked.
template <class Real>
class task {
 public:
  using real = Real;

  std::vector<common::tensor<Real>> tensors;

  explicit task(int n_held_out) : n_held_out_(n_held_out) {}
  virtual ~task() = default;

  /// Draws a batch; the tensors' gradients become those of its mean loss.
  void gradient(counter_random& random, int n) {
    for (auto& t : tensors) std::fill(t.gradient.begin(), t.gradient.end(), Real(0));
    batch(random, n, true);
  }
  /// The mean loss of such a batch.
  double loss(counter_random random, int n) { return batch(random, n, false); }

  /// The loss on examples that are the same for all seeds, and on which nobody trains, as "";
  /// others by name.
  virtual std::map<std::string, double> evaluate() { return {{"", held_out_loss()}}; }

 protected:
  void add_tensor(int rows, int cols, double scale, counter_random& random) {
    tensors.emplace_back("", rows, cols, false);
    for (Real& x : tensors.back().value) x = static_cast<Real>(scale * random.normal());
  }
  double held_out_loss() { return loss(counter_random{1000}, n_held_out_); }

  /// Draws n examples: their mean loss; if `learns`, with its gradients, which were 0.
  virtual double batch(counter_random& random, int n, bool learns) = 0;

 private:
  int n_held_out_;
};

}  // namespace tasks
