// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/following.hpp>
#include <onebit/rule/lamb_kernels.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>
#include <vector>

/// LAMB's arithmetic, and 1-bit LAMB's: layer-wise learning rates that are known without norms of
/// gradients nobody has.
namespace onebit::inline v0_1 {

/// Options of a step of LAMB or 1-bit LAMB.
struct lamb_options {
  double beta1 = 0.9;             ///< of the average of gradients, m
  double beta2 = 0.999;           ///< of the average of their squares, v
  double eps = 1e-8;              ///< added to the root
  double min_coeff = 0.01;        ///< clips ||x|| / ||u||; the BERT runs use 0.01 and 0.3
  double max_coeff = 10;          ///< the same, from above
  double coeff_beta = 0.9;        ///< of the coefficient's average over the warm-up
  double factor_min = 0.5;        ///< clips the factor of the compressed phase
  double factor_max = 4;          ///< the same, from above
  double factor_threshold = 0.1;  ///< the factor's largest relative change per step
  /// Bring all layers' momentum to one RMS before compression (of a layer that had no gradients for
  /// a while, what its v says).
  bool momentum_scaling = true;
  /// As adam_options::bias_correction. false: the form of the 1-bit LAMB paper.
  bool bias_correction = true;
  /// As adam_options::max_grad_norm.
  double max_grad_norm = 0;
  /// As adam_options::max_step, of m / (sqrt(v) + eps), where v follows.
  double max_step = 2;
  /// As adam_options::keeps_squares. false: the paper's 1-bit LAMB, whose coefficients are those of
  /// the warm-up times a factor.
  bool keeps_squares = true;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const lamb_options& o) {
  validate_moments("lamb_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm, o.max_step);
  const auto ordered = [](const char* of, double low, const char* and_of, double high) {
    if (low >= detail::least_float && low <= high && high <= detail::most_float) return;
    throw invalid_input(detail::message("lamb_options: ", of, " is ", low, " and ", and_of, " ",
                                        high, "; needs ", detail::least_float,
                                        " <= min <= max <= ", detail::most_float));
  };
  ordered("min_coeff", o.min_coeff, "max_coeff", o.max_coeff);
  ordered("factor_min", o.factor_min, "factor_max", o.factor_max);
  if (!(o.coeff_beta >= 0 && o.coeff_beta < 1)) {
    throw invalid_input(
        detail::message("lamb_options: coeff_beta is ", o.coeff_beta, ", must be in [0, 1)"));
  }
  if (!(o.factor_threshold > 0 && o.factor_threshold < 1)) {
    throw invalid_input(detail::message("lamb_options: factor_threshold is ", o.factor_threshold,
                                        ", must be in (0, 1)"));
  }
}

/// LAMB, and 1-bit LAMB once v is frozen.
///
/// Dense: u = m / (sqrt(v) + eps) + wd x, m and v corrected for their bias; c = ||x|| / ||u|| per
/// layer, clipped; x -= lr c u.
/// Compressed, v following: the same, ||u||^2 = ||m / (sqrt(v) + eps)||^2 + ||wd x||^2, the first
/// from a sketch that the ranks average when they refresh v (lamb_kernels.hpp), times what the
/// agreed direction has grown by since; x of this step. No step is longer than 4 lr ||x||.
/// Compressed, in the paper's form: c = c_avg f, where c_avg is the average of c over the warm-up
/// and f follows how far a second variance, of gradients rebuilt from the agreed momentum, has
/// moved from the frozen one. Empty tensors and layers of zeros are ordinary input: c = 1 where a
/// norm is 0, f = 1 where no element has variance.
///
/// State: m and v, 8 bytes per element in dense steps; then as following_rule and 64 floats a tile,
/// or, in the paper's form, 1 / (sqrt(v) + eps) and the second variance, 8 bytes; 60 bytes per
/// tensor.
/// Source: 1-bit LAMB (arXiv 2104.06069), algorithms 1 and 2; eps outside the root as in the
/// authors' code. The sketch is this library's.
template <Backend B>
class lamb_rule : public following_rule<B, lamb_options> {
  using base = following_rule<B, lamb_options>;
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;
  using base::frozen_, base::kept_;

 public:
  using typename base::float_buffer;

  lamb_rule(lamb_options options, B backend) : base(options, std::move(backend)) {
    validate(options);
    if (!options.keeps_squares) options_.max_step = 0;  // the paper's form sends momenta
  }
  void prepare(const layout& axis) {
    const std::size_t n_tensors = axis.tensor_tiles().size();
    base::prepare(axis);
    layers_ = to_buffer(backend_, std::vector<lamb_layer>(n_tensors));
    factors_ = backend_.template make_buffer<float>(n_tensors);
  }
  /// Of v's, too, after the freeze: in the paper's form it is that of the second variance then.
  [[nodiscard]] moments_updated updated(const step_plan&) const {
    return {options_.bias_correction, true, true};
  }
  /// The dense step, from the mean gradient. Two passes, 44 bytes per element.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    prepare_sums(at.n_tiles());
    at.launch(detail::lamb_moments_kernel<View, P, G>{gradient, at.tiles, at.tensors, at.scalars,
                                                      m_.data(), v_.data(), at.sums, sums_a_.data(),
                                                      sums_b_.data()});
    at.launch(layers_.size(),
              detail::lamb_coefficient_kernel<P, G>{
                  at.tensor_tiles, at.tensors, sums_a_.data(), sums_b_.data(), layers_.data(),
                  options_.min_coeff, options_.max_coeff, options_.coeff_beta});
    at.launch(detail::lamb_dense_update_kernel<P, G>{at.tiles, at.tensors, at.scalars, m_.data(),
                                                     v_.data(), layers_.data(), at.now});
  }
  /// See following_rule: 64 floats a tile more.
  [[nodiscard]] static std::size_t n_beside(const layout& axis) {
    return base::n_beside(axis) + detail::sketch_floats * axis.tiles().size();
  }

  /// Freezes v: fills `active`, hands m over. In the paper's form a copy of m, scaled so that all
  /// layers have one RMS (their common scale then fits all), and keeps m for the first compressed
  /// step.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    if (options_.keeps_squares) {
      auto kept = make_kept();
      sketch_ = std::move(kept.sketch);
      kept_ = std::move(kept);
      restart_sketch();
      backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(),
                                                          v_.data(), active, true});
      for (auto* s : {&sums_a_, &sums_b_}) *s = {};
      frozen_ = true;
      return {std::move(m_), nullptr, at.scalars};
    }
    auto copy = make_floats(), fresh = make_floats();
    auto sum_m = backend_.template make_buffer<float>(at.n_tiles());
    auto sum_v = backend_.template make_buffer<float>(at.n_tiles());
    at.backend.launch(at.n_tiles(), detail::lamb_size_kernel{at.tiles, m_.data(), v_.data(),
                                                             sum_m.data(), sum_v.data()});
    at.backend.launch(1, detail::lamb_scaling_kernel{at.tensor_tiles, at.tiles, sum_m.data(),
                                                     sum_v.data(), layers_.size(), layers_.data(),
                                                     factors_.data(), options_.momentum_scaling});
    const copy_kernel keep_m{m_.data(), copy.data(), m_.size()};
    backend_.launch(keep_m.launches(), keep_m);
    const copy_kernel keep_v{v_.data(), fresh.data(), v_.size()};
    backend_.launch(keep_v.launches(), keep_v);
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, copy.data(),
                                                        v_.data(), active, false});
    fresh_ = std::move(fresh);
    for (auto* s : {&sums_a_, &sums_b_}) *s = {};  // the compressed axis may have other tiles
    frozen_ = true;
    return {std::move(copy), factors_.data(), at.scalars};
  }

  /// Back to dense steps, from the momentum that was agreed; what residuals hold is dropped.
  /// Coefficients go on from their averages.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    auto m = make_floats();
    using unscaled = detail::lamb_unscaled_view<View>;
    backend_.launch(at.n_tiles(), detail::thaw_kernel<unscaled>{{previous, layers_.data()},
                                                                at.tiles,
                                                                at.active,
                                                                m.data(),
                                                                v_.data(),
                                                                at.scalars,
                                                                base::directions()});
    m_ = std::move(m);
    fresh_ = {};
    base::forget_kept();
    sketch_ = {};
    for (auto* s : {&sums_a_, &sums_b_}) *s = {};
    frozen_ = false;
  }

  /// Hands over what was agreed, for an exchange that starts with v frozen; keeps it for the first
  /// compressed step, as `freeze` does.
  template <class View, class At>
  [[nodiscard]] initial_momentum<float_buffer> resume(const View& previous, const At& at) {
    using unscaled = detail::lamb_unscaled_view<View>;
    // until a compressed step has been made nothing was agreed, and m is still here
    const bool has_m = m_.size() > 0 || options_.keeps_squares;
    auto m = backend_.template make_buffer<float>(has_m ? 0 : n_floats());
    auto copy = make_floats();
    for (auto* flat : {&m, &copy}) {
      if (flat->size() == 0) continue;
      backend_.launch(at.n_tiles(), detail::flatten_kernel<unscaled>{
                                        {previous, layers_.data()}, at.tiles, flat->data()});
    }
    if (!has_m) m_ = std::move(m);
    return {std::move(copy), options_.keeps_squares ? nullptr : factors_.data(), at.scalars};
  }
  using base::squares;
  /// As following_rule's, and the sketch.
  template <class P, class G>
  [[nodiscard]] detail::squares_message squares(const step_context<B, P, G>& at) {
    const copy_kernel copy{sketch_.data(), kept_.sums.data() + base::n_beside(at.axis),
                           sketch_.size()};
    backend_.launch(copy.launches(), copy);
    return base::squares(at);
  }
  /// As following_rule's, and the norms of directions.
  template <class SquaresView, class P, class G>
  void refresh_variance(const SquaresView& mean, const step_context<B, P, G>& its,
                        const step_context<B, P, G>& at, std::uint32_t* active) {
    base::refresh_variance(mean, its, at, active);
    const float* const mean_sketch = kept_.sums.data() + base::n_beside(at.axis);
    at.launch(
        detail::sketch_squares_kernel{mean_sketch, detail::sketch_floats / word_elements, at.sums});
    at.launch(layers_.size(),
              detail::sketched_direction_kernel{at.tensor_tiles, at.scalars, at.sums, base::ratio(),
                                                layers_.data()});
  }
  /// Memory for what is kept: zeros.
  struct kept_squares : base::kept_squares {
    float_buffer sketch;
  };
  [[nodiscard]] kept_squares make_kept() {
    auto sketch = backend_.template make_buffer<float>(n_sketch());
    return {base::make_kept(), std::move(sketch)};
  }
  /// As following_rule's: the sketch begins anew, since its tiles are those of other ranks.
  void take_kept(kept_squares&& mean) noexcept {
    if (kept_.squares.size() > 0) sketch_ = std::move(mean.sketch);
    base::take_kept(std::move(mean));
    restart_sketch();
  }
  /// base + k (beta1 m + (1 - beta1) g), k m as last agreed; of directions where v follows.
  template <class View, class P, class G>
  [[nodiscard]] detail::lamb_message<View, P, G> message(const View& previous,
                                                         const step_context<B, P, G>& at) const {
    return {previous, at.tensors, at.scalars, layers_.data(), at.now, base::units()};
  }
  /// The update: two passes, 28 bytes per element; in the paper's form over the agreed message, 28.
  template <class View, class P, class G, class Last = launch_tiles>
  void compressed_update(const View& latest, const View& previous, const step_context<B, P, G>& at,
                         const Last& last = {}) {
    if (options_.keeps_squares) {
      at.launch(detail::parameter_norm_kernel<P, G>{at.tiles, at.tensors, at.sums});
      at.launch(layers_.size(), detail::followed_coefficient_kernel<P, G>{
                                    at.tensor_tiles, at.tensors, at.scalars, at.sums,
                                    layers_.data(), options_.min_coeff, options_.max_coeff});
    } else {
      prepare_sums(at.n_tiles());
      const float* const first = m_.size() > 0 ? m_.data() : nullptr;
      at.launch(detail::lamb_fresh_kernel<View, P, G>{latest,
                                                      previous,
                                                      first,
                                                      at.active,
                                                      at.tiles,
                                                      at.tensors,
                                                      at.scalars,
                                                      layers_.data(),
                                                      {v_.data()},
                                                      fresh_.data(),
                                                      sums_a_.data(),
                                                      sums_b_.data(),
                                                      at.sums});
      at.launch(layers_.size(), detail::lamb_factor_kernel<P, G>{
                                    at.tensor_tiles, at.tensors, sums_a_.data(), sums_b_.data(),
                                    at.sums, layers_.data(), options_.factor_min,
                                    options_.factor_max, options_.factor_threshold});
    }
    last(at, detail::lamb_update_kernel<View, P, G>{
                 latest, at.tiles, at.tensors, at.scalars, layers_.data(), at.active, v_.data(),
                 kept_.squares.data(), sketch_.data(), at.sums, at.now});
    if (options_.keeps_squares) {
      at.launch(layers_.size(),
                detail::direction_growth_kernel{at.tensor_tiles, at.sums, layers_.data()});
    }
  }

  /// Whether the host must know the outcome of the next step: the first compressed one is the last
  /// that reads m.
  [[nodiscard]] bool needs_outcome() const { return frozen_ && m_.size() > 0; }
  void done(const step_plan& plan, float) {
    if (plan.exchange && needs_outcome()) m_ = {};
  }

  /// The second variance, after the freeze.
  [[nodiscard]] const float* fresh_variance() const { return fresh_.data(); }
  /// By tensor: coefficient of the last step, its average, last factor, momentum scaling.
  [[nodiscard]] const lamb_layer* layers() const { return layers_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + fresh_.bytes() + layers_.bytes() + factors_.bytes() +
           sketch_.bytes() + base::kept_bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    const std::size_t n = n_floats();
    bool has_m = m_.size() > 0;
    a.scalar(frozen_);
    base::archive_form(a, frozen_);
    a.local(has_m);
    a.buffer(m_, backend_, has_m || !frozen_ ? n : 0);
    a.buffer(v_, backend_, n);
    a.buffer(fresh_, backend_, frozen_ && !options_.keeps_squares ? n : 0);
    a.buffer(layers_, backend_);
    a.buffer(factors_, backend_);
    if constexpr (Archive::reading) {
      for (auto* s : {&sums_a_, &sums_b_}) a.back_up(*s);
    }
  }

  /// What is not the same on all ranks: the sketch, too.
  template <class Archive>
  void archive_squares(Archive& a) {
    base::archive_squares(a);
    a.buffer(sketch_, backend_, frozen_ && options_.keeps_squares ? n_sketch() : 0);
  }

 private:
  [[nodiscard]] std::size_t n_sketch() const { return detail::sketch_floats * kept_.n_tiles; }
  void restart_sketch() noexcept {
    backend_.launch(layers_.size(), detail::restart_sketch_kernel{layers_.data()});
  }
  /// Memory for sums by tile, of an axis with so many.
  void prepare_sums(std::size_t n_tiles) {
    if (sums_b_.size() == n_tiles) return;
    sums_a_ = backend_.template make_buffer<float>(n_tiles);
    sums_b_ = backend_.template make_buffer<float>(n_tiles);  // last: it is what is asked
  }
  float_buffer fresh_;
  float_buffer sketch_;           ///< of this rank's directions, 64 floats a tile
  float_buffer sums_a_, sums_b_;  ///< by tile of the axis in use
  buffer_of<B, lamb_layer> layers_;
  float_buffer factors_;  ///< by tensor: momentum scaling k
};

static_assert(ResumingRule<lamb_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
