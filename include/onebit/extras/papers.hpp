// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/algorithms.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/moments.hpp>
#include <string>
#include <utility>
#include <vector>

/// The algorithms as printed in the papers: no bias correction, no bound on steps, v constant after
/// the freeze, the papers' scales. Use them to compare with published results; to train like Adam
/// and LAMB, use algorithms.hpp. The papers' forms need long warm-ups: after n averages v is only
/// 1 - beta2^n of the mean square of gradients, and once v is frozen every step is too large by the
/// factor 1 / sqrt(1 - beta2^n).
///
///     const auto form = onebit::papers::one_bit_adam(23000);
///     auto optimizer = onebit::one_bit_adam(groups, transport, form.options, form.collective);
namespace onebit { inline namespace v0_3 { namespace papers {

/// Options of a step of the paper's 1-bit LAMB.
struct lamb_options {
  double beta1 = 0.9;       ///< decay rate of m, the average of gradients
  double beta2 = 0.999;     ///< decay rate of v, the average of squared gradients
  double eps = 1e-8;        ///< added to sqrt(v)
  double min_coeff = 0.01;  ///< least ||x|| / ||u||; the BERT runs use 0.01, with max_coeff 0.3
  double max_coeff = 10;    ///< largest ||x|| / ||u||
  double coeff_beta = 0.9;  ///< decay rate of the coefficients' average in the warm-up
  double factor_min = 0.5;  ///< least factor of the coefficient in the compressed phase
  double factor_max = 4;    ///< largest factor
  double factor_threshold = 0.1;  ///< largest relative change of the factor per step
  /// True: scale the momenta of all layers to one RMS before compression; for a layer without
  /// recent gradients the RMS is estimated from its v. False: do not scale.
  bool momentum_scaling = true;
  /// As adam_options::bias_correction.
  bool bias_correction = false;
  /// As adam_options::max_grad_norm.
  double max_grad_norm = 0;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const lamb_options& o) {
  constexpr const char* name = "papers::lamb_options";
  detail::validate_lamb(name, o);
  detail::validate_range(name, "factor_min", o.factor_min, "factor_max", o.factor_max);
  if (!(o.coeff_beta >= 0 && o.coeff_beta < 1)) {
    throw invalid_input(
        detail::error_text(name, ": coeff_beta is ", o.coeff_beta, ", must be in [0, 1)"));
  }
  if (!(o.factor_threshold > 0 && o.factor_threshold < 1)) {
    throw invalid_input(detail::error_text(name, ": factor_threshold is ", o.factor_threshold,
                                           ", must be in (0, 1)"));
  }
}
/// Describes the options in words, for names of optimizers.
[[nodiscard, gnu::cold]] inline std::string describe(const lamb_options& o) {
  return onebit::describe(", beta1 ", o.beta1, ", beta2 ", o.beta2, ", eps ", o.eps, ", min_coeff ",
                          o.min_coeff, ", max_coeff ", o.max_coeff, ", coeff_beta ", o.coeff_beta,
                          ", factor_min ", o.factor_min, ", factor_max ", o.factor_max,
                          ", factor_threshold ", o.factor_threshold, ", momentum_scaling ",
                          o.momentum_scaling, ", bias_correction ", o.bias_correction,
                          ", max_grad_norm ", o.max_grad_norm);
}

/// State of the paper's 1-bit LAMB for one layer, in addition to lamb_layer.
struct paper_layer {
  double average = 0;      ///< average of the coefficient in the warm-up; starts from 0
  double last_factor = 1;  ///< factor of the last compressed step
  float k = 1;             ///< scaling of the momentum in messages
  float inverse_k = 1;     ///< 1 / k
};

namespace detail {

using namespace onebit::detail;

/// Averages a layer's coefficients of dense steps. Skips layers that rest and coefficients of 1.
template <class P, class G>
struct average_coefficient_kernel {
  static constexpr bool serial = true;
  const onebit::detail::tensor_entry<P, G>* tensors;
  const onebit::detail::lamb_layer* coefficients;
  paper_layer* layers;
  double beta;  ///< decay rate of the average

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const auto c = static_cast<double>(coefficients[i].coefficient);
    if (tensors[i].rests || c == 1) return;
    // explicit fma: compilers would fuse the expression on some instruction sets only
    L::store_scalar(&layers[i].average, fma(beta, layers[i].average, product(1 - beta, c)));
  }
};

/// Factor of a mean message that makes it a momentum.
struct inverse_k_of_layer {
  const paper_layer* layers;
  ONEBIT_HD float operator()(const tile& t) const { return layers[t.tensor].inverse_k; }
};
/// Momentum, as a field: a mean message divided by the layers' k.
template <class View>
using unscaled_view = onebit::detail::scaled_field<View, inverse_k_of_layer>;

/// Next local momentum, as a message: base + k (beta1 m + (1 - beta1) g), m the previous mean.
template <class View, class P, class G>
struct scaled_momentum_message {
  unscaled_view<View> momentum;
  const onebit::detail::tensor_entry<P, G>* tensors;
  const onebit::detail::tensor_scalars* scalars;
  const step_scalars* now;

