// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// A classifier of bags of ten tokens; token k is 1/k as frequent as the first. Most rows of its
/// embedding have a gradient in at most one of a hundred steps. A softmax follows.
template <class Real>
class zipf : public task<Real> {
 public:
  explicit zipf(std::uint64_t seed) : task<Real>(4000), truth_(n_tokens, n_classes) {
    counter_random random{seed, 2};
    this->add_tensor(n_tokens, width, 0.1, random);
    this->add_tensor(width, n_classes, 0.25, random);
    this->add_tensor(1, n_classes, 0, random);
    counter_random of_truth{4};
    for (double& score : truth_.reshaped()) score = 1.2 * of_truth.normal();
    double sum = 0;
    for (int token = 0; token < n_tokens; ++token) {
      cumulative_.push_back(sum += 1.0 / (token + 1));
    }
  }
  void change_truth() override { truth_ = -truth_; }

  std::map<std::string, double> evaluate() override {
    std::map<std::string, double> losses{{"", this->held_out_loss()}};
    only_rare_ = true;
    losses["rare tokens"] = this->held_out_loss();
    only_rare_ = false;
    return losses;
  }

 private:
  static constexpr int n_tokens = 5000, n_frequent = 500, width = 16, n_classes = 8;

  int draw_token(counter_random& random) const {
    if (only_rare_) return n_frequent + static_cast<int>(random.below(n_tokens - n_frequent));
    const auto begin = cumulative_.begin(), end = cumulative_.end();
    return static_cast<int>(std::lower_bound(begin, end, random.unit() * end[-1]) - begin);
  }
  /// Draws a class with the probabilities softmax(scores).
  static int draw_class(const matrix<double>& scores, counter_random& random) {
    const matrix<double> p = scores.array().exp();
    double left = random.unit() * p.sum();
    int label = 0;
    while (label + 1 < n_classes && (left -= p(0, label)) > 0) ++label;
    return label;
  }

  double batch(counter_random& random, int n, bool learns) override {
    auto& embedding = this->tensors[0];
    const common::linear<Real> out{&this->tensors[1], &this->tensors[2]};
    matrix<Real> bags = matrix<Real>::Zero(n, width), p, dbags;
    std::vector<int> labels;
    Eigen::MatrixXi tokens(n, 10);
    for (int i = 0; i < n; ++i) {
      matrix<double> scores = matrix<double>::Zero(1, n_classes);
      for (int& token : tokens.row(i)) {
        token = draw_token(random);
        scores += truth_.row(token);
        bags.row(i) += embedding.values().row(token) / Real(3);
      }
      labels.push_back(draw_class(scores, random));
    }
    out.forward(bags, p);
    const double loss = common::softmax_loss<Real>(p, labels);
    if (!learns) return loss;

    common::softmax_gradient<Real>(p, labels);
    out.backward(bags, p, dbags);
    for (int i = 0; i < n; ++i) {
      for (const int token : tokens.row(i)) {
        embedding.gradients().row(token) += dbags.row(i) / Real(3);
      }
    }
    return loss;
  }

  matrix<double> truth_;
  std::vector<double> cumulative_;
  bool only_rare_ = false;
};

}  // namespace tasks
