// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A vocabulary that grows in the middle of a run: an embedding of 100 rows gets 20 more at step
// 300. An optimizer is built for sizes that stay, so a new one takes over, from the moments of the
// old. The guide quotes the lines between the markers.

#include <cstdio>
#include <cstdlib>
#include <onebit/onebit.hpp>
#include <optional>
#include <random>
#include <vector>

namespace {

constexpr std::size_t width = 16;

/// The value that a row should come to.
float target(std::size_t row, std::size_t i) {
  return static_cast<float>((row * 31 + i * 17) % 13) / 13.0F - 0.5F;
}
/// Gradients of a batch of 16 rows, each with noise.
void backward(const std::vector<float>& table, std::vector<float>& grad, std::mt19937& random) {
  std::uniform_int_distribution<std::size_t> rows(0, table.size() / width - 1);
  std::normal_distribution<float> noise(0, 0.1F);
  grad.assign(table.size(), 0);
  for (int k = 0; k < 16; ++k) {
    const std::size_t row = rows(random);
    for (std::size_t i = 0; i < width; ++i) {
      grad[row * width + i] += table[row * width + i] - target(row, i) + noise(random);
    }
  }
}
/// Mean squared error of the rows from `first` on.
float error(const std::vector<float>& table, std::size_t first, std::size_t end) {
  float sum = 0;
  for (std::size_t j = first * width; j < end * width; ++j) {
    const float d = table[j] - target(j / width, j % width);
    sum += d * d;
  }
  return sum / static_cast<float>((end - first) * width);
}

}  // namespace

int main() {
  float worst = 0;
  onebit::run_threads(2, [&](onebit::threads comm) {
    std::mt19937 random(1 + static_cast<unsigned>(comm.rank()));
    std::vector<float> table(100 * width), grad(table.size());
    const auto groups = [&] {
      std::vector<onebit::param_group<>> all(1);
      all[0].tensors.push_back({table, grad});
      return all;
    };
    std::optional optimizer(onebit::one_bit_adam(groups(), comm, {}));
    const auto train = [&](int n_steps) {
      for (int step = 0; step < n_steps; ++step) {
        backward(table, grad, random);
        (void)optimizer->step(0.01F);
      }
    };
    train(300);
    const float before = error(table, 0, 100);

    // [grow]
    auto moments = optimizer->moments();  // of the 100 rows, equal on all ranks
    const auto steps = optimizer->steps();
    table.resize(120 * width);
    grad.resize(table.size());
    moments[0].m.resize(table.size());  // zeros for the new rows
    moments[0].v.resize(table.size());
    optimizer.emplace(onebit::one_bit_adam(groups(), comm, {}));
    optimizer->start_from({moments.begin(), moments.end()}, steps);
    // [/grow]

    train(5);
    const float after = error(table, 0, 100);
    train(695);
    if (comm.rank() != 0) return;
    std::printf("error of the old rows: %.4f before, %.4f five steps after; at the end %.4f\n",
                static_cast<double>(before), static_cast<double>(after),
                static_cast<double>(error(table, 0, 100)));
    std::printf("error of the new rows: %.4f untrained, %.4f at the end\n",
                static_cast<double>(error(std::vector<float>(120 * width), 100, 120)),
                static_cast<double>(error(table, 100, 120)));
    worst = error(table, 0, 120);
  });
  return worst < 0.01F ? EXIT_SUCCESS : EXIT_FAILURE;
}
