// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/clipping.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/own_variance.hpp>
#include <onebit/rule/refreshing.hpp>
#include <type_traits>
#include <utility>
#include <vector>

/// The rule of LAMB and 1-bit LAMB: Adam's directions, with a learning rate per layer. Squares are
/// summed in float within a tile, in double over tiles; the norm is rounded to float.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// State of LAMB for one layer: a tensor.
struct lamb_layer {
  double sketch_bias = 1;  ///< 1 minus the sum of the weights in the sketch of directions
  float coefficient = 1;   ///< factor of the learning rate, in the step in progress
  float direction = 0;     ///< ||m / (sqrt(v) + eps)||, of the last refresh; 0: no refresh yet
  float size = 0;          ///< norm of the mean direction in the first step after a refresh, or 0
  float growth = 1;        ///< factor of `direction`: growth of the mean direction since then
};

ONEBIT_HD float norm_of(double sum_of_squares) { return static_cast<float>(sqrt(sum_of_squares)); }
ONEBIT_HD double clamp_to(double x, double low, double high) {
  if (x > high) x = high;
  return x < low ? low : x;
}

/// Returns u = m c / (sqrt(v c_v) + eps) + wd x.
template <class L>
ONEBIT_HD typename L::value lamb_direction(const typename L::value& m, float correction,
                                           const typename L::value& denominator,
                                           const typename L::value& x, float weight_decay) {
  const auto u = L::div(L::mul(m, L::set(correction)), denominator);
  return weight_decay == 0 ? u : L::fma(L::set(weight_decay), x, u);
}

/// Updates m and v from the mean gradient; sums ||x||^2 and ||u||^2, by tile.
template <class View, class P, class G>
struct lamb_moments_kernel {
  View gradient;
  step_tables<P, G> tables;
  float *m, *v, *sum_x, *sum_u;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const tile t = tables.tiles[i];
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const auto g_at = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const float decay = tensor.weight_decay;
    const tensor_scalars moments = tables.scalars[t.tensor];
    auto xs = word_lanes::set(0.0F), us = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* m_word = m + (t.word + k) * 32;
      float* v_word = v + (t.word + k) * 32;
      const auto g = g_at(k);
      const auto m_new = moments.c.template next_momentum<L>(L::load(m_word), g);
      const auto v_new = moments.c.template next_variance<L>(L::load(v_word), g);
      const auto x = params.load(k);
      L::store(m_word, m_new);
      L::store(v_word, v_new);
      const auto d = moments.c.template denominator<L>(v_new, moments.v_correction);
      const auto u = lamb_direction<L>(m_new, moments.m_correction, d, x, decay);
      add_squares<L>(xs, x);
      add_squares<L>(us, u);
    }
    L::store_scalar(sum_x + i, word_lanes::fold(xs));
    L::store_scalar(sum_u + i, word_lanes::fold(us));
  }
};

/// Computes a layer's coefficient, ||x|| / ||u||, clipped; 1 if a norm is 0, or if ||u|| is
/// infinite, since decay meets an infinite parameter. A layer that rests keeps the old one.
template <class P, class G>
struct lamb_coefficient_kernel {
  static constexpr bool serial = true;
  step_tables<P, G> tables;
  const float *sum_x, *sum_u;
  lamb_layer* layers;
  double least, most;  ///< bounds of the coefficient

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tables.tensors[i].rests) return;
    const tile_range r = tables.tensor_tiles[i];
    const float x = norm_of(L::sum(sum_x + r.begin, r.end - r.begin)),
                u = norm_of(L::sum(sum_u + r.begin, r.end - r.begin));
    const bool is_ratio = x > 0 && u > 0 && u <= largest_float;
    const double c = is_ratio ? clamp_to(static_cast<double>(x / u), least, most) : 1;
    L::store_scalar(&layers[i].coefficient, static_cast<float>(c));
  }
};