  template <class L>
  struct reader {
    typename unscaled_view<View>::template reader<L> momentum;
    gradients_of<L, G> gradient;
    float k;
    onebit::detail::moments_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t w, const typename L::value& base) const {
      const auto next = c.template next_momentum<L>(momentum(w), gradient.load(w));
      return L::fma(next, L::set(k), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now),
            momentum.factor.layers[t.tensor].k, scalars[t.tensor].c};
  }
};

/// Updates the second variance, `fresh`, with (m - beta1 m_old) / (1 - beta1), the gradient between
/// two mean momenta. By tile: ||m/d||^2, ||m/d + weight_decay x||^2, max d / (sqrt(fresh) + eps).
template <class View, class P, class G>
struct second_variance_kernel {
  View latest, previous;
  const float* first_momentum;  ///< replaces `previous` in the first compressed step; else null
  step_tables<P, G> tables;
  flat_field inverses;  ///< 1 / d, d = sqrt(v) + eps
  float *fresh, *sum_m, *sum_u;

  // no tile_at, hence one word at a time: several would take more registers than a device has
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = onebit::detail::one_word<L>;
    const tile t = tables.tiles[i];
    const onebit::detail::tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t);
    const auto latest_at = latest.template at<L>(t, i);
    const auto previous_at = previous.template at<L>(t, i);
    const auto inverse_at = inverses.template at<L>(t, i);
    const onebit::detail::tensor_scalars moments = tables.scalars[t.tensor];
    const auto inverse = L::set(tensor.rests ? 0.0F : 1.0F / moments.c.one_minus_beta1);
    const float decay = tensor.weight_decay;
    const auto m_correction = L::set(moments.m_correction);
    auto ms = word_lanes::set(0.0F), us = word_lanes::set(0.0F), most = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto m = latest_at(k);
      const auto m_old =
          first_momentum != nullptr ? L::load(first_momentum + word * 32) : previous_at(k);
      const auto g = L::mul(L::fma(L::set(-moments.c.beta1), m_old, m), inverse);
      const auto w = moments.c.template next_variance<L>(L::load(fresh + word * 32), g);
      const auto inverse_d = inverse_at(k);
      const auto fresh_d = moments.c.template denominator<L>(w, moments.v_correction);
      const auto ratio = L::div(L::set(1.0F), L::mul(inverse_d, fresh_d));
      const auto kept = tables.active.template keep<L>(word, ratio);
      for (unsigned j = 0; j < L::words; ++j) most = (word_lanes::max)(most, word_of<L>(kept, j));
      const auto prelim = L::mul(L::mul(m, m_correction), inverse_d);
      const auto u = decay == 0 ? prelim : L::fma(L::set(decay), params.load(k), prelim);
      L::store(fresh + word * 32, w);
      add_squares<L>(ms, prelim);
      add_squares<L>(us, u);
    }
    L::store_scalar(sum_m + i, word_lanes::fold(ms));
    L::store_scalar(sum_u + i, word_lanes::fold(us));
    L::store_scalar(tables.sums + i, word_lanes::fold_max(most));
  }
};

