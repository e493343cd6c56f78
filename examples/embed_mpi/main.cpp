// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The smallest trainer over MPI: each process is a rank. The README quotes the lines between the
// markers.

// [mpi_header]
#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
// [/mpi_header]

#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  std::vector<float> params(1000, 0.0F), grads(params.size());
  std::vector<onebit::param_group<>> groups(1);
  groups[0].tensors.push_back({params, grads});
  // [mpi]
  auto optimizer = onebit::one_bit_adam(groups, onebit::mpi(MPI_COMM_WORLD),
                                        {.adam = {.beta2 = 0.95}, .freeze = {.after = 10}});
  // [/mpi]
  std::mt19937 random(static_cast<std::mt19937::result_type>(optimizer.rank()));
  std::normal_distribution<float> noise;  // each rank its own data
  for (int step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i] = params[i] - 1 + noise(random);
    (void)optimizer.step(step < 100 ? 0.1F : 0.01F);
  }
  double mean = 0;
  for (const float x : params) mean += static_cast<double>(x) / static_cast<double>(params.size());
  if (optimizer.rank() == 0) std::printf("%d ranks: mean of x %.3f\n", optimizer.size(), mean);
  const bool learned = mean > 0.95 && mean < 1.05;
  MPI_Finalize();
  return learned ? 0 : 1;
}
