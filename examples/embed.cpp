// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A small trainer around onebit: least squares on four ranks. What lies between the markers is in
// the README.

// [embed]
#include <cstdio>
#include <onebit/onebit.hpp>
#include <random>
#include <vector>

int main() {
  float loss = 1;
  onebit::run_threads(4, [&](onebit::threads comm) {  // or processes: onebit::mpi(MPI_COMM_WORLD)
    const std::size_t n = 1000, n_rows = 20;
    std::vector<float> x(n), grad(n);  // yours: onebit looks at them, and never copies
    std::mt19937 random(static_cast<unsigned>(comm.rank()));  // every rank has its own data
    std::normal_distribution<float> normal;

    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, grad});
    onebit::one_bit_adam_options options;
    options.freeze.after = 60;  // exact steps first, then one bit per parameter
    auto optimizer = onebit::one_bit_adam(groups, comm, options);

    for (int step = 0; step < 400; ++step) {
      float sum = 0;
      grad.assign(n, 0);
      for (std::size_t row = 0; row < n_rows; ++row) {  // y = a . (1, 1, ...), fitted by a . x
        std::vector<float> a(n);
        float error = 0;
        for (std::size_t i = 0; i < n; ++i) error += (a[i] = normal(random)) * (x[i] - 1);
        for (std::size_t i = 0; i < n; ++i) grad[i] += error * a[i] / n_rows;
        sum += error * error / (n * n_rows);
      }
      const onebit::report done = optimizer.step(step < 200 ? 0.1F : 0.01F);
      if (comm.rank() != 0 || step % 57 != 0) continue;
      loss = sum;
      std::printf("step %3d  loss %.5f  %llu bytes sent\n", step, loss,
                  static_cast<unsigned long long>(done.bytes_sent));
    }
  });
  return loss < 0.01F ? 0 : 1;
}
// [/embed]
