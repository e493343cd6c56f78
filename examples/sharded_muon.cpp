// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Muon with the matrices distributed over the ranks: only the owner of a matrix keeps its momentum
// and orthogonalizes it. A reduce-scatter in int8, with sums in fp32, brings the mean gradient to
// the owner; a compressed all-gather, one bit per element, sends the updates to all ranks. The
// lines marked with * use onebit.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <onebit/compressor/rounded.hpp>
#include <onebit/extras/sharded.hpp>
#include <onebit/transport/threads.hpp>
#include <random>
#include <vector>

namespace {

// Equal numbers of matrices per rank, each of whole words (32 elements): parts are whole matrices.
constexpr std::size_t side = 16, elements = side * side, matrices = 8, n = matrices * elements;
constexpr int steps = 600;
using matrix = std::array<float, elements>;

matrix product(const matrix& a, const matrix& b, bool b_transposed) {
  matrix c{};
  for (std::size_t i = 0; i < side; ++i) {
    for (std::size_t j = 0; j < side; ++j) {
      for (std::size_t k = 0; k < side; ++k)
        c[i * side + j] += a[i * side + k] * (b_transposed ? b[j * side + k] : b[k * side + j]);
    }
  }
  return c;
}

/// Returns the nearest orthogonal matrix, by five Newton-Schulz steps with Muon's coefficients.
matrix orthogonal(matrix x) {
  float squares = 1e-12F;
  for (const float v : x) squares += v * v;
  for (float& v : x) v /= std::sqrt(squares);
  for (int step = 0; step < 5; ++step) {
    const matrix a = product(x, x, true), aa = product(a, a, false);
    matrix b;
    for (std::size_t i = 0; i < elements; ++i) b[i] = -4.7750F * a[i] + 2.0315F * aa[i];
    const matrix bx = product(b, x, false);
    for (std::size_t i = 0; i < elements; ++i) x[i] = 3.4445F * x[i] + bx[i];
  }
  return x;
}

double train(onebit::threads comm) {
  std::mt19937 same(1), own_data(static_cast<unsigned>(comm.rank()) + 2U);
  std::normal_distribution<float> normal;
  std::vector<float> weights(n), wanted(n), grads(n), updates(n);
  for (float& w : wanted) w = normal(same);
  const auto distance = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i)
      sum += std::pow(static_cast<double>(weights[i] - wanted[i]), 2);
    return sum;
  };
  const double before = distance();

  onebit::compressed_reduce_scatter reduce_scatter(comm, n, onebit::rounded::to_int8());  // *
  onebit::compressed_all_gather all_gather(comm, n);                                      // *
  const std::size_t size = reduce_scatter.own().size;  // * elements of this rank's matrices
  std::vector<float> mean(size), momentum(size), update(size);

  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < n; ++i) grads[i] = weights[i] - wanted[i] + normal(own_data);

    if (reduce_scatter.mean(grads, mean) == onebit::outcome::skipped) continue;  // *
    const float rate = 0.2F * (1 - static_cast<float>(step) / steps);
    for (std::size_t at = 0; at < size; at += elements) {
      matrix m;
      for (std::size_t i = 0; i < elements; ++i)
        m[i] = momentum[at + i] = 0.9F * momentum[at + i] + mean[at + i];
      m = orthogonal(m);
      for (std::size_t i = 0; i < elements; ++i) update[at + i] = -rate * m[i];
    }
    if (all_gather.gather(update, updates) == onebit::outcome::skipped) continue;  // *
    for (std::size_t i = 0; i < n; ++i) weights[i] += updates[i];
  }
  if (comm.rank() == 0) {
    const auto bits = [](const auto& half) {
      return static_cast<double>(half.sent().bytes_sent) * 8 / (static_cast<double>(n) * steps);
    };
    std::printf("%.5f of the way is left; bits per weight and step: %.2f out, %.2f back\n",
                distance() / before, bits(reduce_scatter), bits(all_gather));
  }
  return distance() / before;
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
