// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A small trainer around onebit: least squares on four ranks. The README quotes the lines between
// the markers.

#include <cstddef>
#include <iostream>
#include <onebit/onebit.hpp>
#include <random>
#include <vector>

namespace {

/// Least squares: fits a . params to y = a . (1, 1, ...), with a batch of 20 random vectors a.
struct regression {
  static constexpr std::size_t n = 1000, batch = 20;
  std::vector<float> params, grads;
  std::mt19937 random;
  std::normal_distribution<float> normal;

  explicit regression(int seed)
      : params(n), grads(n), random(static_cast<std::mt19937::result_type>(seed)) {}

  /// Returns the loss of a new batch, and writes its gradient to grads.
  float forward_backward() {
    float loss = 0;
    grads.assign(n, 0);
    for (std::size_t row = 0; row < batch; ++row) {
      std::vector<float> a(n);
      float error = 0;
      for (std::size_t i = 0; i < n; ++i) error += (a[i] = normal(random)) * (params[i] - 1);
      for (std::size_t i = 0; i < n; ++i) grads[i] += error * a[i] / batch;
      loss += error * error / (n * batch);
    }
    return loss;
  }
};

}  // namespace

int main() {
  float loss = 1;
  // [embed]
  onebit::run_threads(4, [&](onebit::threads comm) {  // or processes: onebit::mpi(MPI_COMM_WORLD)
    regression model(comm.rank());  // yours: equal parameters on all ranks, each its own data

    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({model.params, model.grads});  // spans: updated in place
    auto optimizer = onebit::one_bit_adam(groups, comm);

    for (int step = 0; step < 400; ++step) {
      const float own_loss = model.forward_backward();
      const onebit::report done = optimizer.step(step < 200 ? 0.1F : 0.01F);
      if (comm.rank() != 0 || step % 57 != 0) continue;
      loss = own_loss;
      std::cout << "step " << step << "  loss " << loss << "  " << done.bytes_sent
                << " bytes sent\n";
    }
  });
  // [/embed]
  return loss < 0.01F ? 0 : 1;
}
