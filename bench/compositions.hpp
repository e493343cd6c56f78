// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every algorithm: what the benchmarks of steps and of memory measure.

#ifndef ONEBIT_BENCH_COMPOSITIONS_HPP
#define ONEBIT_BENCH_COMPOSITIONS_HPP

#include <functional>
#include <onebit/any_optimizer.hpp>
#include <onebit/transport/communicator.hpp>
#include <vector>

namespace onebit_bench {

struct composition {
  const char* name;
  /// Bytes of state per parameter that it may have while it compresses.
  std::function<double(double ranks)> state_budget;
  /// Warm-ups are two steps, and nothing is refreshed after them.
  std::function<onebit::any_optimizer(const std::vector<onebit::param_group<>>&,
                                      onebit::communicator)>
      make;
};

const std::vector<composition>& compositions();

}  // namespace onebit_bench

#endif
