// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Optimizers without their types, so that a test goes through algorithms and collectives by loops,
// and its own code is compiled once.

#ifndef ONEBIT_TESTS_SUPPORT_ERASED_HPP
#define ONEBIT_TESTS_SUPPORT_ERASED_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <utility>

namespace onebit_test {

class any_optimizer {
 public:
  any_optimizer() = default;
  any_optimizer(const any_optimizer&) = delete;
  any_optimizer& operator=(const any_optimizer&) = delete;
  virtual ~any_optimizer() = default;

  /// run(key, enqueue), for step_with.
  using runner = std::function<void(std::uint64_t, const std::function<void()>&)>;

  virtual onebit::report step(float lr, float inverse_loss_scale = 1) = 0;
  virtual onebit::report step_with(const runner& run, float lr, float inverse_loss_scale = 1) = 0;
  virtual void begin(float lr, float inverse_loss_scale = 1) = 0;
  virtual void ready(std::size_t tensor) = 0;
  virtual onebit::outcome settle() = 0;
  [[nodiscard]] virtual std::uint64_t n_skipped() = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  [[nodiscard]] virtual std::string saved() = 0;
  virtual void load(const std::string& checkpoint) = 0;
  /// *this = std::move(other), which is of the same type.
  virtual void take(any_optimizer& other) = 0;
};

template <class Optimizer>
class erased final : public any_optimizer {
 public:
  explicit erased(Optimizer o) : o_(std::move(o)) {}
  onebit::report step(float lr, float scale) override { return o_.step(lr, scale); }
  onebit::report step_with(const runner& run, float lr, float scale) override {
    return o_.step_with(
        [&run](std::uint64_t key, const auto& enqueue) { run(key, [&] { enqueue(); }); }, lr,
        scale);
  }
  void begin(float lr, float scale) override { o_.begin(lr, scale); }
  void ready(std::size_t tensor) override { o_.ready(tensor); }
  onebit::outcome settle() override { return o_.settle(); }
  [[nodiscard]] std::uint64_t n_skipped() override { return o_.n_skipped(); }
  [[nodiscard]] int rank() const override { return o_.rank(); }
  [[nodiscard]] int size() const override { return o_.size(); }
  [[nodiscard]] std::uint64_t steps() const override { return o_.steps(); }
  [[nodiscard]] std::string saved() override {
    std::ostringstream out;
    o_.save(out);
    return std::move(out).str();
  }
  void load(const std::string& checkpoint) override {
    std::istringstream in(checkpoint);
    o_.load(in);
  }
  void take(any_optimizer& other) override { o_ = std::move(dynamic_cast<erased&>(other).o_); }

 private:
  Optimizer o_;
};

template <class Optimizer>
[[nodiscard]] std::unique_ptr<any_optimizer> erase(Optimizer o) {
  return std::make_unique<erased<Optimizer>>(std::move(o));
}

enum class algorithm { one_bit_adam, one_bit_lamb, zero_one_adam };
inline constexpr algorithm all_compressed[] = {algorithm::one_bit_adam, algorithm::one_bit_lamb,
                                               algorithm::zero_one_adam};

/// The step before which a schedule of `make_erased` freezes; 0/1 Adam's never does.
[[nodiscard]] constexpr std::uint64_t freezes_before(algorithm a) {
  return a == algorithm::zero_one_adam ? ~std::uint64_t{0} : 3;
}

/// Ten steps go through all phases: warm-up, freeze and compressed steps; for 0/1 Adam refreshes,
/// exchanges and local steps.
template <class Groups, class T, class Collective, class B>
[[nodiscard]] std::unique_ptr<any_optimizer> make_erased(algorithm a, const Groups& groups, T t,
                                                         Collective collective, B backend,
                                                         std::uint64_t refreshes = 16) {
  if (a == algorithm::one_bit_adam) {
    return erase(onebit::one_bit_adam(
        groups, t,
        onebit::one_bit_adam_options{
            .adam = {.beta2 = 0.99}, .freeze = {.after = 3}, .refreshes = refreshes},
        collective, backend));
  }
  if (a == algorithm::one_bit_lamb) {
    return erase(onebit::one_bit_lamb(
        groups, t, onebit::one_bit_lamb_options{.lamb = {.beta2 = 0.99}, .freeze = {.after = 3}},
        collective, backend));
  }
  return erase(onebit::zero_one_adam(
      groups, t,
      onebit::zero_one_adam_options{
          .adam = {.beta2 = 0.99},
          .schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 3, .max_interval = 2}},
      collective, backend));
}

enum class policy { gather_scatter, buckets, all_gather, two_levels };
inline constexpr policy all_policies[] = {policy::gather_scatter, policy::buckets,
                                          policy::all_gather, policy::two_levels};
[[nodiscard]] constexpr int ranks_of(policy p) { return p == policy::two_levels ? 4 : 2; }

/// With sign; two ranks on a node.
template <class Groups, class T, class B>
[[nodiscard]] std::unique_ptr<any_optimizer> make_erased(algorithm a, policy p,
                                                         const Groups& groups, T t, B backend) {
  const onebit::sign<> codec;
  if (p == policy::all_gather) {
    return make_erased(a, groups, t, onebit::all_gather{codec}, backend);
  }
  if (p == policy::two_levels) {
    return make_erased(a, groups, t, onebit::hierarchical{codec, 2}, backend);
  }
  const std::size_t bucket = p == policy::buckets ? 200 : 0;
  return make_erased(a, groups, t, onebit::gather_scatter{codec, bucket}, backend);
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_ERASED_HPP
