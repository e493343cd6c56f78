// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the model on the device with the model on the host, whose gradients gradient_check.cpp
// checks: the loss and the gradient of every tensor must be equal up to rounding.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "common/random.hpp"
#include "learner.cuh"

namespace {

using namespace language_model;

batch random_batch(const model_shape& shape, int sequences) {
  batch b;
  common::counter_random random{7};
  for (int i = 0; i < sequences * shape.context; ++i) {
    b.input.push_back(static_cast<int>(random.below(static_cast<std::size_t>(shape.vocabulary))));
    b.target.push_back(static_cast<int>(random.below(static_cast<std::size_t>(shape.vocabulary))));
  }
  return b;
}

// Returns the largest difference of gradients, relative to the largest value of the tensor.
double farthest(learner& host, learner& device) {
  double worst = 0;
  const auto of_host = host.parameters(), of_device = device.parameters();
  for (std::size_t t = 0; t < of_host.size(); ++t) {
    const auto expected = of_host[t].gradient;
    std::vector<float> got(expected.size());
    device::check(cudaMemcpy(got.data(), of_device[t].gradient.data(), got.size() * sizeof(float),
                             cudaMemcpyDefault));
    float largest = 0, apart = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      apart = std::isfinite(got[i]) ? std::max(apart, std::abs(got[i] - expected[i])) : INFINITY;
    }
    worst = std::max(worst, static_cast<double>(apart / largest));
  }
  return worst;
}

int check_all(const char* products) {
  int failures = 0;
  for (const model_shape& shape : {model_shape{16, 8, 16, 2, 1}, model_shape{80, 24, 48, 3, 2}}) {
    cudaStream_t stream = nullptr;
    device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
      const auto host = learner_on_host(shape, 3);
      device::device_learner device(shape, 3, stream, products);
      const batch small = random_batch(shape, 1), b = random_batch(shape, 3);
      host->learn(small);
      device.learn(small);
      host->learn(b);
      device.learn(b);
      const auto expected = host->losses(), got = device.losses();
      const double loss = std::max({std::abs(got.at(0) / expected.at(0) - 1),
                                    std::abs(got.at(1) / expected.at(1) - 1),
                                    std::abs(device.loss(b) / expected.at(1) - 1)});
      const double gradients = farthest(*host, device);
      const bool same_values = host->values() == device.values();
      const bool is_good = loss < 1e-5 && gradients < 1e-4 && same_values;
      std::printf("%s, width %d: the loss differs by %.1e, gradients by %.1e: %s\n", products,
                  shape.width, loss, gradients, is_good ? "good" : "BAD");
      failures += is_good ? 0 : 1;
    }
    device::check(cudaStreamDestroy(stream));
  }
  return failures;
}

}  // namespace

int main() {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  try {
    return check_all("own") + check_all("any") > 0 ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gradient_check: %s\n", e.what());
    return 1;
  }
}
