// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam with a custom compressor, int8_per_tile.hpp.

#include <cstdio>
#include <cstdlib>
#include <onebit/onebit.hpp>
#include <vector>

#include "int8_per_tile.hpp"

namespace {

/// Trains towards x = 1, with a different gradient on each rank. Prints loss and bytes of a step.
template <class Collective>
double train(const char* name, const Collective& collective) {
  double loss = 0;
  onebit::run_threads(2, [&](onebit::threads comm) {
    std::vector<float> x(10000, 0.0F), grad(x.size());
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, grad});
    onebit::one_bit_adam_options options;
    options.freeze.after = 50;
    auto optimizer = onebit::one_bit_adam(groups, comm, options, collective);
    onebit::report last;
    for (int step = 0; step < 400; ++step) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float noise = comm.rank() == 0 ? 0.5F : -0.5F;
        grad[i] = x[i] - 1 + (i % 3 == 0 ? noise : 0.0F);
      }
      last = optimizer.step(0.02F / (1 + 0.01F * static_cast<float>(step)));
    }
    if (comm.rank() != 0) return;
    for (const float value : x) loss += (value - 1) * (value - 1) / static_cast<double>(x.size());
    std::printf("%-14s  loss %.7f  %6llu bytes per step\n", name, loss,
                static_cast<unsigned long long>(last.bytes_sent));
  });
  return loss;
}

}  // namespace

int main() {
  const double ours = train("int8 per tile", onebit::gather_scatter{int8_per_tile{}});
  const double sign = train("sign", onebit::gather_scatter<onebit::sign<>>{});
  const double exact = train("exact", onebit::gather_scatter<onebit::identity>{});
  const bool good = ours < 1e-3 && sign < 1e-2 && exact < 1e-3;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
