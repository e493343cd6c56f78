// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Learner on the host: the transformer of model.hpp, computed by Eigen.
#include <algorithm>
#include <utility>

#include "learner.hpp"
#include "model.hpp"

namespace language_model {
namespace {

class host_learner final : public learner {
 public:
  host_learner(const model_shape& shape, std::uint64_t seed) : model_(shape, seed) {}

  const model_shape& shape() const override { return model_.shape(); }
  std::vector<common::parameter> parameters() override {
    std::vector<common::parameter> all;
    for (auto& t : model_.tensors()) all.push_back({t.value, t.gradient, t.decay});
    return all;
  }
  void learn(const batch& b) override {
    losses_.push_back(model_.loss_and_gradients(b.input, b.target));
  }
  std::vector<double> losses() override { return std::exchange(losses_, {}); }
  double loss(const batch& b) override { return model_.loss(b.input, b.target); }
  std::vector<float> values() override {
    std::vector<float> all;
    for (const auto& t : model_.tensors()) all.insert(all.end(), t.value.begin(), t.value.end());
    return all;
  }
  void set_values(std::span<const float> all) override {
    for (auto& t : model_.tensors()) {
      std::copy_n(all.begin(), t.value.size(), t.value.begin());
      all = all.subspan(t.value.size());
    }
  }

 private:
  transformer<float> model_;
  std::vector<double> losses_;
};

}  // namespace

std::vector<initial_tensor> initial_tensors(const model_shape& shape, std::uint64_t seed) {
  transformer<float> model(shape, seed);
  std::vector<initial_tensor> all;
  for (auto& t : model.tensors()) {
    all.push_back({t.name, t.rows, t.cols, t.decay, std::move(t.value)});
  }
  return all;
}

std::unique_ptr<learner> learner_on_host(const model_shape& shape, std::uint64_t seed) {
  return std::make_unique<host_learner>(shape, seed);
}

}  // namespace language_model
