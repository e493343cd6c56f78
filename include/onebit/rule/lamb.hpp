// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/rule/lamb_kernels.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>
#include <vector>

/// LAMB's arithmetic, and 1-bit LAMB's: layer-wise learning rates that are known without norms of
/// gradients nobody has.
namespace onebit {

/// Throws invalid_input when an option is out of range.
inline void validate(const lamb_options& o) {
  validate_moments("lamb", o.beta1, o.beta2, o.eps);
  const auto ordered = [](double low, double high) { return low > 0 && low <= high; };
  if (!ordered(o.min_coeff, o.max_coeff) || !std::isfinite(o.max_coeff)) {
    throw invalid_input(detail::message("lamb: min_coeff ", o.min_coeff, " and max_coeff ",
                                        o.max_coeff, "; needs 0 < min <= max < inf"));
  }
  if (!ordered(o.factor_min, o.factor_max) || !std::isfinite(o.factor_max)) {
    throw invalid_input(detail::message("lamb: factor_min ", o.factor_min, " and factor_max ",
                                        o.factor_max, "; needs 0 < min <= max < inf"));
  }
  if (!(o.coeff_beta >= 0 && o.coeff_beta < 1)) {
    throw invalid_input(
        detail::message("lamb: coeff_beta is ", o.coeff_beta, ", must be in [0, 1)"));
  }
  if (!(o.factor_threshold > 0 && o.factor_threshold < 1)) {
    throw invalid_input(
        detail::message("lamb: factor_threshold is ", o.factor_threshold, ", must be in (0, 1)"));
  }
}

/// LAMB, and 1-bit LAMB once v is frozen.
///
/// Warm-up: u = m / (sqrt(v) + eps) + wd x; c = ||x|| / ||u|| per layer, clipped; x -= lr c u.
/// Then: c = c_avg f, where c_avg is the average of c over the warm-up and f follows how far a
/// second variance, of gradients rebuilt from the agreed momentum, has moved from the frozen one.
/// Empty tensors and layers of zeros are ordinary input: c = 1 where a norm is 0, f = 1 where no
/// element has variance.
///
/// State: m and v, 8 bytes per element in the warm-up; afterwards denominators and the second
/// variance, 8 bytes; 28 bytes per tensor.
/// Source: 1-bit LAMB (arXiv 2104.06069), algorithms 1 and 2; eps outside the root as in the
/// authors' code.
template <class B>
class lamb_rule {
 public:
  template <class T>
  using buffer = decltype(std::declval<B&>().template make_buffer<T>(0));
  /// The carried buffer holds residuals only, and every step communicates.
  static constexpr bool accumulates = false;
  static constexpr bool local_steps = false;

  lamb_rule(lamb_options options, B backend) : options_(options), backend_(std::move(backend)) {
    validate(options);
  }

  void prepare(const layout& axis) {
    const std::size_t n = axis.n_words() * word_elements;
    const std::size_t n_tensors = axis.tensor_tiles().size();
    m_ = backend_.template make_buffer<float>(n);
    v_ = backend_.template make_buffer<float>(n);
    norm_ = backend_.template make_buffer<double>(1);
    layers_ = backend_.template make_buffer<lamb_layer>(n_tensors);
    const std::vector<lamb_layer> fresh(n_tensors);
    backend_.copy_in(layers_.data(), fresh.data(), n_tensors);
    factors_ = backend_.template make_buffer<float>(n_tensors);
  }
  [[nodiscard]] const lamb_options& options() const { return options_; }

  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const tensor_entry<P, G>* tensors,
                                                const step_scalars* now) const {
    return {tensors, now};
  }

  /// The dense step, from the agreed gradient. Two passes, 44 bytes per element.
  template <class View, class Worker, class P, class G>
  void refresh(const View& gradient, Worker& at, const tensor_entry<P, G>* tensors,
               const step_scalars* now) {
    prepare_sums(at);
    const moments_constants c = constants();
    const std::size_t n_tiles = at.axis().tiles().size();
    launch_commit(
        at.backend(), now, n_tiles,
        detail::lamb_moments_kernel<View, P, G>{gradient, at.tiles(), tensors, m_.data(), v_.data(),
                                                at.sums(), sums_a_.data(), sums_b_.data(), c});
    launch_commit(at.backend(), now, layers_.size(),
                  detail::lamb_coefficient_kernel{at.tensor_tiles(), sums_a_.data(), sums_b_.data(),
                                                  layers_.data(), options_});
    launch_commit(at.backend(), now, n_tiles,
                  detail::lamb_dense_update_kernel<P, G>{at.tiles(), tensors, m_.data(), v_.data(),
                                                         layers_.data(), c, now});
  }
  /// ||v||_1 after `refresh`. Waits for the backend.
  template <class Worker>
  [[nodiscard]] double variance_norm(Worker& at) {
    return detail::sum_of_tiles(at, norm_.data());
  }

