// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 0/1 Adam as DeepSpeed's ZeroOneAdam computes it: a rule and a schedule defined outside the
// library. For trajectories recorded from DeepSpeed (tests/golden), and for users who come from
// DeepSpeed. New work should use onebit::zero_one_adam, the paper's algorithm.

#ifndef ONEBIT_TESTS_GOLDEN_DEEPSPEED_ZERO_ONE_HPP
#define ONEBIT_TESTS_GOLDEN_DEEPSPEED_ZERO_ONE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <utility>
#include <vector>

namespace deepspeed {

using onebit::gradients_of;
using onebit::parameters_of;
using onebit::step_context;
using onebit::step_scalars;
using onebit::tile;
using onebit::detail::moments_constants;
using onebit::detail::tensor_entry;

/// Message. Stage A: base + g. Stage B: base + (sum of local steps, with this one) * denominator.
template <class P, class G>
struct zero_one_message {
  static constexpr bool single_word = true;
  const tensor_entry<P, G>* tensors;
  const float *m, *v, *sum;
  const step_scalars* now;
  moments_constants c;
  bool stage_b;

  template <class L>
  struct reader {
    parameters_of<L, P> params;
    gradients_of<L, G> gradient;
    const float *m, *v, *sum;
    moments_constants c;
    float step, weight_decay;
    bool stage_b;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = gradient.load(k);
      if (!stage_b) return L::add(base, g);
      const auto d = c.template denominator<L>(L::load(v + 32 * k));
      const auto u = L::div(c.template next_momentum<L>(L::load(m + 32 * k), g), d);
      const auto x = params.load(k);
      const auto decayed = L::fma(L::set(weight_decay), x, u);
      return L::fma(L::fma(L::set(step), decayed, L::load(sum + 32 * k)), d, base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const std::size_t first = t.word * 32;
    return {parameters_of<L, P>(tensor, t),
            gradients_of<L, G>(tensor, t, now),
            m + first,
            v + first,
            sum + first,
            c,
            -tensor.rate(now),
            tensor.weight_decay,
            stage_b};
  }
};

/// Updates m and x from a gradient: the mean gradient, or the local one in a local step. Adds the
/// step to the sum of local steps, unless `sum` is null.
template <class Field, class P, class G>
struct zero_one_step_kernel {
  Field gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* m;
  const float* v;
  float* sum;  ///< sum of local steps, or null
  const step_scalars* now;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto g = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-tensor.rate(now));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto v_k = L::load(v + at);
      const auto m_next = c.template next_momentum<L>(L::load(m + at), g(k));
      const auto m_new = L::keep(L::positive(v_k), m_next);  // 0 if there is no variance
      L::store(m + at, m_new);
      const auto x = params.load(k);
      const auto u = L::div(m_new, c.template denominator<L>(v_k));
      const auto decayed = L::fma(L::set(tensor.weight_decay), x, u);
      params.store(k, L::fma(step, decayed, x));
      if (sum != nullptr) L::store(sum + at, L::fma(step, decayed, L::load(sum + at)));
    }
  }
};

/// Exchange of stage B: replaces the local steps in x by their mean; computes m from that mean.
template <class View, class P, class G>
struct zero_one_sync_kernel {
  View agreed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* m;
  const float* v;
  float* sum;
  const double* lr_before;  ///< by tensor: sum of lr since the last exchange, without this step
  const step_scalars* now;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto agreed_at = agreed.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const double sum_lr = lr_before[t.tensor] + static_cast<double>(now->given.lr);
    const float scaled = static_cast<float>(sum_lr) * tensor.lr_factor;
    const auto inverse = L::set(scaled > 0 ? -1.0F / scaled : 0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto v_k = L::load(v + at);
      const auto b = L::keep(L::positive(v_k), agreed_at(k));
      L::store(m + at, L::mul(b, inverse));
      const auto x = L::sub(params.load(k), L::load(sum + at));
      const auto moved = L::div(b, c.template denominator<L>(v_k));
      params.store(k, L::add(x, moved));
      L::store(sum + at, L::set(0.0F));
    }
  }
};

struct zero_one_options {
  /// As in Adam, but without correction of biases.
  struct moments {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
  };
  moments adam{};
  std::uint64_t var_freeze_step = 100000;
  std::uint64_t var_update_scaler = 16;
  std::uint64_t local_step_scaler = 32678;
  std::uint64_t local_step_clipper = 16;
  onebit::dense_sum dense = onebit::dense_sum::rank_order;

  /// True if v is constant in this step.
  [[nodiscard]] bool in_stage_b(std::uint64_t step) const {
    return step > 0 && step + 1 > var_freeze_step;
  }
};