template <class P, class G>
struct lamb_dense_update_kernel {
  step_tables<P, G> tables;
  const float *m, *v;
  const lamb_layer* layers;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tables.tiles[i];
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t, tables.now);
    const float rate = tensor.rate(tables.now) * layers[t.tensor].coefficient;
    const float decay = tensor.weight_decay;
    const tensor_scalars moments = tables.scalars[t.tensor];
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto m_k = L::load(m + (t.word + k) * 32);
      const auto d =
          moments.c.template denominator<L>(L::load(v + (t.word + k) * 32), moments.v_correction);
      params.move(k, rate, 0,
                  lamb_direction<L>(m_k, moments.m_correction, d, params.load(k), decay));
    }
  }
};

// The norm of the direction in compressed steps, from a sketch.
//
// The norm of a mean message is not the norm of the direction: elements have the size of scales. A
// sketch is linear, so no rank needs the mean direction: each rank adds up the directions of its
// gradients, which it sends, with random signs, equal on all ranks, into 64 sums per tile, averaged
// over steps as m is. The mean of the ranks' sketches is the sketch of the exact direction. Its
// squares sum up to the squared norm of the direction, with a relative error of sqrt(2 / 64) per
// tile.

inline constexpr std::size_t direction_sums = 64;  ///< sums of a sketch of directions, per tile

/// Sums the squares of a sketch of directions, by tile.
struct sketch_squares_kernel {
  static constexpr bool one_isa = true;
  const float* sketch;
  float* sums;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    auto sum = L::set(0.0F);
    for (std::uint32_t row = 0; row < direction_sums / 32; ++row) {
      const auto value = L::load(sketch + i * direction_sums + row * 32);
      sum = L::fma(value, value, sum);
    }
    L::store_scalar(sums + i, L::fold(sum));
  }
};

/// Computes a layer's coefficient, ||x|| over the norm of direction and decay, and the bias of the
/// sketch after this step. A layer that rests keeps both. Until a refresh the coefficient stays.
template <class P, class G>
struct followed_coefficient_kernel {
  static constexpr bool serial = true;
  step_tables<P, G> tables;
  lamb_layer* layers;
  double least, most;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tables.tensors[i].rests) return;
    const tile_range r = tables.tensor_tiles[i];
    lamb_layer layer = layers[i];
    layer.sketch_bias = product(layer.sketch_bias, static_cast<double>(tables.scalars[i].c.beta1));
    if (layer.direction > 0) {
      const double x = sqrt(L::sum(tables.sums + r.begin, r.end - r.begin)),
                   wd = static_cast<double>(tables.tensors[i].weight_decay),
                   decay = wd > 0 ? wd * x : 0,
                   m = product(static_cast<double>(layer.direction),
                               static_cast<double>(layer.growth)),
                   u = sqrt(fma(decay, decay, product(m, m)));
      const bool is_ratio = x > 0 && u <= 1.7976931348623157e308;
      layer.coefficient = is_ratio ? static_cast<float>(clamp_to(x / u, least, most)) : 1.0F;
    }
    L::store_scalar(layers + i, layer);
  }
};

