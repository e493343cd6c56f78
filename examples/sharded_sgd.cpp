// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A trainer that shards the state of its own optimizer: each rank keeps the momentum of its part of
// the weights only. A compressed reduce-scatter brings the mean gradient of the part; a compressed
// all-gather brings the updates of all parts. Each takes one bit per element. The lines marked with
// * use onebit.

#include <cstddef>
#include <cstdio>
#include <onebit/extras/sharded.hpp>
#include <onebit/transport/threads.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::size_t n = 1000;  // weights of a linear model
constexpr int steps = 3000;

double train(onebit::threads comm) {
  std::mt19937 same(1), own_data(static_cast<unsigned>(comm.rank()) + 2U);
  std::normal_distribution<float> normal;
  std::vector<float> weights(n), wanted(n), x(n), grads(n), updates(n);
  for (float& w : wanted) w = normal(same);

  onebit::compressed_reduce_scatter reduce_scatter(comm, n);  // * by sign, with error feedback
  onebit::compressed_all_gather all_gather(comm, n);          // *
  const std::size_t size = reduce_scatter.own().size;         // * from own().first on
  std::vector<float> mean(size), momentum(size), update(size);

  for (int step = 0; step < steps; ++step) {
    float error = 0;
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = normal(own_data);
      error += (weights[i] - wanted[i]) * x[i];
    }
    for (std::size_t i = 0; i < n; ++i) grads[i] = error * x[i];

    if (reduce_scatter.mean(grads, mean) == onebit::outcome::skipped) continue;  // *
    for (std::size_t i = 0; i < size; ++i) {
      momentum[i] = 0.9F * momentum[i] + mean[i];
      update[i] = -0.0001F * momentum[i];
    }
    if (all_gather.gather(update, updates) == onebit::outcome::skipped) continue;  // *
    for (std::size_t i = 0; i < n; ++i) weights[i] += updates[i];
  }
  double distance = 0, length = 0;
  for (std::size_t i = 0; i < n; ++i) {
    distance += static_cast<double>((weights[i] - wanted[i]) * (weights[i] - wanted[i]));
    length += static_cast<double>(wanted[i] * wanted[i]);
  }
  if (comm.rank() == 0) {
    const auto bits = [](const auto& half) {
      return static_cast<double>(half.sent().bytes_sent) * 8 / (static_cast<double>(n) * steps);
    };
    std::printf("%.5f of the way is left; bits per weight and step: %.2f out, %.2f back\n",
                distance / length, bits(reduce_scatter), bits(all_gather));
  }
  return distance / length;
}

}  // namespace

int main() {
  bool learned = true;
  onebit::run_threads(4, [&](onebit::threads comm) {  // or processes: onebit::mpi(MPI_COMM_WORLD)
    const double left = train(comm);
    if (comm.rank() == 0) learned = left < 0.01;
  });
  return learned ? 0 : 1;
}
