// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// A recurrent net repeats each symbol three steps later. The trained net makes no mistakes, so
/// that gradients become a thousand times smaller during training.
template <class Real>
class echo : public task<Real> {
 public:
  explicit echo(std::uint64_t seed) : task<Real>(300) {
    counter_random random{seed, 1};
    this->add_tensor(n_symbols, n_units, 0.4, random);
    this->add_tensor(n_units, n_units, 0.9 / std::sqrt(n_units), random);
    this->add_tensor(1, n_units, 0, random);
    this->add_tensor(n_units, n_symbols, 0.2, random);
    this->add_tensor(1, n_symbols, 0, random);
  }
  void change_truth() override { mirrored_ = !mirrored_; }

 private:
  static constexpr int n_symbols = 6, n_units = 40, length = 14, delay = 3;

  /// Rows are the examples at time 0, then at time 1, and so on; the rows of h start at time -1.
  double batch(counter_random& random, int n, bool learns) override {
    auto& in = this->tensors[0];
    const common::linear<Real> recurrent{&this->tensors[1], &this->tensors[2]};
    const common::linear<Real> out{&this->tensors[3], &this->tensors[4]};
    std::vector<int> symbols(static_cast<std::size_t>(n * length));
    for (int& symbol : symbols) symbol = static_cast<int>(random.below(n_symbols));
    const int n_answers = n * (length - delay);
    std::vector<int> wanted(symbols.begin(), symbols.begin() + n_answers);
    if (mirrored_) {
      for (int& symbol : wanted) symbol = n_symbols - 1 - symbol;
    }

    matrix<Real> h = matrix<Real>::Zero(n * (length + 1), n_units), a, p;
    for (int t = 0; t < length; ++t) {
      recurrent.forward(h.middleRows(n * t, n), a);
      for (int i = 0; i < n; ++i) {
        a.row(i) += in.values().row(symbols[static_cast<std::size_t>(n * t + i)]);
      }
      h.middleRows(n * (t + 1), n) = a.array().tanh();
    }
    out.forward(h.bottomRows(n_answers), p);
    const double loss = common::softmax_loss<Real>(p, wanted);
    if (!learns) return loss;

    matrix<Real> da = matrix<Real>::Zero(h.rows(), n_units), of_answers;
    common::softmax_gradient<Real>(p, wanted);
    out.backward(h.bottomRows(n_answers), p, of_answers);
    da.bottomRows(n_answers) = of_answers;
    for (int t = length; t > 0; --t) {
      auto now = da.middleRows(n * t, n);
      now.array() *= 1 - h.middleRows(n * t, n).array().square();
      da.middleRows(n * (t - 1), n) += now * recurrent.weight->values().transpose();
    }
    recurrent.parameter_gradients(h.topRows(n * length), da.bottomRows(n * length));
    for (int i = 0; i < n * length; ++i) {
      in.gradients().row(symbols[static_cast<std::size_t>(i)]) += da.row(n + i);
    }
    return loss;
  }

  bool mirrored_ = false;  // true: the answer to the first symbol is the last, and so on
};

}  // namespace tasks