/// Updates x from the mean direction and the layer's coefficient, then this rank's v and its sketch
/// of directions. 22 bytes and a bit per element.
template <class View, class P, class G>
struct lamb_update_kernel {
  View latest;
  step_tables<P, G> tables;
  const lamb_layer* layers;
  direction_units units;
  bool takes_squares;  ///< into this rank's own v; false: a refresh does
  float* sketch;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const tensor_scalars moments = tables.scalars[t.tensor];
    const auto latest_at = latest.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t, tables.now);
    const float rate = tensor.rate(tables.now) * layers[t.tensor].coefficient;
    const auto correction = L::set(moments.m_correction);
    auto size = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto u = L::mul(latest_at(k), correction);
      add_squares<L>(size, u);
      params.move(k, rate, tensor.weight_decay, u);
    }
    L::store_scalar(tables.sums + i, word_lanes::fold(size));  // squared norm of the mean direction
    const gradients_of<L, G> gradient(tensor, t, tables.now);
    const auto in_units = units.at<L>(t, moments);
    const std::uint32_t key = key_of_squares(tables.now) + static_cast<std::uint32_t>(t.word);
    auto even = word_lanes::set(0.0F), odd = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto g = gradient.load(k);
      const auto own = tables.active.template keep<L>(word, in_units(k, g));
      if (takes_squares) in_units.take_in(k, g, key);
      for (unsigned j = 0; j < L::words; ++j) {
        const std::uint32_t signs = sketch_signs(word + j);
        auto& sum = (k + j) % 2 == 0 ? even : odd;
        sum = word_lanes::add(
            sum, word_lanes::with_sign(word_lanes::load_bits(&signs), word_of<L>(own, j)));
      }
    }
    float* const place = sketch + i * direction_sums;
    word_lanes::store(place,
                      moments.c.template next_momentum<word_lanes>(word_lanes::load(place), even));
    word_lanes::store(place + 32, moments.c.template next_momentum<word_lanes>(
                                      word_lanes::load(place + 32), odd));
  }
};

/// Longest step of a layer, in steps of LAMB: learning rate times ||x||.
inline constexpr float longest_step = 4;

/// Computes a layer's growth: the norm of the mean direction over its norm in the first step after
/// a refresh. Elements of the mean direction have the size of their scales, so its norm is not that
/// of the exact direction. But it grows and falls as that does, long before the next refresh (what
/// happens without: docs/variance.md).
///
/// The growth is at least the factor that would have kept this step within `longest_step`, since a
/// refresh may find a direction that is far too small. It acts on the next step: the first step
/// after a refresh has no such bound.
struct direction_growth_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const float* sums;
  lamb_layer* layers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    const float size = norm_of(L::sum(sums + r.begin, r.end - r.begin));
    lamb_layer layer = layers[i];
    if (!(layer.size > 0)) layer.size = size;
    const float growth = layer.size > 0 && size > 0 ? size / layer.size : 1.0F;
    const float least = layer.direction > 0 ? size / (longest_step * layer.direction) : 1.0F;
    layer.growth = growth > least ? growth : least;
    L::store_scalar(layers + i, layer);
  }
};

/// Computes a layer's direction from the squares of the mean sketch, corrected for the bias before
/// this step.
struct sketched_direction_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_scalars* scalars;
  const float* sums;
  lamb_layer* layers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    L::store_scalar(&layers[i].size, 0.0F);
    L::store_scalar(&layers[i].growth, 1.0F);
    const auto beta1 = static_cast<double>(scalars[i].c.beta1);
    const double weights = beta1 > 0 ? 1 - layers[i].sketch_bias / beta1 : 1;
    if (!(weights > 0)) return;
    const double norm = sqrt(L::sum(sums + r.begin, r.end - r.begin)) / weights;
    L::store_scalar(&layers[i].direction, static_cast<float>(norm));
  }
};

/// Restarts the bias of a layer's sketch; at a freeze also drops the results of refreshes.
struct restart_sketch_kernel {
  static constexpr bool serial = true;
  lamb_layer* layers;
  bool freezes;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    lamb_layer layer = layers[i];
    if (freezes) layer = {1, layer.coefficient};
    layer.sketch_bias = 1;
    L::store_scalar(layers + i, layer);
  }
};

}  // namespace detail

/// Options of a step of LAMB or 1-bit LAMB.
struct lamb_options {
  double beta1 = 0.9;       ///< decay rate of m, the average of gradients
  double beta2 = 0.999;     ///< decay rate of v, the average of squared gradients
  double eps = 1e-8;        ///< added to sqrt(v)
  double min_coeff = 0.01;  ///< least ||x|| / ||u||; the BERT runs use 0.01, with max_coeff 0.3
  double max_coeff = 10;    ///< largest ||x|| / ||u||
  /// As adam_options::bias_correction.
  bool bias_correction = true;
  /// As adam_options::max_grad_norm.
  double max_grad_norm = 0;
};

