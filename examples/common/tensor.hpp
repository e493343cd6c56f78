// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Parts of models: tensors with their gradients, and the linear layer.
//
// Results must not depend on addresses of memory, or a resumed run would drift from an
// uninterrupted one. So operands of reductions, exp and tanh are Eigen matrices, which Eigen
// aligns; the unaligned std::vectors of the parameters only enter products and element-wise sums.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace common {

template <class Real>
using matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One trainable tensor with its gradient; a vector is a matrix of one row.
template <class Real>
struct tensor {
  tensor(std::string name_, int rows_, int cols_, bool decay_)
      : name(std::move(name_)),
        rows(rows_),
        cols(cols_),
        decay(decay_),
        value(static_cast<std::size_t>(rows_) * cols_),
        gradient(value.size()) {}

  Eigen::Map<const matrix<Real>> values() const { return {value.data(), rows, cols}; }
  Eigen::Map<matrix<Real>> gradients() { return {gradient.data(), rows, cols}; }

  std::string name;
  int rows;
  int cols;
  bool decay;  // weight decay applies: to matrices, not to biases and gains
  std::vector<Real> value;
  std::vector<Real> gradient;
};

template <class Real>
void sum_rows(const matrix<Real>& from, tensor<Real>& to) {
  auto sum = to.gradients();
  sum = from.row(0);
  for (Eigen::Index i = 1; i < from.rows(); ++i) sum += from.row(i);
}

template <class Real>
struct linear {
  tensor<Real>* weight;  // inputs x outputs
  tensor<Real>* bias;    // may be null

  void forward(const matrix<Real>& x, matrix<Real>& y) const {
    y.noalias() = x * weight->values();
    if (bias != nullptr) y.rowwise() += bias->values().row(0);
  }

  // Overwrites the gradients of the parameters: every layer is used once per pass.
  void parameter_gradients(const matrix<Real>& x, const matrix<Real>& dy) const {
    weight->gradients().noalias() = x.transpose() * dy;
    if (bias != nullptr) sum_rows(dy, *bias);
  }

  void backward(const matrix<Real>& x, const matrix<Real>& dy, matrix<Real>& dx) const {
    parameter_gradients(x, dy);
    dx.noalias() = dy * weight->values().transpose();
  }
};

// Turns logits into probabilities; returns the mean cross-entropy in nats.
template <class Real>
double softmax_loss(matrix<Real>& logits, std::span<const int> target) {
  const Eigen::Index rows = logits.rows();
  double sum = 0;
  for (Eigen::Index i = 0; i < rows; ++i) {
    logits.row(i).array() -= logits.row(i).maxCoeff();
    sum -= static_cast<double>(logits(i, target[static_cast<std::size_t>(i)]));
  }
  logits = logits.array().exp();
  for (Eigen::Index i = 0; i < rows; ++i) {
    const Real total = logits.row(i).sum();
    sum += std::log(static_cast<double>(total));
    logits.row(i) /= total;
  }
  return sum / static_cast<double>(rows);
}

// Turns the probabilities into the gradient of the mean cross-entropy in the logits.
template <class Real>
void softmax_gradient(matrix<Real>& probabilities, std::span<const int> target) {
  for (Eigen::Index i = 0; i < probabilities.rows(); ++i) {
    probabilities(i, target[static_cast<std::size_t>(i)]) -= Real(1);
  }
  probabilities *= Real(1) / static_cast<Real>(probabilities.rows());
}

}  // namespace common
