// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>

/// 0/1 Adam's arithmetic: local Adam steps from an anchor, and what their sum becomes at an
/// exchange.
namespace onebit {

struct zero_one_options {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  ///< added to the root
};

namespace detail {

/// base + lr (beta1 m + (1 - beta1) g): what a step adds to the accumulator.
template <class P, class G>
struct zero_one_message {
  const float* momentum;
  const tensor_entry<P, G>* tensors;
  moments_constants c;
  float lr;

  template <class L>
  struct reader {
    const float* momentum;
    const G* first;
    std::uint32_t n;
    moments_constants c;
    float lr;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = load_elements<L>(first, k, n);
      const auto m = c.template next_momentum<L>(L::load(momentum + 32 * k), g);
      return L::fma(L::set(lr), m, base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {momentum + t.word * 32, tensors[t.tensor].grads + t.offset, t.n, c, lr};
  }
};

/// v from the mean gradient.
template <class View>
struct variance_kernel {
  View gradient;
  const tile* tiles;
  float* v;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto g = gradient.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* word = v + (t.word + k) * 32;
      L::store(word, c.template next_variance<L>(L::load(word), g(k)));
    }
  }
};

/// The bits of the elements that will have variance after this gradient.
template <class View>
struct preview_live_kernel {
  View gradient;
  const tile* tiles;
  const float* v;
  std::uint32_t* live;
  moments_constants c;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto g = gradient.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto next = c.template next_variance<L>(L::load(v + (t.word + k) * 32), g(k));
      L::store_bits(live + t.word + k, L::positive(next));
    }
  }
};

/// x and m from the local gradient.
template <class P, class G>
struct zero_one_local_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  live_mask live;
  float* m;
  const float* v;
  moments_constants c;
  float lr;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    P* x_first = tensor.params + t.offset;
    const G* g_first = tensor.grads + t.offset;
    const float step = -(lr * tensor.lr_factor);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto g = load_elements<L>(g_first, k, t.n);
      const auto m_new =
          live.template keep<L>(word, c.template next_momentum<L>(L::load(m + word * 32), g));
      L::store(m + word * 32, m_new);
      const auto u = L::div(m_new, c.template denominator<L>(L::load(v + word * 32)));
      const auto x = load_elements<L>(x_first, k, t.n);
      const auto decayed = L::fma(L::set(tensor.weight_decay), x, u);
      store_elements<L>(x_first, k, t.n, L::fma(L::set(step), decayed, x));
    }
  }
};

/// x, anchor and m from the agreed sum of lr m since the last exchange.
template <class View, class P, class G>
struct zero_one_sync_kernel {
  View agreed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float *m, *anchor;
  const float* v;
  moments_constants c;
  float sum_lr, inverse_sum_lr;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto u_at = agreed.template at<L>(t, i);
    P* x_first = tensor.params + t.offset;
    const auto decay = L::set(sum_lr * tensor.weight_decay);
    const auto step = L::set(-tensor.lr_factor);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto u = u_at(k);
      L::store(m + word * 32, L::mul(u, L::set(inverse_sum_lr)));
      const auto from = L::load(anchor + word * 32);
      const auto moved = L::div(u, c.template denominator<L>(L::load(v + word * 32)));
      const auto x = L::fma(step, L::fma(decay, from, moved), from);
      L::store(anchor + word * 32, x);
      store_elements<L>(x_first, k, t.n, x);
    }
  }
};

/// Copies the parameters to the flat axis.
template <class P, class G>
struct anchor_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* anchor;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const P* x_first = tensors[t.tensor].params + t.offset;
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(anchor + (t.word + k) * 32, load_elements<L>(x_first, k, t.n));
    }
  }
};

}  // namespace detail

/// 0/1 Adam. Between exchanges each rank takes Adam steps of its own; the carried buffer gathers
/// u = residual + sum of lr m. An exchange agrees on u, and then x = anchor - u / (sqrt(v) + eps),
/// m = u / (sum of lr), on all ranks the same bits, since the anchor is the parameters of the last
/// exchange, not what local steps made of them. Decoupled weight decay acts on the anchor with the
/// summed learning rate. A group's lr_factor scales x's steps only, so it is not part of u.
///
/// State: m, v and anchor, 12 bytes per element (the accumulator is the collective's).
/// Source: 0/1 Adam (arXiv 2202.06009), algorithm 1, with the updated m in its middle lines (the
/// printed old one would keep the gradient out when every step exchanges); eps outside the root.
template <class B>
class zero_one_rule {
 public:
  template <class T>
  using buffer = decltype(std::declval<B&>().template make_buffer<T>(0));
  static constexpr bool accumulates = true;
  static constexpr bool local_steps = true;
  static constexpr bool refresh_is_step = false;