namespace detail {

/// Throws invalid_input if an option of LAMB is out of range. `name` is the options' name.
template <class Options>
void validate_lamb(const char* name, const Options& o) {
  validate_moments(name, {o.beta1, o.beta2, o.eps}, o.max_grad_norm);
  validate_range(name, "min_coeff", o.min_coeff, "max_coeff", o.max_coeff);
}

}  // namespace detail

/// Throws invalid_input when an option is out of range.
inline void validate(const lamb_options& o) { detail::validate_lamb("lamb_options", o); }

/// LAMB, and 1-bit LAMB once v is frozen. `Options` has the members of lamb_options.
///
/// Dense: u = m / (sqrt(v) + eps) + wd x, m and v corrected for their bias; c = ||x|| / ||u|| per
/// layer, clipped; x -= lr c u.
/// Compressed: the same with ||u||^2 = ||m / (sqrt(v) + eps)||^2 + ||wd x||^2. The first norm comes
/// from a sketch that refreshes of v average over the ranks, times the growth of the mean direction
/// since the refresh; x is of this step. The size of a step bounds the next one, to about 4 lr
/// ||x||; the first step after a refresh has no such bound. Empty tensors and layers of zeros are
/// valid input: c = 1 if a norm is 0.
///
/// State: m and v, 8 bytes per element in dense steps; then the state of refreshing_rule and 64
/// floats per tile; always 32 bytes per tensor. Source: LAMB (arXiv 1904.00962), algorithm 2; eps
/// outside the root as in the code of 1-bit LAMB's authors. The sketch is this library's own.
template <Backend B, class Options = lamb_options>
class lamb_rule : public freezing_rule<B, Options> {
  using base = freezing_rule<B, Options>;

 public:
  using typename base::float_buffer;

