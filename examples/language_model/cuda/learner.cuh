// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The transformer of model.hpp on a CUDA device: equal tensors and mathematics, other kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.cuh"
#include "language_model/learner.hpp"
#include "matmul.cuh"
#include "memory.cuh"

namespace language_model::device {

// A tensor with its gradient, in device memory.
struct weights {
  std::string name;
  int rows, columns;
  bool decay;
  float *value, *gradient;

  std::size_t size() const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
};

struct norm {
  const weights *gain, *bias;
  array<float> normalized, inverse;
};

struct layer {
  norm norm_1, norm_2;
  const weights *project, *merge, *merge_bias, *expand, *expand_bias, *contract, *contract_bias;
  array<float> normed_1, qkv, probabilities, mixed, normed_2, hidden, activated;
};

class device_learner final : public learner {
 public:
  device_learner(const model_shape& shape, std::uint64_t seed, cudaStream_t stream,
                 const std::string& products)
      : shape_(shape), stream_(stream), matmul_(stream, products), losses_(256) {
    make_weights(initial_tensors(shape, seed));
    const auto linear = [this](const std::string& name, const weights*& w, const weights*& b) {
      w = find(name + ".weight");
      b = find(name + ".bias");
    };
    const auto set = [this](const std::string& name, norm& to) {
      to.gain = find(name + ".gain");
      to.bias = find(name + ".bias");
    };
    embedding_ = find("embedding");
    positions_ = find("positions");
    layers_.resize(static_cast<std::size_t>(shape.layers));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::string prefix = "block" + std::to_string(i) + ".";
      layer& l = layers_[i];
      set(prefix + "norm_1", l.norm_1);
      set(prefix + "norm_2", l.norm_2);
      l.project = find(prefix + "project");
      linear(prefix + "merge", l.merge, l.merge_bias);
      linear(prefix + "expand", l.expand, l.expand_bias);
      linear(prefix + "contract", l.contract, l.contract_bias);
    }
    set("norm", norm_);
    for (auto& used : staged_) check(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
  }
  ~device_learner() override {
    (void)cudaStreamSynchronize(stream_);
    for (auto& used : staged_) (void)cudaEventDestroy(used);
  }

  const model_shape& shape() const override { return shape_; }
  std::vector<common::parameter> parameters() override {
    std::vector<common::parameter> all;
    for (const weights& w : weights_) {
      all.push_back({{w.value, w.size()}, {w.gradient, w.size()}, w.decay});
    }
    return all;
  }
  void learn(const batch& b) override {
    if (n_losses_ == losses_.size()) take_losses();
    forward(b);
    mean<<<1, block, 0, stream_>>>(losses_.data() + n_losses_++, row_losses_.data(), rows_);
    backward();
  }
  std::vector<double> losses() override {
    take_losses();
    return std::exchange(taken_, {});
  }
  double loss(const batch& b) override {
    float value = 0;
    forward(b);
    mean<<<1, block, 0, stream_>>>(row_losses_.data() + rows_, row_losses_.data(), rows_);
    fetch(&value, row_losses_.data() + rows_, 1);
    return static_cast<double>(value);
  }
  std::vector<float> values() override {
    std::vector<float> all;
    for (const weights& w : weights_) {
      all.resize(all.size() + w.size());
      fetch(&*all.end() - w.size(), w.value, w.size());
    }
    return all;
  }
  void set_values(std::span<const float> all) override {
    for (const weights& w : weights_) {
      check(cudaMemcpyAsync(w.value, all.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice,
                            stream_));
      all = all.subspan(w.size());
    }
    check(cudaStreamSynchronize(stream_));
  }

 private:
  // -- memory ----------------------------------------------------------------------------------