/// Schedule of ZeroOneAdam, with DeepSpeed's options and step numbers. DeepSpeed's first step only
/// initialises: step i here is DeepSpeed's step i + 2.
///
/// Stage A, until var_freeze_step: a dense step every var_interval steps, else compressed
/// gradients. The interval doubles after var_update_scaler dense steps. Stage B: an exchange every
/// local_interval steps, which doubles every local_step_scaler steps, up to local_step_clipper.
class zero_one_schedule : public onebit::schedule_defaults {
 public:
  /// Throws invalid_input if one of the scalers or the clipper is 0.
  explicit zero_one_schedule(const zero_one_options& o) : options_(o) {
    if (o.var_update_scaler > 0 && o.local_step_scaler > 0 && o.local_step_clipper > 0) return;
    throw onebit::invalid_input(
        "deepspeed::zero_one_schedule: var_update_scaler, local_step_scaler "
        "and local_step_clipper must all be at least 1");
  }
  [[nodiscard]] onebit::due due_in(std::uint64_t step, float) const {
    const std::uint64_t theirs = step + 2;
    if (options_.in_stage_b(step)) {
      return {.average = false, .exchange = theirs % local_interval_ == 0};
    }
    const bool dense = theirs % var_interval_ == 0;
    return {.average = dense, .exchange = !dense};
  }
  void done(std::uint64_t step, float) {
    if (options_.in_stage_b(step)) {
      if (++local_counter_ < options_.local_step_scaler) return;
      local_counter_ = 0;
      local_interval_ = std::min(options_.local_step_clipper, 2 * local_interval_);
    } else if ((step + 2) % var_interval_ == 0 && ++var_counter_ == options_.var_update_scaler) {
      var_counter_ = 0;
      var_interval_ *= 2;
    }
  }
  [[nodiscard]] std::uint64_t var_interval() const { return var_interval_; }
  [[nodiscard]] std::uint64_t var_counter() const { return var_counter_; }
  [[nodiscard]] std::uint64_t local_interval() const { return local_interval_; }
  [[nodiscard]] std::uint64_t local_counter() const { return local_counter_; }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(var_interval_);
    a.scalar(var_counter_);
    a.scalar(local_interval_);
    a.scalar(local_counter_);
  }

 private:
  zero_one_options options_;
  std::uint64_t var_interval_ = 1, var_counter_ = 0, local_interval_ = 1, local_counter_ = 0;
};

/// Rule of ZeroOneAdam. Stage A: dense Adam steps, and between them steps from compressed
/// gradients. Stage B: local steps; an exchange averages their sum times sqrt(v) + eps. That sum
/// contains weight decay, and local steps are undone by subtraction: ranks agree only up to
/// rounding.
///
/// State: m, v and the sum of local steps, 12 bytes per element.
/// Source: DeepSpeed 0.19.6, ZeroOneAdam; the order of roundings differs.
template <onebit::Backend B>
class zero_one_rule : public onebit::rule_defaults {
 public:
  using backend_type = B;
  using float_buffer = onebit::buffer_of<B, float>;
  static constexpr bool local_steps = true;

  zero_one_rule(const zero_one_options& options, B backend)
      : options_(options),
        moments_{options.adam.beta1, options.adam.beta2, options.adam.eps},
        c_(onebit::detail::make_moments(moments_)),
        backend_(std::move(backend)) {
    onebit::validate("zero_one_options", moments_);
  }
  [[nodiscard]] onebit::moments own_moments() const { return moments_; }
  [[nodiscard]] B& backend() { return backend_; }
  void prepare(const onebit::layout& axis) {
    const std::size_t n = axis.n_words() * onebit::word_elements;
    for (auto* b : {&m_, &v_, &sum_}) *b = backend_.template make_buffer<float>(n);
    lr_sum_ = backend_.template make_buffer<double>(axis.tensor_tiles().size());
  }

