// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the convolution's gradients with central differences, in double precision. The loss is a
// sum of the outputs with random weights. Exits with 1 if any differs.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/random.hpp"
#include "convolution.hpp"

int main() {
  using matrix = common::matrix<double>;
  common::tensor<double> weight("weight", 3 * 3 * 2, 4, true), bias("bias", 1, 4, false);
  image_classifier::convolution<double> layer{{&weight, &bias}, 8, 2, 3, 2};
  common::counter_random random{1};
  matrix x(3, 8 * 8 * 2), y, of_loss(3, layer.places() * layer.places() * 4), dx;
  for (auto* t : {&weight, &bias}) {
    for (double& v : t->value) v = random.normal();
  }
  for (double& v : x.reshaped()) v = random.normal();
  for (double& v : of_loss.reshaped()) v = random.normal();
  const auto loss = [&] {
    layer.forward(x, y);
    return y.cwiseProduct(of_loss).sum();
  };

  loss();
  matrix dy = of_loss;
  layer.backward(dy, dx);
  double worst = 0;
  std::size_t checked = 0;
  const auto check = [&](double& value, double gradient) {
    constexpr double step = 1e-5;
    const double kept = value;
    value = kept + step;
    const double above = loss();
    value = kept - step;
    const double below = loss();
    value = kept;
    const double off = std::abs((above - below) / (2 * step) - gradient);
    worst = off <= worst ? worst : off;  // a NaN stays
    ++checked;
  };
  for (auto* t : {&weight, &bias}) {
    for (std::size_t i = 0; i < t->value.size(); ++i) check(t->value[i], t->gradient[i]);
  }
  for (Eigen::Index i = 0; i < x.size(); ++i) check(x.data()[i], dx.data()[i]);
  const bool good = worst <= 1e-8;
  std::printf("gradient check: %zu values, off by at most %.3g: %s\n", checked, worst,
              good ? "good" : "FAILED");
  return good ? 0 : 1;
}
