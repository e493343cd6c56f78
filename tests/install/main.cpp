// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// One Adam step on two ranks: with equal gradients every parameter moves by minus the step size.

#include <onebit/c/onebit.h>  // what C programs include

#include <cmath>
#include <cstdlib>
#include <onebit/onebit.hpp>
#include <span>
#include <vector>

int main() {
  onebit::run_threads(2, [](onebit::threads comm) {
    std::vector<float> w(10), g(10, 1.f);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({std::span<float>(w), std::span<float>(g)});
    auto optimizer = onebit::adam(groups, comm, onebit::adam_options{.bias_correction = true});
    optimizer.step(0.1f);
    for (float x : w) {
      if (std::abs(x + 0.1f) > 1e-4f) std::abort();
    }
  });
}
