// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A trainer that updates one tensor at a time, as MiniDNN, tiny-dnn and caffe do: in double, with a
// gradient buffer that is reused for the next tensor. The guide quotes the lines between the
// markers.

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <onebit/extras/per_tensor.hpp>
#include <onebit/onebit.hpp>
#include <random>
#include <vector>

namespace {

using vec = std::vector<double>;

/// Interface that layers call with each of their tensors; SGD, Adam and so on implement it.
struct update_rule {
  virtual ~update_rule() = default;
  virtual void update(const vec& dW, vec& W) = 0;
};
struct compressed : update_rule {
  explicit compressed(onebit::per_tensor& tensors) : all(tensors) {}
  // [update]
  void update(const vec& dW, vec& W) override { all.see(W, dW); }
  // [/update]
  onebit::per_tensor& all;
};

/// y = tanh(W x + b).
struct layer {
  vec W, b, x, y, scratch;

  layer(std::size_t n_in, std::size_t n_out, std::mt19937& random) : W(n_in * n_out), b(n_out) {
    std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(n_in)));
    for (double& w : W) w = normal(random);
  }
  const vec& forward(const vec& input) {
    x = input;
    y = b;
    for (std::size_t k = 0; k < W.size(); ++k) y[k / x.size()] += W[k] * x[k % x.size()];
    for (double& value : y) value = std::tanh(value);
    return y;
  }
  vec backward(vec dy, update_rule& rule) {
    for (std::size_t o = 0; o < y.size(); ++o) dy[o] *= 1 - y[o] * y[o];
    vec dx(x.size());
    scratch = dy;
    rule.update(scratch, b);
    scratch.resize(W.size());
    for (std::size_t k = 0; k < W.size(); ++k) {
      dx[k % x.size()] += W[k] * dy[k / x.size()];
      scratch[k] = x[k % x.size()] * dy[k / x.size()];
    }
    rule.update(scratch, W);
    return dx;
  }
};

/// Trains. Returns the mean error of the last hundred steps.
double train(onebit::threads ranks) {
  std::mt19937 same(1), own(static_cast<unsigned>(ranks.rank()) + 2U);
  std::uniform_real_distribution<double> uniform(-1, 1);
  layer hidden(2, 32, same), last(32, 1, same);
  // [make]
  const auto make = [](const auto& groups, auto comm) {
    return onebit::one_bit_adam(groups, comm, {});
  };
  onebit::per_tensor all(ranks, make);
  // [/make]
  compressed rule(all);
  double error = 0;
  for (int step = 0; step < 4000; ++step) {
    const vec x = {uniform(own), uniform(own)};
    const double wrong = last.forward(hidden.forward(x))[0] - std::sin(3 * x[0]) * x[1];
    error += step < 3900 ? 0 : std::fabs(wrong) / 100;
    // [batch]
    hidden.backward(last.backward({wrong}, rule), rule);  // as before: it calls rule.update()
    const onebit::report done = all.finish(step < 3000 ? 0.01F : 0.001F);
    // [/batch]
    if (ranks.rank() == 0 && step % 999 == 0) std::printf("%s\n", to_string(done).c_str());
  }
  return error;
}

}  // namespace

int main() {
  double error = 1;
  onebit::run_threads(2, [&](onebit::threads ranks) {
    const double own = train(ranks);
    if (ranks.rank() == 0) error = own;
  });
  std::printf("mean error %.4f\n", error);
  return error < 0.08 ? 0 : 1;
}
