// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/zero_one.hpp>
#include <utility>

/// The arithmetic of DeepSpeed's ZeroOneAdam, for trajectories recorded there and for those who
/// come from there. New work should take zero_one_rule.
namespace onebit {

namespace detail {

/// Stage A: base + g. Stage B: base + a d, a with this step's own update in it.
template <class P, class G>
struct variant_message {
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
            -(now->lr * tensor.lr_factor),
            tensor.weight_decay,
            stage_b};
  }
};

/// A field of gradients that starts from 0.
template <class Message>
struct plain_field {
  Message message;
  template <class L>
  struct reader {
    typename Message::template reader<L> message;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return message(k, L::set(0.0F));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t i) const {
    return {message.template at<L>(t, i)};
  }
};

/// m and x from a gradient, the agreed one or the local one; the step also into the sum of local
/// steps, where there is one.
template <class Field, class P, class G>
struct variant_step_kernel {
  Field gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* m;
  const float* v;
  float* sum;  ///< of local steps, or null
  const step_scalars* now;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto g = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-(now->lr * tensor.lr_factor));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto m_new = c.template next_momentum<L>(L::load(m + at), g(k));
      L::store(m + at, m_new);
      const auto x = params.load(k);
      const auto u = L::div(m_new, c.template denominator<L>(L::load(v + at)));
      const auto decayed = L::fma(L::set(tensor.weight_decay), x, u);
      params.store(k, L::fma(step, decayed, x));
      if (sum != nullptr) L::store(sum + at, L::fma(step, decayed, L::load(sum + at)));
    }
  }
};

/// Stage B's exchange: x without the local steps, with the agreed ones; m from their sum.
template <class View, class P, class G>
struct variant_sync_kernel {
  View agreed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* m;
  const float* v;
  float* sum;
  const double* lr_before;
  const step_scalars* now;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto agreed_at = agreed.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const double sum_lr = *lr_before + static_cast<double>(now->lr);
    const float scaled = static_cast<float>(sum_lr) * tensor.lr_factor;
    const auto inverse = L::set(scaled > 0 ? -1.0F / scaled : 0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto b = agreed_at(k);
      L::store(m + at, L::mul(b, inverse));
      const auto x = L::sub(params.load(k), L::load(sum + at));
      const auto moved = L::div(b, c.template denominator<L>(L::load(v + at)));
      params.store(k, L::add(x, moved));
      L::store(sum + at, L::set(0.0F));
    }
  }
};

}  // namespace detail

/// Stage A: dense Adam steps, and between them steps from compressed gradients. Stage B: local
/// steps, whose sum, times sqrt(v) + eps, is what an exchange agrees on; weight decay is inside
/// that sum, and local steps are undone by subtraction, so that ranks agree only up to rounding.
///
/// State: m, v and the sum of local steps, 12 bytes per element.
/// Source: DeepSpeed 0.19.6, ZeroOneAdam; differs in the order of roundings.
template <class B>
class zero_one_variant_rule {
 public:
  template <class T>
  using buffer = decltype(std::declval<B&>().template make_buffer<T>(0));
  static constexpr bool accumulates = false;
  static constexpr bool local_steps = true;
  static constexpr bool refresh_is_step = true;

  zero_one_variant_rule(zero_one_options options, B backend)
      : options_(options), backend_(std::move(backend)) {
    validate_moments("zero_one_variant", options.beta1, options.beta2, options.eps);
  }
  void prepare(const layout& axis) {
    const std::size_t n = axis.n_words() * word_elements;
    for (auto* b : {&m_, &v_, &sum_}) *b = backend_.template make_buffer<float>(n);
    lr_sum_ = backend_.template make_buffer<double>(1);
  }

