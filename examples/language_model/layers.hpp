// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The layers of the transformer, each with a hand-written backward pass. They are templates over
// the scalar type so that gradient_check.cpp can test them in double precision.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "common/tensor.hpp"

namespace language_model {

using common::linear;
using common::matrix;
using common::sum_rows;
using common::tensor;

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
  // Row i may look at columns 0..i. exp runs over the whole square, where it vectorizes best; the
  // values above the diagonal, perhaps infinite, are then set to 0.
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
