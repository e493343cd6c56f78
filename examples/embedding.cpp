// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A less simple trainer: parameters of two types, memory that moves, a tensor that sometimes has no
// gradient, and an exchange that starts during the backward pass; then a model that is split over
// ranks. The guide quotes the lines between the markers.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>
#include <span>
#include <utility>
#include <vector>

namespace {

using bits16 = std::uint16_t;  // this trainer's type for bfloat16

/// A bf16 matrix with float masters, and a vector of gains in float. The loss is |x - 1|^2 / 2.
struct model {
  std::vector<bits16> matrix = std::vector<bits16>(3000), matrix_grad = matrix;
  std::vector<float> master = std::vector<float>(3000), gains = std::vector<float>(100),
                     gains_grad = gains;

  /// Moves the gains and their gradients to other memory, as frameworks do.
  void move() {
    auto other = gains;
    other.swap(gains);
    auto other_grad = gains_grad;
    other_grad.swap(gains_grad);
  }
  void backward(std::size_t tensor, int rank, int step) {
    const float noise = (rank + step) % 2 == 0 ? 0.25F : -0.25F;
    const std::size_t n = tensor == 0 ? matrix.size() : gains.size();
    for (std::size_t i = 0; i < n; ++i) {
      const float g = (tensor == 0 ? master[i] : gains[i]) - 1 + noise;
      if (tensor == 0) {
        onebit::as_bf16(std::span(matrix_grad))[i] = onebit::to_bf16(g);
      } else {
        gains_grad[i] = g;
      }
    }
  }
};

// [groups]
std::vector<onebit::param_group<onebit::any_element>> groups_of(model& m) {
  std::vector<onebit::param_group<onebit::any_element>> groups(2);
  groups[0].weight_decay = 1e-4F;
  groups[0].tensors.push_back(  // bf16, with floats that steps act on
      {onebit::as_bf16(std::span(m.matrix)), onebit::as_bf16(std::span(m.matrix_grad)), m.master});
  groups[1].own.beta2 = 0.99;
  groups[1].tensors.push_back({std::span(m.gains), std::span(m.gains_grad)});
  return groups;
}
// [/groups]

class trainer {
 public:
  explicit trainer(onebit::threads comm) : comm_(std::move(comm)) {
    onebit::one_bit_adam_options options;
    options.freeze.after = 60;                         // exact steps, then one bit
    options.warm_up_sum = onebit::dense_sum::in_int8;  // exact steps in int8: 1/4 of the bytes
    options.adam.max_grad_norm = 50;                   // clip gradients by their global norm
    const onebit::gather_scatter in_buckets{onebit::sign<>{}, onebit::default_bucket_elements};
    optimizer_ = onebit::one_bit_adam(groups_of(model_), comm_, options, in_buckets);
  }

  void train(int n_steps) {
    for (int step = 0; step < n_steps; ++step) {
      if (step % 5 == 0) model_.move();
      const bool rests = step % 7 == 6;  // equal on all ranks
      const float lr = step < n_steps / 2 ? 0.03F : 0.003F;
      // [step]
      optimizer_.rebind(groups_of(model_));  // where nothing has moved it compares pointers
      if (rests) optimizer_.rest(1);         // tensor 1 has no gradient this time
      optimizer_.begin(lr);                  // all ranks alike
      for (std::size_t t = 2; t-- > 0;) {
        if (!(rests && t == 1)) model_.backward(t, comm_.rank(), step);  // t's gradients are final
        optimizer_.ready(t);  // full buckets start to travel
      }
      const onebit::report done = optimizer_.step(lr);  // the rest; the same bits without ready
      if (done.skipped) std::printf("step %d: a gradient was not finite\n", step);
      // [/step]
    }
  }
  [[nodiscard]] float worst() const {
    float worst = 0;
    for (const float x : model_.master)
      worst = x - 1 > worst ? x - 1 : 1 - x > worst ? 1 - x : worst;
    for (const float x : model_.gains)
      worst = x - 1 > worst ? x - 1 : 1 - x > worst ? 1 - x : worst;
    return worst;
  }

 private:
  onebit::threads comm_;
  model model_;
  onebit::any_optimizer optimizer_;  // type-erased
};

/// Trains two replicas of a model, each split over two ranks. Returns the distance to the minimum.
float train_in_parts() {
  float worst = 0;
  onebit::run_threads(4, [&](onebit::threads comm) {
    std::vector<float> x(500), grad(500);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, grad});
    onebit::one_bit_adam_options options;
    options.freeze.after = 40;
    // [model parallel]
    const int part = comm.rank() % 2, replica = comm.rank() / 2;
    const onebit::threads same_part = comm.split(part, replica);
    const onebit::threads same_replica = comm.split(replica, part);
    auto optimizer = onebit::one_bit_adam(groups, same_part, options);
    optimizer.join_model_parallel(same_replica);  // they skip together, clip by one norm
    // [/model parallel]
    optimizer.warn_with(nullptr);
    for (int step = 0; step < 300; ++step) {
      const float noise = (replica + step) % 2 == 0 ? 0.25F : -0.25F;
      for (std::size_t i = 0; i < x.size(); ++i) grad[i] = x[i] - 1 + noise;
      (void)optimizer.step(step < 200 ? 0.03F : 0.003F);
    }
    if (comm.rank() == 3) worst = x[7] > 1 ? x[7] - 1 : 1 - x[7];
  });
  return worst;
}

}  // namespace

int main() {
  float one = 0;
  onebit::run_threads(2, [&](onebit::threads comm) {
    trainer t(comm);
    t.train(400);
    if (comm.rank() == 0) one = t.worst();
  });
  const float parts = train_in_parts();
  std::printf("farthest from the minimum: %.4f, in parts %.4f\n", static_cast<double>(one),
              static_cast<double>(parts));
  return one < 0.1F && parts < 0.1F ? EXIT_SUCCESS : EXIT_FAILURE;
}
