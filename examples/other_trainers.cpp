// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainers that differ from embed.cpp: memory that moves, different batch sizes on the ranks, a
// veto on the norm, bf16 without masters, an algorithm chosen at run time. The guide quotes the
// lines between the markers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using groups_of_floats = std::vector<onebit::param_group<>>;

/// Model with the loss |x - 1|^2 / 2, averaged over rows; each row adds its own noise.
struct model {
  std::vector<float> x = std::vector<float>(1000), g = x;

  groups_of_floats groups() {
    groups_of_floats all(1);
    all[0].tensors.push_back({x, g});
    return all;
  }
  void backward(int row, std::size_t n_rows) {
    std::vector<float> fresh(g.size());
    for (std::size_t r = 0; r < n_rows; ++r, ++row) {
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        fresh[i] += (x[i] - 1 + (row % 2 == 0 ? 0.2F : -0.2F)) / static_cast<float>(n_rows);
      }
    }
    g.swap(fresh);  // the gradients have a new address
  }
};

/// Number of standard deviations by which a norm exceeds the mean of the norms before it.
class z_scores {
 public:
  bool above(float limit, float norm) {
    const float deviation = norm - mean_;
    const bool is_above = ++n_ > 20 && deviation > limit * std::sqrt(variance_);
    if (is_above) return true;
    const float share = std::max(0.05F, 1 / static_cast<float>(n_));
    mean_ += share * deviation;
    variance_ += share * (deviation * deviation - variance_);
    return false;
  }

 private:
  float mean_ = 0, variance_ = 0;
  int n_ = 0;
};

// [factory]
onebit::any_optimizer make(const std::string& name, const groups_of_floats& groups,
                           onebit::threads comm) {
  if (name == "adam") return onebit::adam(groups, comm);
  if (name == "one_bit_adam") return onebit::one_bit_adam(groups, comm, {});
  throw std::invalid_argument("no optimizer is called " + name);
}
// [/factory]

float train(const std::string& name, onebit::threads comm) {
  model m;
  z_scores norms;
  onebit::any_optimizer optimizer = make(name, m.groups(), comm);
  // [moves]
  optimizer.rebind_with([&] { return m.groups(); });
  // [/moves]
  // [veto]
  optimizer.veto_with([&](float norm) { return norms.above(6, norm); });
  // [/veto]
  int vetoed = 0;
  for (int step = 0; step < 400; ++step) {
    const std::size_t n_rows = comm.rank() == 0 ? 3 : 5;
    m.backward(step * 8 + 3 * comm.rank(), n_rows);
    if (step == 50 && comm.rank() == 1) m.g[3] = 1e6F;  // an outlier, on one rank
    const auto rows = static_cast<float>(n_rows);
    // [unequal]
    float all_rows = rows;
    comm.all_reduce_sum(&all_rows, 1);
    const float share = rows * static_cast<float>(comm.size()) / all_rows;
    for (float& g : m.g) g *= share;
    // [/unequal]
    vetoed += optimizer.step(step < 200 ? 0.03F : 0.003F).skipped ? 1 : 0;
  }
  float worst = 0;
  for (const float x : m.x) worst = std::max(worst, std::fabs(x - 1));
  if (comm.rank() == 0) {
    std::printf("%s: %.4f from the minimum, %d steps vetoed\n", name.c_str(),
                static_cast<double>(worst), vetoed);
  }
  return vetoed > 0 && vetoed < 5 ? worst : 1;
}

/// Takes steps so small that rounding to nearest would lose them all. Returns the mean weight.
float train_in_bf16(onebit::threads comm) {
  std::vector<std::uint16_t> weights(4096, 0x3F80), grads(4096, 0x3F80);  // ones, as bf16
  // [rounding]
  std::vector<onebit::param_group<onebit::bf16>> groups(1);
  groups[0].stochastic_rounding = true;  // bf16 without masters
  groups[0].tensors.push_back(
      {onebit::as_bf16(std::span(weights)), onebit::as_bf16(std::span(grads))});
  // [/rounding]
  auto optimizer = onebit::adam(groups, comm);
  for (int step = 0; step < 100; ++step) (void)optimizer.step(1e-4F);
  float sum = 0;
  for (const onebit::bf16 w : onebit::as_bf16(std::span(weights))) sum += onebit::to_float(w);
  return sum / 4096;
}

}  // namespace

int main() {
  float worst = 1, mean = 0;
  onebit::run_threads(2, [&](onebit::threads comm) {
    const float a = train("adam", comm), b = train("one_bit_adam", comm);
    const float in_bf16 = train_in_bf16(comm);
    if (comm.rank() != 0) return;
    worst = std::max(a, b);
    mean = in_bf16;
  });
  std::printf("100 steps of 1e-4 from 1, in bf16: %.4f\n", static_cast<double>(mean));
  return worst < 0.005F && std::fabs(mean - 0.99F) < 0.002F ? 0 : 1;
}
