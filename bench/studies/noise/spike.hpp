// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// How far one step with gradients 1000 times as large moves parameters, by Adam and by 1-bit Adam,
// if the ranks' gradients are independent noise. Prints the root mean square of all changes, in
// learning rates, 1, 10, 30, 60 and 100 steps from that step on.
#pragma once

#include <cmath>
#include <cstdio>
#include <onebit/onebit.hpp>
#include <random>
#include <vector>

namespace noise {

namespace detail {

template <class Make>
void spike(const char* name, int ranks, float factor, double clip, Make make) {
  onebit::run_threads(ranks, [&](onebit::threads comm) {
    std::vector<float> x(20000), g(x.size());
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto optimizer = make(groups, comm, clip);
    if (comm.rank() == 0)
      std::printf("%-14s ranks %2d factor %6g clip %g:", name, ranks, factor, clip);
    for (int step = 0; step < 700; ++step) {
      std::mt19937 random(static_cast<unsigned>(step * 64 + comm.rank()));
      std::normal_distribution<float> normal;
      for (float& e : g) e = normal(random) * (step == 600 ? factor : 1.0F);
      (void)optimizer.step(step >= 600 ? 1.0F : 0.0F);
      const int after = step - 599;
      if (comm.rank() == 0 &&
          (after == 1 || after == 10 || after == 30 || after == 60 || after == 100)) {
        double sum = 0;
        for (const float e : x) sum += static_cast<double>(e) * e;
        std::printf(" %8.2f", std::sqrt(sum / static_cast<double>(x.size())));
      }
    }
    if (comm.rank() == 0) std::printf("\n");
  });
}

}  // namespace detail

inline void spike() {
  const auto adam = [](const auto& groups, onebit::threads comm, double clip) {
    return onebit::adam(groups, comm, {.max_grad_norm = clip});
  };
  const auto one_bit = [](const auto& groups, onebit::threads comm, double clip) {
    return onebit::one_bit_adam(groups, comm, {.adam = {.max_grad_norm = clip}});
  };
  for (float factor : {1.0F, 1000.0F}) {
    for (int ranks : {2, 4, 16}) {
      detail::spike("adam", ranks, factor, 0, adam);
      detail::spike("one_bit_adam", ranks, factor, 0, one_bit);
    }
  }
  const double usual = std::sqrt(20000.0 / 4);
  detail::spike("adam", 4, 1000, usual, adam);
  detail::spike("one_bit_adam", 4, 1000, usual, one_bit);
}

}  // namespace noise