  /// Stage A has dense steps and exchanges. Stage B has exchanges and local steps; an exchange is a
  /// local step while the learning rates sum to 0.
  [[nodiscard]] onebit::step_plan plan(const onebit::due& now, std::uint64_t step, float lr) const {
    using onebit::averages, onebit::update_from;
    if (now.average) return {};
    const bool in_stage_b = options_.in_stage_b(step);
    const bool moves = !in_stage_b || sum_lr_ + static_cast<double>(lr) > 0;
    return {.update = now.exchange && moves ? update_from::exchange : update_from::own_gradient,
            .average = averages::nothing,
            .dense_steps_ended = in_stage_b};
  }
  template <class P, class G>
  [[nodiscard]] onebit::gradient_message<P, G> gradient(const step_context<B, P, G>& at) const {
    return {at.tensors, at.now};
  }
  /// Makes a dense step.
  template <class View, class P, class G>
  void update_variance(const View& gradient, const step_context<B, P, G>& at) {
    at.launch(onebit::detail::variance_kernel<View>{gradient, at.tiles, v_.data(), at.scalars});
    step(gradient, at, nullptr, [&](const auto& kernel) { at.launch(kernel); });
  }
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    update_variance(gradient, at);
  }
  template <class View, class P, class G>
  [[nodiscard]] zero_one_message<P, G> message(const View&, const step_context<B, P, G>& at) const {
    return {at.tensors, m_.data(), v_.data(), sum_.data(), at.now, c_, stage_b_};
  }
  template <class P, class G>
  void local_step(const onebit::step_plan&, const step_context<B, P, G>& at) {
    step(onebit::gradient_message<P, G>{at.tensors, at.now}, at, sum_.data(),
         [&](const auto& kernel) { at.launch(kernel); });
    at.backend.launch(lr_sum_.size(), onebit::detail::sum_lr_kernel<P, G>{
                                          lr_sum_.data(), at.tensors, at.now, false});
  }
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View&, const step_context<B, P, G>& at,
                         const Update& update) {
    if (!stage_b_) return step(latest, at, nullptr, update);
    update(zero_one_sync_kernel<View, P, G>{latest, at.tiles, at.tensors, m_.data(), v_.data(),
                                            sum_.data(), lr_sum_.data(), at.now, c_});
    at.launch(lr_sum_.size(),
              onebit::detail::sum_lr_kernel<P, G>{lr_sum_.data(), at.tensors, at.now, true});
  }
  void done(const onebit::step_plan& plan, float lr) {
    if (plan.update == onebit::update_from::exchange && stage_b_) sum_lr_ = 0;
    if (plan.sends_nothing()) sum_lr_ += static_cast<double>(lr);
  }
  /// True in stage B. The exchange starts without an initial momentum: `freeze` returns none.
  [[nodiscard]] bool frozen() const { return stage_b_; }
  template <class At>
  [[nodiscard]] onebit::initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    backend_.launch(at.n_tiles(), onebit::all_active_kernel{at.tiles, active});
    stage_b_ = true;
    return {};
  }

  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  [[nodiscard]] const float* local_sum() const { return sum_.data(); }
  /// Sum of the learning rates since the last exchange of stage B.
  [[nodiscard]] double sum_lr() const { return sum_lr_; }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes() + sum_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(stage_b_);
    a.scalar(sum_lr_);
    a.buffer(lr_sum_, backend_);
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
    a.buffer(sum_, backend_);
  }

 private:
  template <class Field, class P, class G, class Run>
  void step(const Field& gradient, const step_context<B, P, G>& at, float* sum, const Run& run) {
    run(zero_one_step_kernel<Field, P, G>{gradient, at.tiles, at.tensors, m_.data(), v_.data(), sum,
                                          at.now, c_});
  }

  zero_one_options options_;
  onebit::moments moments_;
  moments_constants c_;
  B backend_;
  float_buffer m_, v_, sum_;
  onebit::buffer_of<B, double> lr_sum_;  ///< by tensor: sum_lr_ for kernels
  double sum_lr_ = 0;
  bool stage_b_ = false;
};

static_assert(onebit::LocalRule<zero_one_rule<onebit::host>> &&
              onebit::FreezingRule<zero_one_rule<onebit::host>> &&
              onebit::Schedule<zero_one_schedule>);

/// Makes the optimizer. Collective over the transport.
template <class P, class G, class T, class B = onebit::host,
          class C = onebit::gather_scatter<onebit::sign<>>>
[[nodiscard]] auto zero_one_adam(const std::vector<onebit::param_group<P, G>>& groups, T transport,
                                 const zero_one_options& o,
                                 C collective = {{onebit::granularity::layer(), 1}},
                                 B backend = B{}) {
  return onebit::optimizer(
      onebit::describe("deepspeed zero_one_adam, beta1 ", o.adam.beta1, ", beta2 ", o.adam.beta2,
                       ", eps ", o.adam.eps, ", var_freeze_step ", o.var_freeze_step,
                       ", var_update_scaler ", o.var_update_scaler, ", local_step_scaler ",
                       o.local_step_scaler, ", local_step_clipper ", o.local_step_clipper, ", ",
                       onebit::policy_name(collective), onebit::describe(groups)),
      groups, std::move(transport), zero_one_rule<B>(o, std::move(backend)), zero_one_schedule(o),
      collective, o.dense);
}

}  // namespace deepspeed

#endif  // ONEBIT_TESTS_GOLDEN_DEEPSPEED_ZERO_ONE_HPP
