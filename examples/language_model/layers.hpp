// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The layers of the transformer, each with a hand-written backward pass. They are templates over
// the scalar type so that gradient_check.cpp can test them in double precision.
//
// Results must not depend on where memory happens to lie, or a resumed run would drift from an
// uninterrupted one. So whatever Eigen reduces or feeds to exp/tanh is an Eigen matrix, which it
// aligns; the unaligned std::vectors of the parameters only enter products and element-wise sums.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace language_model {

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
  bool decay;  // whether weight decay applies: to matrices, not to biases and gains
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
  void backward(const matrix<Real>& x, const matrix<Real>& dy, matrix<Real>& dx) const {
    weight->gradients().noalias() = x.transpose() * dy;
    if (bias != nullptr) sum_rows(dy, *bias);
    dx.noalias() = dy * weight->values().transpose();
  }
};

template <class Real>
struct layer_norm {
  tensor<Real>* gain;
  tensor<Real>* bias;
  matrix<Real> normalized;
  std::vector<Real> inverse_deviation;

  void forward(const matrix<Real>& x, matrix<Real>& y) {
    const Eigen::Index rows = x.rows();
    normalized.resize(rows, x.cols());
    y.resize(rows, x.cols());
    inverse_deviation.resize(static_cast<std::size_t>(rows));
    const auto g = gain->values().row(0).array();
    const auto b = bias->values().row(0).array();
    for (Eigen::Index i = 0; i < rows; ++i) {
      auto centred = normalized.row(i);
      centred = x.row(i).array() - x.row(i).mean();
      const Real variance = centred.squaredNorm() / static_cast<Real>(x.cols());
      const Real scale = Real(1) / std::sqrt(variance + Real(1e-5));
      inverse_deviation[static_cast<std::size_t>(i)] = scale;
      centred *= scale;
      y.row(i) = centred.array() * g + b;
    }
  }

  // Adds to dx, since every layer norm sits on a branch beside a residual connection.
  void backward(matrix<Real>& dy, matrix<Real>& dx) {
    const auto g = gain->values().row(0).array();
    auto gain_gradient = gain->gradients();
    gain_gradient.setZero();
    sum_rows(dy, *bias);
    for (Eigen::Index i = 0; i < dy.rows(); ++i) {
      const auto z = normalized.row(i);
      gain_gradient.array() += dy.row(i).array() * z.array();
      dy.row(i).array() *= g;
      const Real mean = dy.row(i).mean();
      const Real along = dy.row(i).dot(z) / static_cast<Real>(dy.cols());
      dx.row(i).array() += inverse_deviation[static_cast<std::size_t>(i)] *
                           (dy.row(i).array() - mean - z.array() * along);
    }
  }
};

// The usual tanh approximation of x * Phi(x).
template <class Real>
struct gelu {
  static constexpr Real outer = Real(0.7978845608028654);  // sqrt(2 / pi)
  static constexpr Real cubic = Real(0.044715);
  matrix<Real> input;
  matrix<Real> tangent;

  // y holds the input on entry and the output on return.
  void forward(matrix<Real>& y) {
    input = y;
    const auto x = input.array();
    tangent = (outer * x * (Real(1) + cubic * x * x)).tanh();
    y.array() = Real(0.5) * x * (Real(1) + tangent.array());
  }

  void backward(matrix<Real>& dy) const {
    const auto x = input.array();
    const auto t = tangent.array();
    dy.array() *= Real(0.5) * (Real(1) + t) +
                  Real(0.5) * x * (Real(1) - t * t) * outer * (Real(1) + Real(3) * cubic * x * x);
  }
};

// Causal multi-head self-attention between the joint query-key-value projection and the output
// projection. Rows are positions, one sequence of `context` rows after the other.
template <class Real>
struct attention {
  int heads;
  int context;
  matrix<Real> weights;  // for each (sequence, head) a context x context block of probabilities
  matrix<Real> scores;

  void forward(const matrix<Real>& qkv, matrix<Real>& y) {
    const Eigen::Index model = qkv.cols() / 3, width = model / heads, t = context;
    const Real scale = Real(1) / std::sqrt(static_cast<Real>(width));
    y.resize(qkv.rows(), model);
    weights.resize(qkv.rows() * heads, t);
    Eigen::Index at = 0;
    for (Eigen::Index first = 0; first < qkv.rows(); first += t) {
      for (int h = 0; h < heads; ++h, at += t) {
        const auto q = qkv.block(first, h * width, t, width);
        const auto k = qkv.block(first, model + h * width, t, width);
        const auto v = qkv.block(first, 2 * model + h * width, t, width);
        scores.noalias() = scale * q * k.transpose();
        causal_softmax();
        weights.middleRows(at, t) = scores;
        y.block(first, h * width, t, width).noalias() = scores * v;
      }
    }
  }

  void backward(const matrix<Real>& qkv, const matrix<Real>& dy, matrix<Real>& dqkv) {
    const Eigen::Index model = qkv.cols() / 3, width = model / heads, t = context;
    const Real scale = Real(1) / std::sqrt(static_cast<Real>(width));
    dqkv.resize(qkv.rows(), qkv.cols());
    Eigen::Index at = 0;
    for (Eigen::Index first = 0; first < qkv.rows(); first += t) {
      for (int h = 0; h < heads; ++h, at += t) {
        const auto q = qkv.block(first, h * width, t, width);
        const auto k = qkv.block(first, model + h * width, t, width);
        const auto v = qkv.block(first, 2 * model + h * width, t, width);
        const auto p = weights.middleRows(at, t);
        const auto d = dy.block(first, h * width, t, width);
        dqkv.block(first, 2 * model + h * width, t, width).noalias() = p.transpose() * d;
        scores.noalias() = d * v.transpose();
        for (Eigen::Index i = 0; i < t; ++i) {
          const Real mean = scores.row(i).dot(p.row(i));
          scores.row(i).array() = (scores.row(i).array() - mean) * p.row(i).array();
        }
        dqkv.block(first, h * width, t, width).noalias() = scale * scores * k;
        dqkv.block(first, model + h * width, t, width).noalias() = scale * scores.transpose() * q;
      }
    }
  }

 private:
  // Row i may look at columns 0..i. exp runs over the whole square, where it vectorizes best; what
  // lies above the diagonal is thrown away afterwards, infinite or not.
  void causal_softmax() {
    const Eigen::Index t = context;
    for (Eigen::Index i = 0; i < t; ++i)
      scores.row(i).array() -= scores.row(i).head(i + 1).maxCoeff();
    scores = scores.array().exp();
    for (Eigen::Index i = 0; i < t; ++i) {
      scores.row(i).tail(t - i - 1).setZero();
      scores.row(i) /= scores.row(i).sum();
    }
  }
};

}  // namespace language_model
