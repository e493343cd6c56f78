// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares every hand-written gradient with central differences, in double precision and on a
// model small enough to try each tensor in many places. Exits with 1 if any differs.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "model.hpp"

int main() {
  using namespace language_model;
  const model_shape shape{.vocabulary = 11, .context = 6, .width = 8, .heads = 2, .layers = 2};
  transformer<double> model(shape, 1);
  common::counter_random random{2};
  // Away from the symmetric starting point, where gains are all one and biases zero.
  for (auto& t : model.tensors()) {
    for (double& v : t.value) v += 0.3 * random.normal();
  }
  std::vector<int> input(3 * 6), target(3 * 6);
  for (int& token : input) token = static_cast<int>(random.below(11));
  for (int& token : target) token = static_cast<int>(random.below(11));

  model.loss_and_gradients(input, target);
  std::vector<std::vector<double>> gradients;
  for (auto& t : model.tensors()) gradients.push_back(t.gradient);

  constexpr double step = 1e-5, tolerance = 1e-7;
  std::size_t tensor_index = 0, checked = 0;
  bool good = true;
  for (auto& t : model.tensors()) {
    double worst = 0;
    for (std::size_t i = 0; i < t.value.size(); ++i) {
      const double kept = t.value[i];
      t.value[i] = kept + step;
      const double above = model.loss(input, target);
      t.value[i] = kept - step;
      const double below = model.loss(input, target);
      t.value[i] = kept;
      const double difference = (above - below) / (2 * step);
      worst = std::max(worst, std::abs(difference - gradients[tensor_index][i]));
      ++checked;
    }
    // Written so that a NaN fails too.
    if (!(worst <= tolerance)) {
      std::printf("gradient check: %s is off by %.3g, allowed %.3g\n", t.name.c_str(), worst,
                  tolerance);
      good = false;
    }
    ++tensor_index;
  }
  std::printf("gradient check: %zu values in %zu tensors %s\n", checked, tensor_index,
              good ? "agree with central differences" : "checked: FAILED");
  return good ? 0 : 1;
}
