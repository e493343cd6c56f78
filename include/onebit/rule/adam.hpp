// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/rule/adam_kernels.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/tiled.hpp>
#include <utility>

/// Adam's arithmetic: what is sent, and what is done with what was agreed.
namespace onebit::inline v0_1 {

/// Options of a step of Adam or 1-bit Adam.
struct adam_options {
  double beta1 = 0.9;    ///< of the average of gradients, m
  double beta2 = 0.999;  ///< of the average of their squares, v
  double eps = 1e-8;     ///< added to the root
  /// Divide m by 1 - beta1^t and v by 1 - beta2^t, as Adam does; after a freeze v's stays as it was
  /// at it, like v. false: the form of the 1-bit Adam paper and its authors' code.
  bool bias_correction = true;
  /// Clip gradients by their global norm, as torch's clip_grad_norm_ does before a step: exactly
  /// where the ranks average, else each rank its own (clip.hpp); 0: do not.
  double max_grad_norm = 0;
  /// Where the momentum came compressed, an element moves by at most so many learning rates in a
  /// step (decay aside); 0: by whatever comes out. Adam's own steps are seldom above 1, and at most
  /// (1 - beta1) / sqrt(1 - beta2), 3.2. An element whose gradients are much smaller than those
  /// that it shares a scale with is sent that scale, back and forth, and its small v makes of it
  /// steps that are thousands of times too large.
  double max_step = 2;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const adam_options& o) {
  validate_moments("adam_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm, o.max_step);
}

/// Adam, and 1-bit Adam once v is frozen. The rule only ever computes: what travels is the
/// collectives' business.
///
/// State: m and v, 8 bytes per element in the warm-up; after the freeze one denominator: 4 bytes.
/// Source: 1-bit Adam, algorithm 1; eps outside the root, decoupled decay, as the authors' code.
template <Backend B>
class adam_rule : public rule_defaults {
 public:
  using backend_type = B;
  using float_buffer = buffer_of<B, float>;
  static constexpr bool refreshes = true, takes_moments = true, message_lasts = true;

  adam_rule(adam_options options, B backend) : options_(options), backend_(std::move(backend)) {
    validate(options);
  }
  [[nodiscard]] B& backend() { return backend_; }

  void prepare(const layout& axis) {
    n_words_ = axis.n_words();
    m_ = make_floats();
    v_ = make_floats();
    variance_norm_ = backend_.template make_buffer<double>(1);
  }
  [[nodiscard]] const adam_options& options() const { return options_; }
  [[nodiscard]] bool frozen() const { return frozen_; }
  /// Moments from elsewhere, on the flat axis.
  void take(const float* m, const float* v) {
    backend_.copy_in(m_.data(), m, m_.size());
    backend_.copy_in(v_.data(), v, v_.size());
  }
  [[nodiscard]] double max_grad_norm() const { return options_.max_grad_norm; }
  static constexpr bool has_moments = true;
  [[nodiscard]] moments own_moments() const {
    return {options_.beta1, options_.beta2, options_.eps};
  }
  [[nodiscard]] moments_seen seen(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient};
  }

  /// What the dense phase averages.
  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tiled<B, P, G>& at) const {
    return {at.tensors, at.now};
  }
  /// The dense step: x, m and v from the agreed gradient. One pass, 28 bytes per element. After the
  /// freeze only v, 12 bytes.
  template <class View, class P, class G>
  void refresh(const View& gradient, const tiled<B, P, G>& at) {
    if (frozen_) return at.commit(frozen_variance(gradient, at));
    at.commit(detail::adam_dense_kernel<View, P, G>{gradient, at.tiles, at.tensors, at.numbers,
                                                    m_.data(), v_.data(), at.sums, at.now});
  }
  /// ||v||_1 after `refresh`. Waits for the backend.
  template <class At>
  [[nodiscard]] double variance_norm(const At& at) {
    return detail::sum_of_tiles(at, variance_norm_.data());
  }

  /// Freezes v: fills `live`, hands m over. Allocates nothing.
  template <class At>
  [[nodiscard]] handover<float_buffer> freeze(std::uint32_t* live, const At& at) {
    backend_.launch(at.n_tiles(),
                    detail::freeze_kernel{at.tiles, at.numbers, m_.data(), v_.data(), live});
    frozen_ = true;
    return {std::move(m_), nullptr, at.numbers};
  }
  /// Warms up anew, from the momentum that was agreed; what residuals hold is dropped.
  template <class View, class At>
  void thaw(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{agreed, at.tiles, at.live, m.data(),
                                                            v_.data(), at.numbers});
    m_ = std::move(m);
    frozen_ = false;
  }
  /// Hands over what was agreed, for an exchange that starts with v frozen.
  template <class View, class At>
  [[nodiscard]] handover<float_buffer> resume(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::flatten_kernel<View>{agreed, at.tiles, m.data()});
    return {std::move(m), nullptr, at.numbers};
  }
  /// Which elements will have variance after a refresh.
  template <class View, class At>
  void preview_live(const View& gradient, const At& at, std::uint32_t* live) {
    at.backend.launch(at.n_tiles(),
                      detail::waking_kernel<View>{frozen_variance(gradient, at), live});
  }
  /// What the compressed phase exchanges.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& agreed,
                                                     const tiled<B, P, G>& at) const {
    return {agreed, at.tensors, at.numbers, at.now};
  }
  /// The update from the newly agreed momentum.
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    const float most = bound_of(options_.max_step);
    at.commit(detail::adam_update_kernel<View, P, G>{heard, at.tiles, at.tensors, at.numbers,
                                                     {v_.data()}, at.now, most});
  }

  /// Flat-axis buffers: m (warm-up only); v, or after the freeze sqrt(v) + eps.
  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes(); }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    a.buffer(m_, backend_, frozen_ ? 0 : n_words_ * word_elements);
    a.buffer(v_, backend_, n_words_ * word_elements);
  }

 private:
  [[nodiscard]] float_buffer make_floats() {
    return backend_.template make_buffer<float>(n_words_ * word_elements);
  }
  template <class View, class At>
  [[nodiscard]] detail::frozen_variance_kernel<View> frozen_variance(const View& gradient,
                                                                     const At& at) {
    return {gradient, at.tiles, at.live, v_.data(), at.numbers, options_.bias_correction};
  }

  adam_options options_;
  B backend_;
  float_buffer m_, v_;
  buffer_of<B, double> variance_norm_;
  std::size_t n_words_ = 0;
  bool frozen_ = false;
};

static_assert(ResumingRule<adam_rule<detail::any_backend>> &&
              ThawingRule<adam_rule<detail::any_backend>> &&
              WakingRule<adam_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
