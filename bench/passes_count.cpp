// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Steps of 1-bit Adam with its default options, on two ranks, without a trainer: what it executes
// between 24 and 28 steps are four compressed steps without a refresh. See passes_count.sh.
//
//   passes_count <elements> <steps> <scalar | best>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <onebit/algorithms.hpp>
#include <onebit/transport/threads.hpp>
#include <string_view>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::size_t n = std::strtoull(argv[1], nullptr, 10);
  const std::size_t n_steps = std::strtoull(argv[2], nullptr, 10);
  const onebit::isa set =
      std::string_view(argv[3]) == "scalar" ? onebit::isa::scalar : onebit::host::best_isa();
  onebit::run_threads(2, [&](onebit::threads comm) {
    std::vector<float> params(n), grads(n);
    auto x = static_cast<std::uint32_t>(comm.rank()) + 1;
    for (float& g : grads) {
      x = x * 1664525U + 1013904223U;
      g = static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31F;
    }
    std::vector<onebit::param_group<float, float>> groups(1);
    groups[0].tensors.push_back({params, grads});
    auto optimizer = onebit::one_bit_adam(groups, comm, {}, onebit::host(1, set));
    for (std::size_t i = 0; i < n_steps; ++i) optimizer.step(0.001F);
  });
}