/// Computes a layer's factor and coefficient. A layer that rests keeps both.
template <class P, class G>
struct paper_factor_kernel {
  static constexpr bool serial = true;
  step_tables<P, G> tables;
  const float *sum_m, *sum_u;
  paper_layer* layers;
  onebit::detail::lamb_layer* coefficients;
  double least, greatest, threshold;  ///< bounds of the factor, and of its relative change

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tables.tensors[i].rests) return;
    const tile_range r = tables.tensor_tiles[i];
    const std::size_t n = r.end - r.begin;
    const bool decays = tables.tensors[i].weight_decay > 0;
    const float most = L::largest(tables.sums + r.begin, n, 0.0F);
    double f = most > 0 ? static_cast<double>(most) : 1.0;
    if (decays) {
      const float m = norm_of(L::sum(sum_m + r.begin, n)), u = norm_of(L::sum(sum_u + r.begin, n));
      double rho = u > 0 ? static_cast<double>(m / u) : 1.0;
      if (rho > 1) rho = 1;
      f = fma(f, rho, 1.0) - rho;
    }
    const paper_layer layer = layers[i];
    f = clamp_to(f, least, greatest);
    f = clamp_to(f, layer.last_factor * (1 - threshold), layer.last_factor * (1 + threshold));
    L::store_scalar(&layers[i].last_factor, f);
    L::store_scalar(&coefficients[i].coefficient, static_cast<float>(layer.average * f));
  }
};

/// Sums ||m||^2 and ||v||_1, by tile.
struct momentum_size_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const float *m, *v;
  float *sum_m, *sum_v;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    auto ms = L::set(0.0F), vs = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto y = L::load(m + (t.word + k) * 32);
      ms = L::fma(y, y, ms);
      vs = L::add(vs, L::load(v + (t.word + k) * 32));
    }
    L::store_scalar(sum_m + i, L::fold(ms));
    L::store_scalar(sum_v + i, L::fold(vs));
  }
};

/// Computes the momentum scaling of all layers in one call: k_l = (mean of R over layers) / R_l,
/// R_l the RMS of layer l's momentum; 1 if m and v are 0. Empty tensors are not layers.
///
/// A layer without recent gradients has almost no momentum, and k_l would raise its next gradients
/// above those of all other layers. So R_l counts as at least a tenth of the root of the mean of v,
/// which forgets a hundred times more slowly. (Pure noise keeps R_l at 0.23 of this root.)
struct momentum_scaling_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tile* tiles;
  const float *sum_m, *sum_v;
  std::size_t n_layers;
  paper_layer* layers;
  float* factors;
  bool scale;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    double total = 0;
    std::size_t n = 0;
    for (std::size_t i = 0; i < n_layers; ++i) {
      if (tensor_tiles[i].begin == tensor_tiles[i].end) continue;
      total += static_cast<double>(root_mean<L>(sum_m, i));
      ++n;
    }
    for (std::size_t i = 0; i < n_layers; ++i) {
      const float r = root_mean<L>(sum_m, i);
      double k = 1;
      const float least = 0.1F * root_mean<L>(sum_v, i);
      if (scale && total > 0 && (r > 0 || least > 0)) {
        k = total / static_cast<double>(n) / static_cast<double>(r > least ? r : least);
      }
      paper_layer layer = layers[i];
      layer.k = static_cast<float>(k);
      layer.inverse_k = static_cast<float>(1 / k);
      layer.last_factor = 1;
      L::store_scalar(layers + i, layer);
      L::store_scalar(factors + i, layer.k);
    }
  }

 private:
  template <class L>
  ONEBIT_HD float root_mean(const float* sums, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    std::uint64_t n = 0;
    for (auto t = r.begin; t < r.end; ++t) n += tiles[t].n;
    if (n == 0) return 0;
    return static_cast<float>(sqrt(L::sum(sums + r.begin, r.end - r.begin)) /
                              sqrt(static_cast<double>(n)));
  }
};

}  // namespace detail

