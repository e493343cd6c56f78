// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the trainer asks of a model, wherever it computes: learner_on_host (host_learner.cpp), or a
// CUDA device (cuda/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/algorithms.hpp"
#include "shape.hpp"
#include "text.hpp"

namespace language_model {

class learner {
 public:
  learner() = default;
  learner(const learner&) = delete;
  learner& operator=(const learner&) = delete;
  virtual ~learner() = default;

  virtual const model_shape& shape() const = 0;
  // The tensors where the optimizer works on them, for as long as this lives.
  virtual std::vector<common::parameter> parameters() = 0;
  // The gradients of a batch. What computes on a device only enqueues: losses() waits.
  virtual void learn(const batch&) = 0;
  // The losses of the batches that were learnt since the last call, in their order.
  virtual std::vector<double> losses() = 0;
  // The loss without gradients.
  virtual double loss(const batch&) = 0;
  // All parameters, tensor after tensor.
  virtual std::vector<float> values() = 0;
  virtual void set_values(std::span<const float>) = 0;
};

// A tensor as a run starts with it: the same on every rank, and for every learner.
struct initial_tensor {
  std::string name;
  int rows, cols;
  bool decay;
  std::vector<float> values;
};
std::vector<initial_tensor> initial_tensors(const model_shape& shape, std::uint64_t seed);

std::unique_ptr<learner> learner_on_host(const model_shape& shape, std::uint64_t seed);

}  // namespace language_model