  void make_weights(const std::vector<initial_tensor>& initial) {
    const auto room = [](const initial_tensor& t) { return (t.values.size() + 63) / 64 * 64; };
    std::size_t n = 0;
    for (const auto& t : initial) n += room(t);
    values_ = array<float>(n);
    gradients_ = array<float>(n);
    n = 0;
    std::vector<float> all;
    for (const auto& t : initial) {
      weights_.push_back(
          {t.name, t.rows, t.cols, t.decay, values_.data() + n, gradients_.data() + n});
      all.insert(all.end(), t.values.begin(), t.values.end());
      n += room(t);
    }
    set_values(all);
  }
  const weights* find(const std::string& name) const {
    for (const weights& w : weights_) {
      if (w.name == name) return &w;
    }
    throw std::runtime_error("the model has no tensor " + name);
  }

  void make_room(int rows) {
    if (rows <= most_rows_) return;
    most_rows_ = rows;
    const auto r = static_cast<std::size_t>(rows), w = static_cast<std::size_t>(shape_.width);
    const auto squares = r * static_cast<std::size_t>(shape_.heads * shape_.context);
    const auto for_norm = [r, w](norm& n) {
      n.normalized.reserve(r * w);
      n.inverse.reserve(r);
    };
    for (layer& l : layers_) {
      for_norm(l.norm_1);
      for_norm(l.norm_2);
      l.normed_1.reserve(r * w);
      l.qkv.reserve(3 * r * w);
      l.probabilities.reserve(squares);
      l.mixed.reserve(r * w);
      l.normed_2.reserve(r * w);
      l.hidden.reserve(4 * r * w);
      l.activated.reserve(4 * r * w);
    }
    for_norm(norm_);
    for (array<float>* a : {&x_, &normed_, &narrow_}) a->reserve(r * w);
    wide_.reserve(4 * r * w);
    scores_.reserve(squares);
    logits_.reserve(r * static_cast<std::size_t>(shape_.vocabulary));
    row_losses_.reserve(r + 1);
    tokens_.reserve(2 * r);
    staging_.clear();
    for (std::size_t i = 0; i < staged_.size(); ++i) staging_.emplace_back(2 * r);
  }

  // Copies the batch through pinned memory. Four slots, so that the host rarely waits.
  void upload(const batch& b) {
    rows_ = static_cast<int>(b.input.size());
    make_room(rows_);
    const std::size_t slot = n_uploads_++ % staged_.size(), n = b.input.size();
    check(cudaEventSynchronize(staged_[slot]));
    int* const from = staging_[slot].data();
    std::copy_n(b.input.begin(), n, from);
    std::copy_n(b.target.begin(), n, from + n);
    check(cudaMemcpyAsync(tokens_.data(), from, 2 * n * sizeof(int), cudaMemcpyHostToDevice,
                          stream_));
    check(cudaEventRecord(staged_[slot], stream_));
  }

