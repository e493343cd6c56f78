// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/zero_one_kernels.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <type_traits>
#include <utility>

/// 0/1 Adam's arithmetic: local Adam steps from an anchor, and what their sum becomes at an
/// exchange.
namespace onebit::inline v0_1 {

/// Options of a step of 0/1 Adam.
struct zero_one_options {
  double beta1 = 0.9;    ///< of the average of gradients, m
  double beta2 = 0.999;  ///< of the average of their squares, v
  double eps = 1e-8;     ///< added to the root
  /// Divide m by 1 - beta1^t and v by 1 - beta2^n, n the gradients that it has seen: every step is
  /// Adam's, from the first. false: the paper's form, which needs a small and warmed up rate.
  bool bias_correction = true;
  /// As adam_options::max_grad_norm.
  double max_grad_norm = 0;
  /// As adam_options::max_step; at an exchange, of the learning rates summed since the last.
  double max_step = 2;
};

/// 0/1 Adam. Between exchanges each rank takes Adam steps of its own; the carried buffer gathers
/// u = residual + sum of lr c m, c the correction of m's bias. An exchange agrees on u, and then
/// x = anchor - u / (sqrt(v c_v) + eps), m = u / (c sum of lr), on all ranks the same bits, since
/// the anchor is the parameters of the last exchange, not what local steps made of them. Decoupled
/// weight decay acts on the anchor with the summed learning rate. A group's lr_factor scales x's
/// steps only, so it is not part of u.
///
/// State: m, v and anchor, 12 bytes per element (the accumulator is the collective's). Source: 0/1
/// Adam (arXiv 2202.06009), algorithm 1, with the updated m in its middle lines (the printed old
/// one would keep the gradient out when every step exchanges); eps outside the root.
template <Backend B>
class zero_one_rule : public rule_defaults {
 public:
  using backend_type = B;
  static constexpr bool accumulates = true;
  static constexpr bool local_steps = true;
  static constexpr bool takes_moments = true;

  zero_one_rule(zero_one_options options, B backend)
      : options_(options), backend_(std::move(backend)) {
    validate_moments("zero_one_options", own_moments(), options.max_grad_norm, options.max_step);
  }
  [[nodiscard]] B& backend() { return backend_; }

  void prepare(const layout& axis) {
    n_words_ = axis.n_words();
    for (auto* flat : {&m_, &v_, &anchor_}) {
      *flat = backend_.template make_buffer<float>(n_words_ * word_elements);
    }
    lr_sum_ = backend_.template make_buffer<double>(axis.tensor_tiles().size());
  }
  [[nodiscard]] const zero_one_options& options() const { return options_; }
  /// Moments from elsewhere, on the flat axis.
  void take(const float* m, const float* v) {
    backend_.copy_in(m_.data(), m, m_.size());
    backend_.copy_in(v_.data(), v, v_.size());
  }
  [[nodiscard]] double max_grad_norm() const { return options_.max_grad_norm; }
  /// m sees every step's gradient, v those that are averaged.
  [[nodiscard]] moments_seen seen(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient};
  }
  static constexpr bool has_moments = true;
  [[nodiscard]] moments own_moments() const {
    return {options_.beta1, options_.beta2, options_.eps};
  }