  /// Freezes v: fills `live`, hands a copy of m over, scaled so that all layers have one RMS (their
  /// common scale then fits all); keeps m for the first compressed step.
  template <class Worker>
  [[nodiscard]] handover<buffer<float>> freeze(std::uint32_t* live, Worker& at, std::uint64_t) {
    const std::size_t n_tiles = at.axis().tiles().size();
    at.backend().launch(n_tiles, detail::square_sum_kernel{at.tiles(), m_.data(), sums_a_.data()});
    at.backend().launch(1, detail::lamb_scaling_kernel{
                               at.tensor_tiles(), at.tiles(), sums_a_.data(), layers_.size(),
                               layers_.data(), factors_.data(), options_.momentum_scaling});
    fresh_ = backend_.template make_buffer<float>(v_.size());
    auto copy = backend_.template make_buffer<float>(m_.size());
    const std::size_t n_words = m_.size() / word_elements;
    const copy_kernel keep_v{v_.data(), fresh_.data(), v_.size()};
    const copy_kernel keep_m{m_.data(), copy.data(), m_.size()};
    backend_.launch(keep_v.launches(), keep_v);
    backend_.launch(keep_m.launches(), keep_m);
    backend_.launch(n_words, detail::freeze_kernel{v_.data(), live,
                                                   static_cast<float>(options_.eps), 1.0F, 1.0F});
    for (auto* s : {&sums_a_, &sums_b_}) *s = buffer<float>{};
    return {std::move(copy), factors_.data(), static_cast<float>(options_.beta1)};
  }

  /// base + k (beta1 m + (1 - beta1) g), k m as last agreed.
  template <class View, class P, class G>
  [[nodiscard]] detail::lamb_message<View, P, G> message(const View& agreed,
                                                         const tensor_entry<P, G>* tensors,
                                                         const step_scalars* now) const {
    return {agreed, tensors, layers_.data(), now, constants()};
  }

  /// The update: two passes over the agreed message, 28 bytes per element.
  template <class View, class Worker, class P, class G>
  void apply(const View& agreed, const View& before, Worker& at, const tensor_entry<P, G>* tensors,
             const step_scalars* now) {
    prepare_sums(at);
    const moments_constants c = constants();
    const std::size_t n_tiles = at.axis().tiles().size();
    launch_commit(at.backend(), now, n_tiles,
                  detail::lamb_fresh_kernel<View, P, G>{
                      agreed, before, m_.size() > 0 ? m_.data() : nullptr, at.live(), at.tiles(),
                      tensors, layers_.data(), v_.data(), fresh_.data(), sums_a_.data(),
                      sums_b_.data(), at.sums(), c});
    launch_commit(
        at.backend(), now, layers_.size(),
        detail::lamb_factor_kernel<P, G>{at.tensor_tiles(), at.tiles(), tensors, sums_a_.data(),
                                         sums_b_.data(), at.sums(), layers_.data(), options_});
    launch_commit(at.backend(), now, n_tiles,
                  detail::lamb_update_kernel<View, P, G>{agreed, at.tiles(), tensors,
                                                         layers_.data(), v_.data(), now});
  }

  /// Whether the host must know the outcome of the next step: the first compressed one is the last
  /// that reads m.
  [[nodiscard]] bool must_know() const { return fresh_.size() > 0 && m_.size() > 0; }
  /// Called after a step that was not skipped.
  void conclude(const step_plan&, float) {
    if (must_know()) m_ = buffer<float>{};
  }

  /// Flat-axis buffers: m (until the first compressed step); v, or after the freeze sqrt(v) + eps;
  /// the second variance (after the freeze).
  [[nodiscard]] const float* momentum() const { return m_.data(); }
  [[nodiscard]] const float* variance() const { return v_.data(); }
  [[nodiscard]] const float* fresh_variance() const { return fresh_.data(); }
  /// By tensor: coefficient of the last step, its average, last factor, momentum scaling.
  [[nodiscard]] const lamb_layer* layers() const { return layers_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + fresh_.bytes() + layers_.bytes() + factors_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
    a.buffer(fresh_, backend_);
    a.buffer(layers_, backend_);
    a.buffer(factors_, backend_);
    if constexpr (Archive::reading)
      for (auto* s : {&sums_a_, &sums_b_}) *s = buffer<float>{};
  }

 private:
  [[nodiscard]] moments_constants constants() const {
    return make_moments(options_.beta1, options_.beta2, options_.eps);
  }
  template <class Worker>
  void prepare_sums(Worker& at) {
    const std::size_t n = at.axis().tiles().size();
    if (sums_a_.size() == n) return;
    sums_a_ = backend_.template make_buffer<float>(n);
    sums_b_ = backend_.template make_buffer<float>(n);
  }

  lamb_options options_;
  B backend_;
  buffer<float> m_, v_, fresh_;
  buffer<float> sums_a_, sums_b_;  ///< by tile of the collective in use
  buffer<double> norm_;
  buffer<lamb_layer> layers_;
  buffer<float> factors_;  ///< by tensor: momentum scaling k
};

}  // namespace onebit