/// Rule of the paper's 1-bit LAMB: LAMB until v is frozen; then the coefficient is c = c_avg f.
/// c_avg is the average of c in the warm-up. f measures how far a second variance, updated with
/// gradients rebuilt from mean momenta, has moved from the frozen v; f = 1 if no element of the
/// layer has variance.
///
/// State: m and v, 8 bytes per element in dense steps; then 1 / (sqrt(v) + eps) and the second
/// variance, 8 bytes; 60 bytes per tensor. Source: 1-bit LAMB (arXiv 2104.06069), algorithm 2; eps
/// outside the root as in the authors' code.
template <Backend B>
class lamb_rule : public onebit::lamb_rule<B, lamb_options> {
  using base = onebit::lamb_rule<B, lamb_options>;
  using base::backend_, base::m_, base::options_, base::v_, base::frozen_, base::layers_;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = false;

  /// Messages are momenta, without a bound; v is constant after the freeze.
  lamb_rule(lamb_options options, B backend)
      : base(options, std::move(backend), {.max_step = 0, .own_variance = false}) {}
  void prepare(const layout& axis) {
    const std::size_t n_tensors = axis.tensor_tiles().size();
    base::prepare(axis);
    paper_layers_ = to_buffer(backend_, std::vector<paper_layer>(n_tensors));
    factors_ = backend_.template make_buffer<float>(n_tensors);
  }
  /// In every step m and v take in a gradient; after the freeze v means the second variance.
  [[nodiscard]] moments_updated updated(const step_plan&) const {
    return {options_.bias_correction, true, true};
  }
  /// Dense step: a step of LAMB; also updates the average coefficients.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    base::dense_update(gradient, at);
    at.launch(layers_.size(),
              detail::average_coefficient_kernel<P, G>{at.tensors, layers_.data(),
                                                       paper_layers_.data(), options_.coeff_beta});
  }
  /// Freezes v, fills `active`, and keeps m for the first compressed step. Returns a copy of m with
  /// factors that give all layers one RMS, since all layers share one scale.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    auto copy = base::make_floats(), fresh = base::make_floats();
    at.backend.launch(at.n_tiles(),
                      detail::momentum_size_kernel{at.tiles, m_.data(), v_.data(), at.second_sums(),
                                                   at.third_sums()});
    at.backend.launch(
        1, detail::momentum_scaling_kernel{at.tensor_tiles, at.tiles, at.second_sums(),
                                           at.third_sums(), layers_.size(), paper_layers_.data(),
                                           factors_.data(), options_.momentum_scaling});
    const onebit::detail::copy_kernel keep_m{m_.data(), copy.data(), m_.size()};
    backend_.launch(keep_m.launches(), keep_m);
    const onebit::detail::copy_kernel keep_v{v_.data(), fresh.data(), v_.size()};
    backend_.launch(keep_v.launches(), keep_v);
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, copy.data(),
                                                        v_.data(), v_.data(), active, false});
    fresh_ = std::move(fresh);
    frozen_ = true;
    return {std::move(copy), factors_.data(), at.scalars};
  }
  /// Returns to dense steps, with m from the previous mean message. Average coefficients stay.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    base::thaw(detail::unscaled_view<View>{previous, {paper_layers_.data()}}, at);
    fresh_ = {};
  }
  /// As in refreshing_rule, without the scaling of momenta.
  template <class View, class At>
  void write_moments(const View& mean, const At& at, float* m, float* v) {
    base::write_moments(detail::unscaled_view<View>{mean, {paper_layers_.data()}}, at, m, v);
  }
  /// Hands over the previous mean momentum, to an exchange that starts with v frozen. Keeps a copy
  /// for the first compressed step, as `freeze` does.
  template <class View, class At>
  [[nodiscard]] initial_momentum<float_buffer> resume(const View& previous, const At& at) {
    const detail::unscaled_view<View> unscaled{previous, {paper_layers_.data()}};
    // before the first compressed step there is no mean message yet, and m_ is still here
    auto m = m_.size() > 0 ? float_buffer{} : base::resume(unscaled, at).momentum;
    auto copy = base::resume(unscaled, at).momentum;
    if (m.size() > 0) m_ = std::move(m);
    return {std::move(copy), factors_.data(), at.scalars};
  }
  /// Returns the next message: base + k (beta1 m + (1 - beta1) g), k m the previous mean message.
  template <class View, class P, class G>
  [[nodiscard]] detail::scaled_momentum_message<View, P, G> message(
      const View& previous, const step_context<B, P, G>& at) const {
    return {{previous, {paper_layers_.data()}}, at.tensors, at.scalars, at.now};
  }
  /// Updates x and the second variance from the latest mean. Two passes, 28 bytes per element.
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View& previous, const step_context<B, P, G>& at,
                         const Update& update) {
    const float* const first = m_.size() > 0 ? m_.data() : nullptr;
    using unscaled = detail::unscaled_view<View>;
    const unscaled m{latest, {paper_layers_.data()}}, before{previous, {paper_layers_.data()}};
    at.launch(detail::second_variance_kernel<unscaled, P, G>{
        m, before, first, at, {base::inverse()}, fresh_.data(), at.second_sums(), at.third_sums()});
    at.launch(layers_.size(),
              detail::paper_factor_kernel<P, G>{
                  at, at.second_sums(), at.third_sums(), paper_layers_.data(), layers_.data(),
                  options_.factor_min, options_.factor_max, options_.factor_threshold});
    update(detail::adam_update_kernel<unscaled, P, G, onebit::detail::lamb_layer>{
        m, at, base::inverse(), false, {}, layers_.data()});
  }
  /// True if the host must wait for the outcome of the next step: before the first compressed step,
  /// after which `done` frees m.
  [[nodiscard]] bool needs_outcome() const { return frozen_ && m_.size() > 0; }
  void done(const step_plan& plan, float) {
    if (plan.update == update_from::exchange && needs_outcome()) m_ = {};
  }

  /// Returns the second variance, on the flat axis; null before the freeze.
  [[nodiscard]] const float* fresh_variance() const { return fresh_.data(); }
  /// Returns, by tensor, average coefficient, last factor and momentum scaling.
  [[nodiscard]] const paper_layer* paper_layers() const { return paper_layers_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return base::state_bytes() + fresh_.bytes() + paper_layers_.bytes() + factors_.bytes();
  }
  template <class Archive>
  void archive(Archive& a) {
    const std::size_t n = base::n_floats();
    bool has_m = m_.size() > 0;
    a.scalar(frozen_);
    a.local(has_m);
    a.buffer(m_, backend_, has_m || !frozen_ ? n : 0);
    a.buffer(v_, backend_, n);
    a.buffer(fresh_, backend_, frozen_ ? n : 0);
    a.buffer(layers_, backend_);
    a.buffer(paper_layers_, backend_);
    a.buffer(factors_, backend_);
  }

 private:
  float_buffer fresh_;  ///< second variance, on the flat axis
  buffer_of<B, paper_layer> paper_layers_;
  float_buffer factors_;  ///< by tensor: momentum scaling k
};

