// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the ablations need that the library does not have: Adam on compressed gradients, Adam's
// update as the message, and a sign that forgets what it loses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <utility>

namespace ablations {

using floats = onebit::host_buffer<float>;
using tiled = onebit::tiled<onebit::host, float, float>;

/// The sign without error feedback: what it loses is not sent later. Only where nobody serves: a
/// server has a residual of its own.
template <class Scale = onebit::l2_scale>
struct forgetful_sign : onebit::sign<Scale> {
  [[nodiscard]] std::string name() const { return "forgetful " + onebit::sign<Scale>::name(); }
  /// Before the first message (scale 0) what is carried is the momentum that was handed over.
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return s == 0.0F ? y : L::set(0.0F);
  }
};

/// Moments and both forms of Adam's step: what the rules below share.
class moments : public onebit::rule_defaults {
 public:
  using backend_type = onebit::host;

  static constexpr bool has_moments = true;

  explicit moments(onebit::adam_options o) : options_(o) {}
  [[nodiscard]] onebit::moments own_moments() const {
    return {options_.beta1, options_.beta2, options_.eps};
  }
  [[nodiscard]] onebit::host& backend() { return backend_; }
  void prepare(const onebit::layout& axis) {
    m_ = floats(axis.n_words() * onebit::word_elements);
    v_ = floats(axis.n_words() * onebit::word_elements);
  }
  [[nodiscard]] onebit::gradient_message<float, float> gradient(const tiled& at) const {
    return {at.tensors, at.now};
  }
  template <class View>
  void refresh(const View& gradient, const tiled& at) {
    at.commit(onebit::detail::adam_dense_kernel<View, float, float>{
        gradient, at.tiles, at.tensors, at.numbers, m_.data(), v_.data(), at.sums, at.now});
  }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
  }

 protected:
  onebit::adam_options options_;
  onebit::host backend_;
  floats m_, v_;
};

/// Naive 1-bit Adam: the gradients are compressed, and m and v are made of what arrives. v is then
/// the squares of scales, the same for all elements that share one: Adam's adaptivity is gone.
class compressed_gradients : public moments {
 public:
  using moments::moments;
  [[nodiscard]] onebit::moments_seen seen(const onebit::step_plan&) const {
    return {true, true, true};
  }
  template <class View>
  [[nodiscard]] onebit::gradient_message<float, float> message(const View&, const tiled& at) const {
    return gradient(at);
  }
  template <class View>
  void apply(const View& heard, const View&, const tiled& at) {
    refresh(heard, at);
  }
};

/// base + beta1 u + (1 - beta1) g / d, u as last agreed.
template <class View>
struct update_message {
  View agreed;
  const onebit::tensor_entry<float, float>* tensors;
  const onebit::step_scalars* now;
  const float* denominators;
  const onebit::tensor_numbers* numbers;

  template <class L>
  struct reader {
    typename View::template reader<L> agreed;
    onebit::gradients_of<L, float> gradient;
    const float* denominators;
    onebit::moments_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = L::div(gradient.load(k), L::load(denominators + 32 * k));
      return L::fma(g, L::set(c.one_minus_beta1), L::fma(agreed(k), L::set(c.beta1), base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const onebit::tile& t, std::size_t index) const {
    return {agreed.template at<L>(t, index),
            onebit::gradients_of<L, float>(tensors[t.tensor], t, now), denominators + t.word * 32,
            numbers[t.tensor].c};
  }
};

/// m = m / d
struct divide_kernel {
  float* m;
  const float* d;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t word) const {
    L::store(m + word * 32, L::div(L::load(m + word * 32), L::load(d + word * 32)));
  }
};

/// x -= lr (c u + weight_decay x)
template <class View>
struct update_kernel {
  View u;
  tiled at;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile& t = at.tiles[i];
    const auto& tensor = at.tensors[t.tensor];
    const auto u_at = u.template at<L>(t, i);
    const onebit::parameters_of<L, float> params(tensor, t);
    const auto step = L::set(-tensor.rate(at.now));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto x = params.load(k);
      const auto u_k = L::mul(u_at(k), L::set(at.numbers[t.tensor].m_correction));
      params.store(k, L::fma(step, L::fma(L::set(tensor.weight_decay), x, u_k), x));
    }
  }
};

/// 1-bit Adam whose message is u = m / (sqrt(v) + eps) after the freeze: every element moves alike.
class compressed_updates : public moments {
 public:
  using moments::moments;
  [[nodiscard]] onebit::moments_seen seen(const onebit::step_plan& plan) const {
    return {true, true, plan.average_gradient};
  }
  onebit::handover<floats> freeze(std::uint32_t* live, const tiled& at) {
    const std::size_t n_words = v_.size() / onebit::word_elements;
    backend_.launch(at.n_tiles(), onebit::detail::freeze_kernel{at.tiles, at.numbers, m_.data(),
                                                                v_.data(), live});
    backend_.launch(n_words, divide_kernel{m_.data(), v_.data()});
    return {std::move(m_), nullptr, at.numbers};
  }
  template <class View>
  [[nodiscard]] update_message<View> message(const View& agreed, const tiled& at) const {
    return {agreed, at.tensors, at.now, v_.data(), at.numbers};
  }
  template <class View>
  void apply(const View& heard, const View&, const tiled& at) {
    at.commit(update_kernel<View>{heard, at});
  }
};

}  // namespace ablations