  void fetch(float* to, const float* from, std::size_t n) {
    check(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
  }
  void take_losses() {
    if (n_losses_ == 0) return;
    std::vector<float> more(n_losses_);
    fetch(more.data(), losses_.data(), n_losses_);
    taken_.insert(taken_.end(), more.begin(), more.end());
    n_losses_ = 0;
  }

  // -- parts -----------------------------------------------------------------------------------

  static unsigned blocks_of(int n) { return static_cast<unsigned>((n + block - 1) / block); }
  static unsigned blocks_of_rows(int n) { return static_cast<unsigned>((n + warps - 1) / warps); }
  static void launched() { check(cudaGetLastError()); }

  void normalize(norm& n, const array<float>& x, array<float>& y) {
    norm_forward<<<blocks_of_rows(rows_), block, 0, stream_>>>(
        y.data(), n.normalized.data(), n.inverse.data(), x.data(), n.gain->value, n.bias->value,
        rows_, shape_.width);
    launched();
  }
  void normalize_backward(const norm& n, const array<float>& dy, array<float>& dx) {
    sum(n.gain->gradient, dy, n.normalized.data(), shape_.width);
    sum(n.bias->gradient, dy, nullptr, shape_.width);
    norm_backward<<<blocks_of_rows(rows_), block, 0, stream_>>>(
        dx.data(), dy.data(), n.normalized.data(), n.inverse.data(), n.gain->value, rows_,
        shape_.width);
    launched();
  }
  void sum(float* sums, const array<float>& a, const float* b, int width) {
    sum_rows<<<static_cast<unsigned>((width + 31) / 32), dim3(32, 8), 0, stream_>>>(
        sums, a.data(), b, rows_, width);
    launched();
  }

  // y = x w + bias + keep * y.
  void linear(const array<float>& x, const weights* w, const weights* bias, array<float>& y,
              float keep = 0) {
    product p{rows_,
              w->columns,
              w->rows,
              {x.data(), w->rows},
              {w->value, w->columns},
              {y.data(), w->columns}};
    p.keep = keep;
    p.bias = bias == nullptr ? nullptr : bias->value;
    matmul_(p);
  }
  // Computes the gradients of w and bias, and dx.
  void linear_backward(const array<float>& x, const array<float>& dy, const weights* w,
                       const weights* bias, array<float>& dx) {
    matmul_({w->rows,
             w->columns,
             rows_,
             {x.data(), w->rows, true},
             {dy.data(), w->columns},
             {w->gradient, w->columns}});
    if (bias != nullptr) sum(bias->gradient, dy, nullptr, w->columns);
    matmul_({rows_,
             w->rows,
             w->columns,
             {dy.data(), w->columns},
             {w->value, w->columns, true},
             {dx.data(), w->rows}});
  }

  // Parts by sequence and head: of a matrix with rows of `columns` elements, and of the squares.
  matrices heads_of(const float* p, int columns, bool transposed = false) const {
    return {const_cast<float*>(p), columns, transposed,
            static_cast<long long>(shape_.context) * columns, shape_.width / shape_.heads};
  }
  matrices squares_of(const array<float>& a, bool transposed = false) const {
    const long long square = static_cast<long long>(shape_.context) * shape_.context;
    return {a.data(), shape_.context, transposed, shape_.heads * square, square};
  }
  void per_head(int n, int k, matrices a, matrices b, matrices c, float factor = 1) {
    matmul_(
        {shape_.context, n, k, a, b, c, factor, 0, nullptr, rows_ / shape_.context, shape_.heads});
  }

  void collective_try(layer& l) {
    const int w = shape_.width, t = shape_.context, of_head = w / shape_.heads;
    const float *q = l.qkv.data(), *k = q + w, *v = k + w;
    per_head(t, of_head, heads_of(q, 3 * w), heads_of(k, 3 * w, true), squares_of(l.probabilities),
             scale());
    const int rows = rows_ * shape_.heads;
    causal_softmax<<<blocks_of_rows(rows), block, 0, stream_>>>(l.probabilities.data(), rows, t);
    launched();
    per_head(of_head, t, squares_of(l.probabilities), heads_of(v, 3 * w),
             heads_of(l.mixed.data(), w));
  }
  // Computes the gradient of the joint projection from dy, and writes it to `wide_`.
  void attend_backward(const layer& l, const array<float>& dy) {
    const int w = shape_.width, t = shape_.context, of_head = w / shape_.heads;
    const float *q = l.qkv.data(), *k = q + w, *v = k + w;
    float* const d = wide_.data();
    const array<float>& p = l.probabilities;
    per_head(of_head, t, squares_of(p, true), heads_of(dy.data(), w), heads_of(d + 2 * w, 3 * w));
    per_head(t, of_head, heads_of(dy.data(), w), heads_of(v, 3 * w, true), squares_of(scores_));
    const int rows = rows_ * shape_.heads;
    causal_softmax_backward<<<blocks_of_rows(rows), block, 0, stream_>>>(scores_.data(), p.data(),
                                                                         rows, t);
    launched();
    per_head(of_head, t, squares_of(scores_), heads_of(k, 3 * w), heads_of(d, 3 * w), scale());
    per_head(of_head, t, squares_of(scores_, true), heads_of(q, 3 * w), heads_of(d + w, 3 * w),
             scale());
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.width / shape_.heads)); }

  // -- the whole -------------------------------------------------------------------------------