  zero_one_rule(zero_one_options options, B backend)
      : options_(options), backend_(std::move(backend)) {
    validate_moments("zero_one", options.beta1, options.beta2, options.eps);
  }

  void prepare(const layout& axis) {
    const std::size_t n = axis.n_words() * word_elements;
    for (auto* b : {&m_, &v_, &anchor_}) *b = backend_.template make_buffer<float>(n);
  }
  [[nodiscard]] const zero_one_options& options() const { return options_; }

  /// Before each step: makes an exchange a local step while the learning rates sum to 0, since
  /// nothing has moved. Throws invalid_input for a negative lr, and for a first step that does not
  /// average gradients.
  template <class P, class G, class Worker>
  void check(step_plan& plan, float lr, std::uint64_t step, const tensor_entry<P, G>*,
             Worker&) const {
    if (lr < 0) {
      throw invalid_input(detail::message("zero_one: lr is ", lr, ", must not be negative"));
    }
    if (!started_ && !plan.average_gradient) {
      throw invalid_input(detail::message("zero_one: step ", step,
                                          " comes before any variance; "
                                          "the schedule's first step must average gradients"));
    }
    if (!(sum_lr_ + static_cast<double>(lr) > 0)) plan.exchange = false;
  }

  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tensor_entry<P, G>* tensors) const {
    return {tensors};
  }
  /// Which elements will have variance after `refresh`.
  template <class View, class Worker>
  void preview_live(const View& gradient, Worker& at, std::uint32_t* live) {
    at.backend().launch(
        at.axis().tiles().size(),
        detail::preview_live_kernel<View>{gradient, at.tiles(), v_.data(), live, constants()});
  }
  /// v from the mean gradient. One pass, 12 bytes per element. The first takes the anchor: the
  /// parameters from which the ranks start.
  template <class View, class Worker, class P, class G>
  void refresh(const View& gradient, Worker& at, const tensor_entry<P, G>* tensors, float,
               std::uint64_t) {
    if (!started_) {
      at.backend().launch(at.axis().tiles().size(),
                          detail::anchor_kernel<P, G>{at.tiles(), tensors, anchor_.data()});
    }
    at.backend().launch(
        at.axis().tiles().size(),
        detail::variance_kernel<View>{gradient, at.tiles(), v_.data(), constants()});
    started_ = true;
  }

  template <class View, class P, class G>
  [[nodiscard]] detail::zero_one_message<P, G> message(const View&,
                                                       const tensor_entry<P, G>* tensors,
                                                       float lr) const {
    return {m_.data(), tensors, constants(), lr};
  }
  /// Two passes, 40 bytes per element.
  template <class Worker, class P, class G>
  void local_step(Worker& at, const tensor_entry<P, G>* tensors, float lr) {
    at.accumulate(detail::zero_one_message<P, G>{m_.data(), tensors, constants(), lr});
    at.backend().launch(at.axis().tiles().size(),
                        detail::zero_one_local_kernel<P, G>{at.tiles(), tensors, at.live(),
                                                            m_.data(), v_.data(), constants(), lr});
    sum_lr_ += static_cast<double>(lr);
  }
  /// One pass, 20 bytes per element.
  template <class View, class Worker, class P, class G>
  void apply(const View& agreed, const View&, Worker& at, const tensor_entry<P, G>* tensors,
             float lr) {
    const double sum = sum_lr_ + static_cast<double>(lr);
    at.backend().launch(at.axis().tiles().size(),
                        detail::zero_one_sync_kernel<View, P, G>{
                            agreed, at.tiles(), tensors, m_.data(), anchor_.data(), v_.data(),
                            constants(), static_cast<float>(sum), static_cast<float>(1 / sum)});
    sum_lr_ = 0;
  }
  void freeze() {}

  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  [[nodiscard]] const float* anchor() const { return anchor_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + anchor_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(started_);
    a.scalar(sum_lr_);
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
    a.buffer(anchor_, backend_);
  }

 private:
  [[nodiscard]] moments_constants constants() const {
    return make_moments(options_.beta1, options_.beta2, options_.eps);
  }

  zero_one_options options_;
  B backend_;
  buffer<float> m_, v_, anchor_;
  double sum_lr_ = 0;  ///< since the last exchange
  bool started_ = false;
};

}  // namespace onebit
