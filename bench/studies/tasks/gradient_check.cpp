// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the gradients of each task with central differences, in double precision. Exits with 1
// if any differs.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "all.hpp"

namespace {

/// The tolerance is relative to the largest gradient of the tensor. With steps of 1e-5 the third
/// derivative leaves an error of 1e-10, and rounding of the loss 1e-16 / 1e-5. 1e-7 has room for
/// both; a missing term is off by far more.
constexpr double step = 1e-5, tolerance = 1e-7;
constexpr int batch = 3;

bool is_right(const tasks::entry<double>& entry) {
  const auto model = entry.make(1);
  tasks::counter_random draw{2};
  // leaves the biases of 0, at which units and their gradients may be equal
  for (auto& t : model->tensors) {
    for (double& x : t.value) x += 0.1 * draw.normal();
  }
  const tasks::counter_random examples{3};
  tasks::counter_random drawn = examples;
  model->gradient(drawn, batch);

  double worst = 0;
  std::size_t n_checked = 0;
  for (auto& t : model->tensors) {
    double largest = 0;
    for (const double g : t.gradient) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < t.value.size(); ++i) {
      // in large tensors: all elements that have a gradient, and some of the others
      if (t.value.size() > 5000 && t.gradient[i] == 0 && i % 97 != 0) continue;
      double& x = t.value[i];
      const double kept = x;
      x = kept + step;
      const double above = model->loss(examples, batch);
      x = kept - step;
      const double below = model->loss(examples, batch);
      x = kept;
      const double off = std::abs((above - below) / (2 * step) - t.gradient[i]) / largest;
      worst = off <= worst ? worst : off;  // keeps a NaN
      ++n_checked;
    }
  }
  const bool good = worst <= tolerance;
  std::printf("%s: %zu gradients, off by at most %.2g of the largest: %s\n", entry.name.c_str(),
              n_checked, worst, good ? "good" : "FAILED");
  return good;
}

}  // namespace

int main() {
  bool good = true;
  for (const auto& entry : tasks::all<double>()) good = is_right(entry) && good;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