  // Computes the loss of each row, and writes the gradient of the mean loss to logits_.
  void forward(const batch& b) {
    upload(b);
    const int w = shape_.width;
    embed<<<blocks_of(rows_ * w), block, 0, stream_>>>(x_.data(), tokens_.data(), embedding_->value,
                                                       positions_->value, rows_, w, shape_.context);
    launched();
    for (layer& l : layers_) {
      normalize(l.norm_1, x_, l.normed_1);
      linear(l.normed_1, l.project, nullptr, l.qkv);
      collective_try(l);
      linear(l.mixed, l.merge, l.merge_bias, x_, 1);
      normalize(l.norm_2, x_, l.normed_2);
      linear(l.normed_2, l.expand, l.expand_bias, l.hidden);
      gelu_forward<<<blocks_of(4 * rows_ * w), block, 0, stream_>>>(l.activated.data(),
                                                                    l.hidden.data(), 4 * rows_ * w);
      launched();
      linear(l.activated, l.contract, l.contract_bias, x_, 1);
    }
    normalize(norm_, x_, normed_);
    const int v = shape_.vocabulary;
    matmul_({rows_, v, w, {normed_.data(), w}, {embedding_->value, w, true}, {logits_.data(), v}});
    softmax_loss<<<blocks_of_rows(rows_), block, 0, stream_>>>(logits_.data(), row_losses_.data(),
                                                               tokens_.data() + rows_, rows_, v);
    launched();
  }

  // Computes the gradient of every tensor, from the results of forward.
  void backward() {
    const int w = shape_.width, v = shape_.vocabulary;
    matmul_(
        {v, w, rows_, {logits_.data(), v, true}, {normed_.data(), w}, {embedding_->gradient, w}});
    matmul_({rows_, w, v, {logits_.data(), v}, {embedding_->value, w}, {narrow_.data(), w}});
    // x_ becomes the gradient with respect to the residual stream
    const std::size_t bytes = static_cast<std::size_t>(rows_ * w) * sizeof(float);
    check(cudaMemsetAsync(x_.data(), 0, bytes, stream_));
    normalize_backward(norm_, narrow_, x_);
    for (auto l = layers_.rbegin(); l != layers_.rend(); ++l) {
      linear_backward(l->activated, x_, l->contract, l->contract_bias, wide_);
      gelu_backward<<<blocks_of(4 * rows_ * w), block, 0, stream_>>>(wide_.data(), l->hidden.data(),
                                                                     4 * rows_ * w);
      launched();
      linear_backward(l->normed_2, wide_, l->expand, l->expand_bias, narrow_);
      normalize_backward(l->norm_2, narrow_, x_);
      linear_backward(l->mixed, x_, l->merge, l->merge_bias, narrow_);
      attend_backward(*l, narrow_);
      linear_backward(l->normed_1, wide_, l->project, nullptr, narrow_);
      normalize_backward(l->norm_1, narrow_, x_);
    }
    embed_backward<<<static_cast<unsigned>(v + shape_.context), block, 0, stream_>>>(
        embedding_->gradient, positions_->gradient, tokens_.data(), x_.data(), rows_, w,
        shape_.context, v);
    launched();
  }

  model_shape shape_;
  cudaStream_t stream_;
  matmul matmul_;
  array<float> values_, gradients_;
  std::vector<weights> weights_;
  const weights *embedding_ = nullptr, *positions_ = nullptr;
  std::vector<layer> layers_;
  norm norm_{};

  int rows_ = 0, most_rows_ = 0;
  array<int> tokens_;  // the inputs, then the targets
  array<float> x_, normed_, narrow_, wide_, scores_, logits_, row_losses_;
  std::array<cudaEvent_t, 4> staged_{};
  std::vector<pinned_array<int>> staging_;
  std::size_t n_uploads_ = 0;

  array<float> losses_;  // losses of the last batches, until take_losses
  std::size_t n_losses_ = 0;
  std::vector<double> taken_;
};

}  // namespace language_model::device