static_assert(ResumingRule<lamb_rule<onebit::detail::any_backend>>);

/// Options of the paper's 1-bit LAMB. No aggregate: braces stand for onebit::one_bit_lamb_options.
struct one_bit_lamb_options {
  /// `after`: number of dense steps.
  template <std::integral I>
  explicit one_bit_lamb_options(I after) : freeze{static_cast<std::uint64_t>(after)} {}

  lamb_options lamb{};                           ///< of the rule
  freeze_options freeze;                         ///< when the dense steps end
  dense_sum warm_up_sum = dense_sum::automatic;  ///< summation and wire format of averages
};

/// Arguments for onebit::one_bit_adam, one_bit_lamb or zero_one_adam.
template <class Options>
struct form {
  Options options;                            ///< options of the algorithm
  gather_scatter<sign<l2_scale>> collective;  ///< collective with the paper's scales
};

/// 1-bit Adam (arXiv 2102.02888), algorithm 1: `after` dense steps, one scale per tensor.
[[nodiscard]] inline form<one_bit_adam_options> one_bit_adam(std::uint64_t after) {
  return {{.adam = {.bias_correction = false}, .freeze = {after}, .refreshes = 0, .max_step = 0},
          {{granularity::layer(), 1}}};
}
/// 1-bit LAMB (arXiv 2104.06069), algorithm 2: `after` dense steps; coefficients of the warm-up
/// times factors of the second variance; momenta are scaled to one size and share one scale.
[[nodiscard]] inline form<one_bit_lamb_options> one_bit_lamb(std::uint64_t after) {
  return {one_bit_lamb_options(after), {{granularity::vector(), 1}}};
}
/// 0/1 Adam (arXiv 2202.06009), algorithm 1 and section 5: `warm_up` steps that all exchange, and
/// refresh v at T_v; then the gaps of T_u double each time the learning rate has halved. One scale
/// per tensor. eps is added to sqrt(v), as in the authors' code: an element with almost no variance
/// moves by its tensor's scale over eps. Short runs can diverge at 1e-8; `.adam.eps` 1e-4 helps.
[[nodiscard]] inline form<zero_one_adam_options> zero_one_adam(std::uint64_t warm_up) {
  return {{.adam = {.bias_correction = false},
           .schedule = {.kappa = 16,
                        .warmup_steps = warm_up,
                        .doubling_steps = 0,
                        .max_interval = 16,
                        .stop_refreshing = true},
           .max_step = 0,
           .own_variance = false},
          {{granularity::layer(), 1}}};
}

}}}  // namespace onebit::papers