  /// An exchange is a local step while the learning rates of stage B sum to 0. Throws invalid_input
  /// for a negative lr.
  template <class P, class G, class Worker>
  void check(step_plan& plan, float lr, std::uint64_t, const tensor_entry<P, G>*, Worker&) {
    if (lr < 0) {
      throw invalid_input(
          detail::message("zero_one_variant: lr is ", lr, ", must not be negative"));
    }
    if (stage_b_ && !(sum_lr_ + static_cast<double>(lr) > 0)) plan.exchange = false;
  }
  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tensor_entry<P, G>* tensors,
                                                const step_scalars* now) const {
    return {tensors, now};
  }
  template <class View, class Worker>
  void preview_live(const View& gradient, Worker& at, std::uint32_t* live) {
    at.backend().launch(
        at.axis().tiles().size(),
        detail::preview_live_kernel<View>{gradient, at.tiles(), v_.data(), live, constants()});
  }
  /// A dense step.
  template <class View, class Worker, class P, class G>
  void refresh(const View& gradient, Worker& at, const tensor_entry<P, G>* tensors,
               const step_scalars* now) {
    launch_commit(at.backend(), now, at.axis().tiles().size(),
                  detail::variance_kernel<View>{gradient, at.tiles(), v_.data(), constants()});
    step(gradient, at, tensors, now, nullptr);
  }
  template <class View, class P, class G>
  [[nodiscard]] detail::variant_message<P, G> message(const View&,
                                                      const tensor_entry<P, G>* tensors,
                                                      const step_scalars* now) const {
    return {tensors, m_.data(), v_.data(), sum_.data(), now, constants(), stage_b_};
  }
  template <class Worker, class P, class G>
  void local_step(Worker& at, const tensor_entry<P, G>* tensors, const step_scalars* now) {
    step(detail::plain_field<gradient_message<P, G>>{{tensors, now}}, at, tensors, now,
         sum_.data());
  }
  /// As zero_one_rule.
  template <class Worker>
  void count_local(Worker& at, const step_scalars* now, bool alone) {
    detail::count_local_lr(at.backend(), lr_sum_.data(), now, alone);
  }
  template <class View, class Worker, class P, class G>
  void apply(const View& agreed, const View&, Worker& at, const tensor_entry<P, G>* tensors,
             const step_scalars* now) {
    if (!stage_b_) {
      step(agreed, at, tensors, now, nullptr);
      return;
    }
    launch_commit(
        at.backend(), now, at.axis().tiles().size(),
        detail::variant_sync_kernel<View, P, G>{agreed, at.tiles(), tensors, m_.data(), v_.data(),
                                                sum_.data(), lr_sum_.data(), now, constants()});
    launch_commit(at.backend(), now, 1, detail::sum_lr_kernel{lr_sum_.data(), now, true});
  }
  /// Called after a step that was done.
  void conclude(const step_plan& plan, float lr) {
    if (plan.exchange && stage_b_) sum_lr_ = 0;
    if (!plan.exchange && !plan.average_gradient) sum_lr_ += static_cast<double>(lr);
  }
  /// Stage B begins.
  void freeze() { stage_b_ = true; }

  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  /// Learning rates since the last exchange of stage B.
  [[nodiscard]] double sum_lr() const { return sum_lr_; }
  [[nodiscard]] const float* local_sum() const { return sum_.data(); }
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
  [[nodiscard]] moments_constants constants() const {
    return make_moments(options_.beta1, options_.beta2, options_.eps);
  }
  template <class Field, class Worker, class P, class G>
  void step(const Field& gradient, Worker& at, const tensor_entry<P, G>* tensors,
            const step_scalars* now, float* sum) {
    launch_commit(at.backend(), now, at.axis().tiles().size(),
                  detail::variant_step_kernel<Field, P, G>{gradient, at.tiles(), tensors, m_.data(),
                                                           v_.data(), sum, now, constants()});
  }

  zero_one_options options_;
  B backend_;
  buffer<float> m_, v_, sum_;
  buffer<double> lr_sum_;  ///< what kernels read of sum_lr_
  double sum_lr_ = 0;
  bool stage_b_ = false;
};

}  // namespace onebit
