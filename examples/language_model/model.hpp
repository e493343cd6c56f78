// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A character-level transformer language model: token and position embeddings, pre-norm blocks of
// causal attention and a GELU perceptron, a final norm, and an output head tied to the embedding.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/random.hpp"
#include "layers.hpp"
#include "shape.hpp"

namespace language_model {

template <class Real>
struct block {
  layer_norm<Real> norm_1, norm_2;
  linear<Real> project, merge, expand, contract;
  attention<Real> collective_try;
  gelu<Real> activate;
  matrix<Real> normed_1, qkv, mixed, normed_2, hidden, branch;

  void forward(matrix<Real>& x) {
    norm_1.forward(x, normed_1);
    project.forward(normed_1, qkv);
    collective_try.forward(qkv, mixed);
    merge.forward(mixed, branch);
    x += branch;
    norm_2.forward(x, normed_2);
    expand.forward(normed_2, hidden);
    activate.forward(hidden);
    contract.forward(hidden, branch);
    x += branch;
  }

  // dx is the gradient of the output on entry and of the input on return. The two scratch matrices
  // are shared by all blocks, to stay in the cache.
  void backward(matrix<Real>& dx, matrix<Real>& narrow, matrix<Real>& wide) {
    contract.backward(hidden, dx, wide);
    activate.backward(wide);
    expand.backward(normed_2, wide, narrow);
    norm_2.backward(narrow, dx);
    merge.backward(mixed, dx, narrow);
    collective_try.backward(qkv, narrow, wide);
    project.backward(normed_1, wide, narrow);
    norm_1.backward(narrow, dx);
  }
};

template <class Real>
class transformer {
 public:
  transformer(const model_shape& shape, std::uint64_t seed) : shape_(shape) {
    const int w = shape.width;
    embedding_ = add("embedding", shape.vocabulary, w, true);
    positions_ = add("positions", shape.context, w, true);
    for (int i = 0; i < shape.layers; ++i) {
      const std::string prefix = "block" + std::to_string(i) + ".";
      auto& b = *blocks_.emplace_back(std::make_unique<block<Real>>());
      b.norm_1 = make_norm(prefix + "norm_1");
      // No bias: the softmax is invariant under a key bias. Its gradient is only rounding, and Adam
      // would amplify that noise.
      b.project = {add(prefix + "project", w, 3 * w, true), nullptr};
      b.collective_try.heads = shape.heads;
      b.collective_try.context = shape.context;
      b.merge = make_linear(prefix + "merge", w, w);
      b.norm_2 = make_norm(prefix + "norm_2");
      b.expand = make_linear(prefix + "expand", w, 4 * w);
      b.contract = make_linear(prefix + "contract", 4 * w, w);
    }
    norm_ = make_norm("norm");
    initialize(seed);
  }
  transformer(const transformer&) = delete;
  transformer& operator=(const transformer&) = delete;

  std::deque<tensor<Real>>& tensors() { return tensors_; }
  const model_shape& shape() const { return shape_; }

  std::size_t parameter_count() const {
    std::size_t count = 0;
    for (const auto& t : tensors_) count += t.value.size();
    return count;
  }

  // Both spans hold whole sequences of `context` tokens; target[i] is the token that follows
  // input[i]. Returns the mean cross-entropy in nats.
  double loss(std::span<const int> input, std::span<const int> target) {
    const auto rows = static_cast<Eigen::Index>(input.size());
    x_.resize(rows, shape_.width);
    const auto embedding = embedding_->values();
    const auto positions = positions_->values();
    for (Eigen::Index i = 0; i < rows; ++i) {
      x_.row(i) =
          embedding.row(input[static_cast<std::size_t>(i)]) + positions.row(i % shape_.context);
    }
    for (auto& b : blocks_) b->forward(x_);
    norm_.forward(x_, normed_);
    probabilities_.noalias() = normed_ * embedding.transpose();
    return common::softmax_loss(probabilities_, target);
  }

  // Returns the loss, and writes its gradient to every tensor. Calls `done`, if given, with the
  // number of a block once the gradients of its tensors are final, the last block first: a trainer
  // may send them while the pass goes on.
  double loss_and_gradients(std::span<const int> input, std::span<const int> target,
                            const std::function<void(int)>& done = {}) {
    const double value = loss(input, target);
    const auto rows = static_cast<Eigen::Index>(input.size());
    common::softmax_gradient(probabilities_, target);

    auto embedding = embedding_->gradients();
    embedding.noalias() = probabilities_.transpose() * normed_;
    narrow_.noalias() = probabilities_ * embedding_->values();
    x_.setZero();  // becomes the gradient with respect to the residual stream
    norm_.backward(narrow_, x_);
    for (int i = shape_.layers - 1; i >= 0; --i) {
      blocks_[static_cast<std::size_t>(i)]->backward(x_, narrow_, wide_);
      if (done) done(i);
    }

    auto positions = positions_->gradients();
    positions.setZero();
    for (Eigen::Index i = 0; i < rows; ++i) {
      embedding.row(input[static_cast<std::size_t>(i)]) += x_.row(i);
      positions.row(i % shape_.context) += x_.row(i);
    }
    return value;
  }

 private:
  tensor<Real>* add(const std::string& name, int rows, int cols, bool decay) {
    return &tensors_.emplace_back(name, rows, cols, decay);
  }

  linear<Real> make_linear(const std::string& name, int inputs, int outputs) {
    auto* weight = add(name + ".weight", inputs, outputs, true);
    return {weight, add(name + ".bias", 1, outputs, false)};
  }

  layer_norm<Real> make_norm(const std::string& name) {
    auto* gain = add(name + ".gain", 1, shape_.width, false);
    return {gain, add(name + ".bias", 1, shape_.width, false), {}, {}};
  }

  void initialize(std::uint64_t seed) {
    // Matrices that write to the residual stream start smaller, so that its variance does not grow
    // with the number of blocks (as in GPT-2).
    const double smaller = 1.0 / std::sqrt(2.0 * shape_.layers);
    std::uint64_t index = 0;
    for (auto& t : tensors_) {
      common::counter_random random{seed, common::fnv1a("initialize"), index++};
      const bool residual = t.name.ends_with("merge.weight") || t.name.ends_with("contract.weight");
      const double deviation = t.name == "positions" || t.name == "embedding"
                                   ? 0.02
                                   : (residual ? smaller : 1.0) / std::sqrt(3.0 * t.rows);
      for (Real& v : t.value) {
        v = t.decay                     ? static_cast<Real>(deviation * random.normal())
            : t.name.ends_with(".gain") ? Real(1)
                                        : Real(0);
      }
    }
  }

  model_shape shape_;
  std::deque<tensor<Real>> tensors_;  // a deque: the layers keep pointers to elements
  tensor<Real>* embedding_;
  tensor<Real>* positions_;
  std::vector<std::unique_ptr<block<Real>>> blocks_;
  layer_norm<Real> norm_;
  matrix<Real> x_, normed_, probabilities_, narrow_, wide_;
};

}  // namespace language_model