  /// Throws invalid_input without own_variance: norms of directions come from refreshes.
  lamb_rule(Options options, B backend, direction_options directions = {})
      : base(options, std::move(backend), directions, false) {
    validate(options);
    if (std::is_same_v<Options, lamb_options> && !directions.own_variance) {
      throw invalid_input(detail::error_text(
          "lamb_rule: own_variance is false, but norms of directions come from refreshes; "
          "papers::lamb_rule has a constant v"));
    }
  }
  void prepare(const layout& axis) {
    base::prepare(axis);
    layers_ = to_buffer(backend_, std::vector<detail::lamb_layer>(axis.tensor_tiles().size()));
  }
  /// Dense step: updates x, m and v from the mean gradient. Two passes, 44 bytes per element.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    at.launch(detail::lamb_moments_kernel<View, P, G>{gradient, at, m_.data(), v_.data(),
                                                      at.second_sums(), at.third_sums()});
    at.launch(layers_.size(), detail::lamb_coefficient_kernel<P, G>{
                                  at, at.second_sums(), at.third_sums(), layers_.data(),
                                  options_.min_coeff, options_.max_coeff});
    at.launch(detail::lamb_dense_update_kernel<P, G>{at, m_.data(), v_.data(), layers_.data()});
  }
  /// As in refreshing_rule, plus the sketch of directions: 64 floats per tile.
  [[nodiscard]] static std::size_t n_floats_beside(const layout& axis) {
    return base::n_floats_beside(axis) + n_sketch(axis);
  }
  /// As in refreshing_rule; the sketch starts anew, since tiles depend on the number of ranks.
  void prepare_refreshes(const layout& axis, int n_ranks) {
    base::prepare_refreshes(axis, n_ranks);
    n_sketch_ = n_sketch(axis);
    if (!base::has_own_variance()) return;
    sketch_ = make_sketch();
    restart_sketch(false);
  }
  /// As in freezing_rule; also starts the sketch.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    auto sketch = make_sketch();
    auto momentum = base::freeze(active, at);
    sketch_ = std::move(sketch);
    restart_sketch(true);
    return momentum;
  }
  /// As in freezing_rule; also frees the sketch.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    base::thaw(previous, at);
    sketch_ = {};
  }
  /// As in refreshing_rule; the sketch travels too.
  template <class P, class G>
  [[nodiscard]] flat_field floats_beside(const step_context<B, P, G>& at, float* work) {
    const detail::refresh_floats f(work, at.axis, n_sketch_);
    const detail::copy_kernel copy{sketch_.data(), f.more, sketch_.size()};
    backend_.launch(copy.launches(), copy);
    return base::floats_beside(at, work, n_sketch_);
  }
  /// As in refreshing_rule.
  template <class View, class P, class G>
  void take_floats_beside(const View& mean, const step_context<B, P, G>& at_mean,
                          const step_context<B, P, G>& at, step_scalars* now, float* work) {
    base::take_floats_beside(mean, at_mean, at, now, work, n_sketch_);
  }
  /// As in refreshing_rule; also computes the norms of directions.
  template <class View, class P, class G>
  void refresh_variance(const View& mean, const step_context<B, P, G>& at_mean,
                        const step_context<B, P, G>& at, std::uint32_t* active, float* work) {
    base::refresh_variance(mean, at_mean, at, active, work, n_sketch_);
    const detail::refresh_floats f(work, at.axis, n_sketch_);
    at.launch(detail::sketch_squares_kernel{f.more, at.sums});
    at.launch(layers_.size(), detail::sketched_direction_kernel{at.tensor_tiles, at.scalars,
                                                                at.sums, layers_.data()});
  }
  /// Updates x, and what this rank keeps, from the latest mean. Two passes, 26 bytes per element.
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View&, const step_context<B, P, G>& at,
                         const Update& update) {
    at.launch(
        detail::squares_kernel<detail::parameter_field<P, G>>{{at.tensors}, at.tiles, at.sums});
    at.launch(layers_.size(), detail::followed_coefficient_kernel<P, G>{
                                  at, layers_.data(), options_.min_coeff, options_.max_coeff});
    update(detail::lamb_update_kernel<View, P, G>{latest, at, layers_.data(), base::units(),
                                                  base::update_takes_squares(), sketch_.data()});
    at.launch(layers_.size(),
              detail::direction_growth_kernel{at.tensor_tiles, at.sums, layers_.data()});
  }

  /// Returns the state of each layer, with the coefficient of the last step.
  [[nodiscard]] const detail::lamb_layer* layers() const { return layers_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return base::state_bytes() + layers_.bytes() + sketch_.bytes();
  }
  template <class Archive>
  void archive(Archive& a) {
    base::archive(a);
    a.buffer(layers_, backend_);
  }
  /// As in refreshing_rule; also archives the sketch.
  template <class Archive>
  void archive_own(Archive& a) {
    base::archive_own(a);
    a.buffer(sketch_, backend_, base::has_own_variance() ? n_sketch_ : 0);
  }

 protected:
  using base::backend_, base::m_, base::options_, base::v_, base::frozen_;

  buffer_of<B, detail::lamb_layer> layers_;

 private:
  [[nodiscard]] static std::size_t n_sketch(const layout& axis) {
    return detail::direction_sums * axis.tiles().size();
  }
  [[nodiscard]] float_buffer make_sketch() {
    return backend_.template make_buffer<float>(n_sketch_);
  }
  void restart_sketch(bool freezes) noexcept {
    backend_.launch(layers_.size(), detail::restart_sketch_kernel{layers_.data(), freezes});
  }

  std::size_t n_sketch_ = 0;  ///< floats of the sketch, by the layout of messages
  float_buffer sketch_;       ///< sketch of this rank's directions, 64 floats per tile
};

static_assert(ResumingRule<lamb_rule<detail::any_backend>> &&
              RefreshingRule<lamb_rule<detail::any_backend>>);

}}  // namespace onebit
