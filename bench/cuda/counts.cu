// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// One step of each algorithm as one rank of 8 sees it, on a device that counts what its kernels
// execute: a CUDA device on the CPU. counts.sh builds and runs it and prints the table; for each
// algorithm it writes the device's counts, a line for each kernel, to DIRECTORY/NAME.tsv.

#include <cstdio>
#include <cstring>
#include <onebit/backend/cuda.cuh>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../../tests/support/echo.hpp"

extern "C" {
void ptxdev_reset_stats() __attribute__((weak));
void ptxdev_write_stats(const char* file) __attribute__((weak));
}

namespace {

using groups = std::vector<onebit::param_group<>>;
using transport = onebit_test::echo<onebit::cuda_memory>;

constexpr int ranks = 8;
constexpr std::size_t n = 1'000'000;

struct scene {
  onebit::cuda backend;
  onebit::cuda_buffer<float> params, grads;
  groups tensors;

  scene()
      : params(backend.make_buffer<float>(n)), grads(backend.make_buffer<float>(n)), tensors(1) {
    refill();
    backend.copy_in(params.data(), values.data(), n);
    tensors[0].tensors.push_back({{params.data(), n}, {grads.data(), n}});
    tensors[0].weight_decay = 0.01F;
  }
  /// Gradients of this step.
  void refill() {
    values.resize(n);
    for (float& v : values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      v = static_cast<float>(state >> 40U) / (1 << 23) - 1;
    }
    backend.copy_in(grads.data(), values.data(), n);
  }

 private:
  std::vector<float> values;
  std::uint64_t state = 1;
};

/// Counts a step of what `make` makes, after `warm_up` steps of it.
template <class Make>
void count(const std::string& directory, const char* name, int warm_up, const Make& make) {
  scene s;
  auto optimizer = make(s.tensors, transport(onebit::cuda_memory{}, ranks), s.backend);
  for (int i = 0; i <= warm_up; ++i) {
    s.refill();
    if (i == warm_up) ptxdev_reset_stats();
    (void)optimizer.step(1e-4F);
    s.backend.wait();
  }
  ptxdev_write_stats((directory + "/" + name + ".tsv").c_str());
  if (optimizer.settle() != onebit::outcome::agreed) std::printf("%s: a step was skipped\n", name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::puts("usage: counts DIRECTORY");
    return 2;
  }
  if (ptxdev_reset_stats == nullptr) {
    std::puts("skipped: no device that counts");
    return 77;
  }
  const std::string to = argv[1];
  const onebit::gather_scatter<onebit::sign<>> exchange;
  count(to, "one_bit_adam", 6, [&](const groups& g, auto t, auto b) {
    return onebit::one_bit_adam(
        g, t, onebit::one_bit_adam_options{.freeze = {.after = 2}, .refreshes = 0}, exchange, b);
  });
  count(to, "one_bit_lamb", 6, [&](const groups& g, auto t, auto b) {
    return onebit::one_bit_lamb(g, t, onebit::one_bit_lamb_options{.freeze = {.after = 2}},
                                exchange, b);
  });
  // an exchange in every step: the dearest kind
  count(to, "zero_one_adam", 6, [&](const groups& g, auto t, auto b) {
    return onebit::zero_one_adam(
        g, t,
        onebit::zero_one_adam_options{.schedule = {.kappa = 1,
                                                   .warmup_steps = 2,
                                                   .max_interval = 1,
                                                   .stop_refreshing = true}},
        exchange, b);
  });
  count(to, "adam", 3, [](const groups& g, auto t, auto b) { return onebit::adam(g, t, {}, b); });
  count(to, "lamb", 3, [](const groups& g, auto t, auto b) { return onebit::lamb(g, t, {}, b); });
}
