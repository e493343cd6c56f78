// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Interface of the model to the trainer. Implemented on the host (learner_on_host, in
// host_learner.cpp) and on a CUDA device (cuda/).
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
  // Values and gradients in the memory that the optimizer works on, valid while this object lives.
  virtual std::vector<common::parameter> parameters() = 0;
  // Computes the gradients of a batch. On a device it only enqueues: losses() waits.
  virtual void learn(const batch&) = 0;
  // Returns the losses of the batches learnt since the last call, in order.
  virtual std::vector<double> losses() = 0;
  // Returns the loss, and computes no gradients.
  virtual double loss(const batch&) = 0;
  // Values of all parameters, tensor after tensor.
  virtual std::vector<float> values() = 0;
  virtual void set_values(std::span<const float>) = 0;
};

// Tensor at the start of a run: equal on every rank and for every learner.
struct initial_tensor {
  std::string name;
  int rows, cols;
  bool decay;
  std::vector<float> values;
};
std::vector<initial_tensor> initial_tensors(const model_shape& shape, std::uint64_t seed);

std::unique_ptr<learner> learner_on_host(const model_shape& shape, std::uint64_t seed);

}  // namespace language_model
