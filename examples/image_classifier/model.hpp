// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The models: a perceptron with two hidden layers, and a convolutional network, both with ReLU
// between all layers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "common/random.hpp"
#include "common/tensor.hpp"
#include "convolution.hpp"
#include "images.hpp"

namespace image_classifier {

class classifier {
 public:
  classifier() = default;
  classifier(const classifier&) = delete;
  classifier& operator=(const classifier&) = delete;
  virtual ~classifier() = default;

  std::deque<common::tensor<float>>& tensors() { return tensors_; }

  // Returns the mean cross-entropy in nats. Afterwards probabilities() has a row per image.
  double loss(const batch& from) {
    forward(from.input);
    return common::softmax_loss(probabilities_, from.target);
  }
  const common::matrix<float>& probabilities() const { return probabilities_; }

  // Returns the loss, and writes its gradient to every tensor.
  double loss_and_gradients(const batch& from) {
    const double value = loss(from);
    common::softmax_gradient(probabilities_, from.target);
    backward(from.input);
    return value;
  }

 protected:
  using matrix = common::matrix<float>;

  // Biases start at zero.
  common::linear<float> make_linear(const std::string& name, int inputs, int outputs) {
    auto& weight = tensors_.emplace_back(name + ".weight", inputs, outputs, true);
    auto& bias = tensors_.emplace_back(name + ".bias", 1, outputs, false);
    return {&weight, &bias};
  }
  void initialize(std::uint64_t seed) {
    std::uint64_t index = 0;
    for (auto& t : tensors_) {
      common::counter_random random{seed, common::fnv1a("initialize"), index++};
      if (!t.decay) continue;
      for (float& v : t.value) {
        v = static_cast<float>(std::sqrt(2.0 / t.rows) * random.normal());
      }
    }
  }
  static void rectify(matrix& x) { x = x.cwiseMax(0.0F); }
  // Backward pass of rectify, from its output.
  static void mask(const matrix& rectified, matrix& gradient) {
    gradient = (rectified.array() > 0.0F).select(gradient, 0.0F);
  }

  // `forward` writes logits to probabilities_; `backward` finds the gradient of the logits there.
  virtual void forward(const matrix& images) = 0;
  virtual void backward(const matrix& images) = 0;

  std::deque<common::tensor<float>> tensors_;  // a deque: the layers keep pointers to elements
  matrix probabilities_;
};

class perceptron : public classifier {
 public:
  explicit perceptron(std::uint64_t seed)
      : first_(make_linear("first", pixels, 256)),
        second_(make_linear("second", 256, 128)),
        third_(make_linear("third", 128, classes)) {
    initialize(seed);
  }

 private:
  void forward(const matrix& images) override {
    first_.forward(images, hidden_1_);
    rectify(hidden_1_);
    second_.forward(hidden_1_, hidden_2_);
    rectify(hidden_2_);
    third_.forward(hidden_2_, probabilities_);
  }
  void backward(const matrix& images) override {
    third_.backward(hidden_2_, probabilities_, gradient_2_);
    mask(hidden_2_, gradient_2_);
    second_.backward(hidden_1_, gradient_2_, gradient_1_);
    mask(hidden_1_, gradient_1_);
    first_.parameter_gradients(images, gradient_1_);
  }

  common::linear<float> first_, second_, third_;
  matrix hidden_1_, hidden_2_, gradient_1_, gradient_2_;
};

// Two convolutions, each of which halves the image, then two linear layers.
class convolutional : public classifier {
 public:
  explicit convolutional(std::uint64_t seed)
      : first_{make_linear("first", 5 * 5, 16), 28, 1, 5, 2},          // to 12 x 12
        second_{make_linear("second", 3 * 3 * 16, 32), 12, 16, 3, 2},  // to 5 x 5
        third_(make_linear("third", 5 * 5 * 32, 128)),
        fourth_(make_linear("fourth", 128, classes)) {
    initialize(seed);
  }

 private:
  void forward(const matrix& images) override {
    first_.forward(images, seen_1_);
    rectify(seen_1_);
    second_.forward(seen_1_, seen_2_);
    rectify(seen_2_);
    third_.forward(seen_2_, hidden_);
    rectify(hidden_);
    fourth_.forward(hidden_, probabilities_);
  }
  void backward(const matrix& images) override {
    fourth_.backward(hidden_, probabilities_, gradient_3_);
    mask(hidden_, gradient_3_);
    third_.backward(seen_2_, gradient_3_, gradient_2_);
    mask(seen_2_, gradient_2_);
    second_.backward(gradient_2_, gradient_1_);
    mask(seen_1_, gradient_1_);
    first_.parameter_gradients(images.rows(), gradient_1_);
  }

  convolution<float> first_, second_;
  common::linear<float> third_, fourth_;
  matrix seen_1_, seen_2_, hidden_, gradient_1_, gradient_2_, gradient_3_;
};

inline std::unique_ptr<classifier> make_model(const std::string& name, std::uint64_t seed) {
  if (name == "convolutional") return std::make_unique<convolutional>(seed);
  return std::make_unique<perceptron>(seed);
}

}  // namespace image_classifier
