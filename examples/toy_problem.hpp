// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <onebit/onebit.hpp>
#include <random>
#include <span>
#include <vector>

/// A problem small enough to show the effect of a composition: moves the parameters to a target of
/// mixed magnitudes, by gradients with different noise on each rank.
namespace toy {

struct result {
  double first_loss = 0;
  double last_loss = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t dense_bytes = 0;
};

/// Learning rate over its peak. Rises over the first quarter, while v is young and 0/1 Adam already
/// compresses; then falls to 0, or the noise of the last steps would stay in the parameters.
inline float share_of_peak(int step, int n_steps) {
  const float done = static_cast<float>(step) / static_cast<float>(n_steps);
  return done < 0.25F ? 4 * done : (1 - done) / 0.75F;
}

/// Trains on `n_ranks` threads. `make(groups, comm)` returns the optimizer of one rank.
template <class Make>
result train(int n_ranks, int n_steps, float lr, Make make) {
  result total;
  onebit::run_threads(n_ranks, [&](onebit::threads comm) {
    const std::vector<std::size_t> sizes = {3000, 0, 17, 5000};
    std::mt19937 seeded(7), noise(static_cast<unsigned>(comm.rank()) + 100U);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    std::vector<std::vector<float>> params, grads, target;
    for (const std::size_t n : sizes) {
      params.emplace_back(n, 0.1F);
      grads.emplace_back(n, 0.0F);
      target.emplace_back(n);
      for (float& t : target.back()) t = uniform(seeded);
    }
    std::vector<onebit::param_group<>> groups(1);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      groups[0].tensors.push_back({params[i], grads[i]});
    auto optimizer = make(groups, comm);

    const auto loss = [&] {
      double sum = 0;
      std::size_t n = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        for (std::size_t j = 0; j < sizes[i]; ++j, ++n) {
          const double e = static_cast<double>(params[i][j]) - static_cast<double>(target[i][j]);
          sum += e * e;
        }
      }
      return sum / static_cast<double>(n);
    };
    const double first = loss();
    std::uint64_t bytes = 0;
    for (int step = 0; step < n_steps; ++step) {
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        for (std::size_t j = 0; j < sizes[i]; ++j) {
          grads[i][j] = params[i][j] - target[i][j] + 0.3F * uniform(noise);
        }
      }
      bytes += optimizer.step(lr * share_of_peak(step, n_steps)).bytes_sent;
    }
    if (comm.rank() == 0) {
      const auto w = static_cast<std::uint64_t>(n_ranks);
      total = {
          first, loss(), bytes,
          static_cast<std::uint64_t>(n_steps) * 2 * (w - 1) * 4 * optimizer.n_parameters() / w};
    }
  });
  return total;
}

/// Prints one line. Returns the exit code of an example: 0 if the loss fell below `share` of the
/// first loss, else 1.
inline int verdict(const char* name, const result& r, double share) {
  const bool learned = r.last_loss < share * r.first_loss;
  std::printf("%-28s loss %.5f -> %.5f, %llu bytes sent per rank (%.1fx fewer)%s\n", name,
              r.first_loss, r.last_loss, static_cast<unsigned long long>(r.bytes_sent),
              static_cast<double>(r.dense_bytes) / static_cast<double>(r.bytes_sent),
              learned ? "" : ": did not learn");
  return learned ? 0 : 1;
}

}  // namespace toy