namespace onebit { inline namespace v0_3 {

/// The paper's 1-bit LAMB: see papers::lamb_rule. Collective over the transport.
///
/// Cost per compressed step: as one_bit_adam without refreshes; state 12.25 + 4/W bytes per
/// parameter. A collective with one scale for all layers needs momentum_scaling.
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto one_bit_lamb(const std::vector<param_group<P, G>>& groups,
                                           T transport, papers::one_bit_lamb_options options,
                                           Policies... policies) {
  onebit::detail::check_exchange<T, onebit::detail::one_bit_exchange, Policies...>();
  auto chosen = onebit::detail::policies_of_exchange<onebit::detail::one_bit_exchange>(policies...);
  using B = decltype(chosen.backend);
  communicator comm(std::move(transport));
  auto [rule, schedule] = detail::collective_try(comm, [&] {
    detail::require_dense_steps("papers::one_bit_lamb", options.freeze);
    return std::pair(papers::lamb_rule<B>(options.lamb, std::move(chosen.backend)),
                     freeze(options.freeze, options.lamb.beta2, 0, options.lamb.bias_correction));
  });
  return optimizer("papers::one_bit_lamb" + describe(options.lamb) + describe(options.freeze) +
                       ", " + policy_name(chosen.collective) + describe(groups),
                   groups, comm, std::move(rule), std::move(schedule), chosen.collective,
                   options.warm_up_sum);
}

}}  // namespace onebit
