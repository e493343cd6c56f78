// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A trainer that keeps its own SGD: onebit only averages the gradients, with one bit per element in
// each direction. The lines marked with * are the only ones that a trainer for one machine lacks.

#include <cstddef>
#include <cstdio>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/transport/threads.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::size_t n = 1000;  // weights of a linear model

double train(onebit::threads comm) {
  std::mt19937 same(1), own(static_cast<unsigned>(comm.rank()) + 2U);  // each rank has its own data
  std::normal_distribution<float> normal;
  std::vector<float> weights(n), wanted(n), x(n), grad(n);
  for (float& w : wanted) w = normal(same);

  onebit::compressed_allreduce allreduce(comm, {n});  // *

  for (int step = 0; step < 3000; ++step) {
    float error = 0;
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = normal(own);
      error += (weights[i] - wanted[i]) * x[i];
    }
    for (std::size_t i = 0; i < n; ++i) grad[i] = error * x[i];

    if (allreduce.mean(grad) == onebit::outcome::skipped) continue;  // *

    for (std::size_t i = 0; i < n; ++i) weights[i] -= 0.001F * grad[i];
  }
  double distance = 0, length = 0;
  for (std::size_t i = 0; i < n; ++i) {
    distance += static_cast<double>((weights[i] - wanted[i]) * (weights[i] - wanted[i]));
    length += static_cast<double>(wanted[i] * wanted[i]);
  }
  if (comm.rank() == 0) {  // *
    std::printf("%.5f of the way is left; %.1f bits per weight and step sent\n", distance / length,
                static_cast<double>(allreduce.sent().bytes_sent) * 8 / (n * 3000.0));
  }
  return distance / length;
}

}  // namespace

int main() {
  bool learned = true;
  onebit::run_threads(4, [&](onebit::threads comm) {  // * or processes: onebit::mpi(MPI_COMM_WORLD)
    const double left = train(comm);
    if (comm.rank() == 0) learned = left < 0.01;
  });
  return learned ? 0 : 1;
}
