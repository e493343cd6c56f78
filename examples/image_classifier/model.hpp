// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A perceptron with two hidden layers and ReLU between them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "common/random.hpp"
#include "common/tensor.hpp"
#include "images.hpp"

namespace image_classifier {

class perceptron {
 public:
  explicit perceptron(std::uint64_t seed)
      : first_(make_linear("first", pixels, 256)),
        second_(make_linear("second", 256, 128)),
        third_(make_linear("third", 128, classes)) {
    std::uint64_t index = 0;
    for (auto& t : tensors_) {
      common::counter_random random{seed, common::fnv1a("initialize"), index++};
      if (!t.decay) continue;  // biases start at zero
      for (float& v : t.value) {
        v = static_cast<float>(std::sqrt(2.0 / t.rows) * random.normal());
      }
    }
  }
  perceptron(const perceptron&) = delete;
  perceptron& operator=(const perceptron&) = delete;

  std::deque<common::tensor<float>>& tensors() { return tensors_; }

  // The mean cross-entropy in nats. probabilities() has a row per image afterwards.
  double loss(const batch& from) {
    first_.forward(from.input, hidden_1_);
    hidden_1_ = hidden_1_.cwiseMax(0.0F);
    second_.forward(hidden_1_, hidden_2_);
    hidden_2_ = hidden_2_.cwiseMax(0.0F);
    third_.forward(hidden_2_, probabilities_);
    return common::softmax_loss(probabilities_, from.target);
  }
  const common::matrix<float>& probabilities() const { return probabilities_; }

  // The loss, and its gradient in every tensor.
  double loss_and_gradients(const batch& from) {
    const double value = loss(from);
    common::softmax_gradient(probabilities_, from.target);
    third_.backward(hidden_2_, probabilities_, gradient_2_);
    gradient_2_ = (hidden_2_.array() > 0.0F).select(gradient_2_, 0.0F);
    second_.backward(hidden_1_, gradient_2_, gradient_1_);
    gradient_1_ = (hidden_1_.array() > 0.0F).select(gradient_1_, 0.0F);
    first_.parameter_gradients(from.input, gradient_1_);
    return value;
  }

 private:
  common::linear<float> make_linear(const std::string& name, int inputs, int outputs) {
    auto& weight = tensors_.emplace_back(name + ".weight", inputs, outputs, true);
    auto& bias = tensors_.emplace_back(name + ".bias", 1, outputs, false);
    return {&weight, &bias};
  }

  std::deque<common::tensor<float>> tensors_;  // a deque, for the layers keep pointers into it
  common::linear<float> first_, second_, third_;
  common::matrix<float> hidden_1_, hidden_2_, probabilities_, gradient_1_, gradient_2_;
};

}  // namespace image_classifier