  /// Makes an exchange a local step while the learning rates sum to 0, since nothing has moved.
  /// Throws invalid_input for a first step that does not average gradients.
  template <class At>
  void open(step_plan& plan, float lr, std::uint64_t step, const At&) {
    if (!started_ && !plan.average_gradient) {
      throw invalid_input(detail::message("zero_one_adam: step ", step,
                                          " comes before any variance; "
                                          "the schedule's first step must average gradients"));
    }
    if (!(moved_ || lr > 0)) plan.exchange = false;
  }
  /// The first step is taken again when it was skipped.
  [[nodiscard]] bool must_know() const { return !started_; }

  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tiled<B, P, G>& at) const {
    return {at.tensors, at.now};
  }
  /// Which elements will have variance after `refresh`.
  template <class View, class At>
  void preview_live(const View& gradient, const At& at, std::uint32_t* live) {
    at.backend.launch(at.n_tiles(),
                      preview_live_kernel<View>{gradient, at.tiles, v_.data(), live, at.numbers});
  }
  /// After steps in which nothing travelled: the ranks start from the parameters that there are.
  template <class View, class P, class G>
  void resume(const View&, const tiled<B, P, G>& at) {
    at.backend.launch(at.n_tiles(),
                      detail::anchor_kernel<P, G>{at.tiles, at.tensors, anchor_.data()});
    at.backend.launch(lr_sum_.size(),
                      sum_lr_kernel<P, G>{lr_sum_.data(), at.tensors, at.now, true});
    moved_ = false;
  }
  /// v from the mean gradient. One pass, 12 bytes per element. The first takes the anchor: the
  /// parameters from which the ranks start.
  template <class View, class P, class G>
  void refresh(const View& gradient, const tiled<B, P, G>& at) {
    if (!started_) {
      at.commit(detail::anchor_kernel<P, G>{at.tiles, at.tensors, anchor_.data()});
    }
    at.commit(variance_kernel<View>{gradient, at.tiles, v_.data(), at.numbers,
                                    started_ && options_.bias_correction});
  }
  /// The whole step, where nothing travels: Adam's, from the mean gradient.
  template <class View, class P, class G>
  void dense_step(const View& gradient, const tiled<B, P, G>& at) {
    refresh(gradient, at);
    step(gradient, at, bound_of(0));
  }
  /// What a step adds to the sum that is exchanged.
  template <class View, class P, class G>
  [[nodiscard]] detail::zero_one_message<P, G> message(const View&,
                                                       const tiled<B, P, G>& at) const {
    return {m_.data(), at.tensors, at.numbers, at.now};
  }
  /// x and m from the local gradient. One pass, 24 bytes per element. The learning rate counts on
  /// every rank, also on one that leaves its gradient out in a step of which no other rank hears.
  template <class P, class G>
  void local_step(const step_plan& plan, const tiled<B, P, G>& at) {
    step(own_gradient<P, G>{at.tensors, at.now}, at, bound_of(options_.max_step));
    const sum_lr_kernel<P, G> add{lr_sum_.data(), at.tensors, at.now, false};
    if (plan.local()) {
      at.backend.launch(lr_sum_.size(), add);
    } else {
      at.commit(lr_sum_.size(), add);
    }
  }
  /// One pass, 20 bytes per element.
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    at.commit(detail::zero_one_sync_kernel<View, P, G>{
        heard, at.tiles, at.tensors, at.numbers, m_.data(), anchor_.data(), v_.data(),
        lr_sum_.data(), at.now, bound_of(options_.max_step)});
    at.commit(lr_sum_.size(), sum_lr_kernel<P, G>{lr_sum_.data(), at.tensors, at.now, true});
  }
  void done(const step_plan& plan, float lr) {
    started_ = true;
    moved_ = !plan.exchange && (moved_ || lr > 0);
  }

  [[nodiscard]] bool moved() const { return moved_; }  // in local steps since the last exchange
  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  [[nodiscard]] const float* anchor() const { return anchor_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + anchor_.bytes() + lr_sum_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(started_);
    a.scalar(moved_);
    a.buffer(lr_sum_, backend_);
    const std::size_t n = n_words_ * word_elements;
    a.buffer(m_, backend_, n);
    a.buffer(v_, backend_, n);
    a.buffer(anchor_, backend_, n);
  }

 private:
  template <class Field, class P, class G>
  void step(const Field& gradient, const tiled<B, P, G>& at, float most) {
    at.commit(detail::zero_one_step_kernel<Field, P, G>{gradient, at.tiles, at.tensors, at.numbers,
                                                        at.live, m_.data(), v_.data(), at.now,
                                                        most});
  }
  zero_one_options options_;
  B backend_;
  buffer_of<B, float> m_, v_, anchor_;
  std::size_t n_words_ = 0;
  buffer_of<B, double> lr_sum_;  ///< by tensor: of the steps since the last exchange
  bool moved_ = false;           ///< that sum is not 0
  bool started_ = false;
};

static_assert(ResumingRule<zero_one_rule<detail::any_backend>> &&
              LocalRule<zero_one_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
