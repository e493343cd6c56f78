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
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/moments.hpp>
#include <string>
#include <utility>
#include <vector>

/// The algorithms as their papers print them: no correction of biases, no bound on steps, v
/// constant once it is frozen, scales as the papers have them. The algorithms of algorithms.hpp
/// train as Adam and LAMB do; these are for comparison with what is published. They need the
/// papers' long warm-ups: v lacks beta2^after of what it averages where the warm-up ends, and every
/// later step is too large by the root of that.
///
///     const auto form = onebit::papers::one_bit_adam(23000);
///     auto optimizer = onebit::one_bit_adam(groups, transport, form.options, form.collective);
namespace onebit::inline v0_2::papers {

/// Options of a step of the paper's 1-bit LAMB.
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
  /// As adam_options::bias_correction.
  bool bias_correction = false;
  /// As adam_options::max_grad_norm.
  double max_grad_norm = 0;
  static constexpr double max_step = 0;         ///< momenta are sent
  static constexpr bool keeps_squares = false;  ///< v stays as it was at the freeze
};

/// Throws invalid_input when an option is out of range.
inline void validate(const lamb_options& o) {
  constexpr const char* name = "papers::lamb_options";
  detail::validate_lamb(name, o);
  validate_range(name, "factor_min", o.factor_min, "factor_max", o.factor_max);
  if (!(o.coeff_beta >= 0 && o.coeff_beta < 1)) {
    throw invalid_input(
        detail::message(name, ": coeff_beta is ", o.coeff_beta, ", must be in [0, 1)"));
  }
  if (!(o.factor_threshold > 0 && o.factor_threshold < 1)) {
    throw invalid_input(
        detail::message(name, ": factor_threshold is ", o.factor_threshold, ", must be in (0, 1)"));
  }
}
/// In words, for names of optimizers.
[[nodiscard, gnu::cold]] inline std::string describe(const lamb_options& o) {
  return onebit::describe(", beta1 ", o.beta1, ", beta2 ", o.beta2, ", eps ", o.eps, ", min_coeff ",
                          o.min_coeff, ", max_coeff ", o.max_coeff, ", coeff_beta ", o.coeff_beta,
                          ", factor_min ", o.factor_min, ", factor_max ", o.factor_max,
                          ", factor_threshold ", o.factor_threshold, ", momentum_scaling ",
                          o.momentum_scaling, ", bias_correction ", o.bias_correction,
                          ", max_grad_norm ", o.max_grad_norm);
}

/// What the paper's 1-bit LAMB keeps of a layer, beside lamb_layer.
struct paper_layer {
  double average = 0;      ///< of the coefficient over the warm-up, starting from 0
  double last_factor = 1;  ///< of the compressed phase
  float k = 1;             ///< momentum scaling
  float inverse_k = 1;     ///< 1 / k
};

namespace detail {

using namespace onebit::detail;

/// The average of the coefficients of dense steps, unless the layer rests.
template <class P, class G>
struct average_coefficient_kernel {
  static constexpr bool serial = true;
  const tensor_entry<P, G>* tensors;
  const lamb_layer* coefficients;
  paper_layer* layers;
  double beta;  ///< what the average keeps

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const auto c = static_cast<double>(coefficients[i].coefficient);
    if (tensors[i].rests || c == 1) return;
    // explicit fma: some instruction sets would contract it, others not
    L::store_scalar(&layers[i].average, fma(beta, layers[i].average, product(1 - beta, c)));
  }
};

/// The momentum from what was agreed of it.
template <class View>
struct unscaled_view {
  View previous;
  const paper_layer* layers;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    float inverse_k;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(previous(k), L::set(inverse_k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {previous.template at<L>(t, index), layers[t.tensor].inverse_k};
  }
};

/// The next local momentum as a message: base + k (beta1 m + (1 - beta1) g).
template <class View, class P, class G>
struct scaled_momentum_message {
  unscaled_view<View> momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const step_scalars* now;

  template <class L>
  struct reader {
    typename unscaled_view<View>::template reader<L> momentum;
    gradients_of<L, G> gradient;
    float k;
    moments_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t w, const typename L::value& base) const {
      const auto next = c.template next_momentum<L>(momentum(w), gradient.load(w));
      return L::fma(next, L::set(k), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now),
            momentum.layers[t.tensor].k, scalars[t.tensor].c};
  }
};

/// The second variance, from the gradient that the agreed momenta imply; per tile ||m/d||^2,
/// ||u||^2 and the largest d / (sqrt(fresh) + eps), d = sqrt(v) + eps.
template <class View, class P, class G>
struct second_variance_kernel {
  View latest, previous;
  const float* first_momentum;  ///< of the warm-up: not `previous`, in the first compressed step
  step_tables<P, G> tables;
  flat_field inverses;  ///< 1 / d
  float *fresh, *sum_m, *sum_u;

  // no tile_at: a device has no registers for several words of so much
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tables.tiles[i];
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t);
    const auto latest_at = latest.template at<L>(t, i);
    const auto previous_at = previous.template at<L>(t, i);
    const auto inverse_at = inverses.template at<L>(t, i);
    const tensor_scalars of = tables.scalars[t.tensor];
    const auto inverse = L::set(tensor.rests ? 0.0F : 1.0F / of.c.one_minus_beta1);
    const auto decay = L::set(tensor.weight_decay), m_correction = L::set(of.m_correction);
    auto ms = one::set(0.0F), us = one::set(0.0F), most = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto m = latest_at(k);
      const auto m_old =
          first_momentum != nullptr ? L::load(first_momentum + word * 32) : previous_at(k);
      const auto g = L::mul(L::fma(L::set(-of.c.beta1), m_old, m), inverse);
      const auto w = of.c.template next_variance<L>(L::load(fresh + word * 32), g);
      const auto inverse_d = inverse_at(k);
      const auto fresh_d = of.c.template denominator<L>(w, of.v_correction);
      const auto ratio = L::div(L::set(1.0F), L::mul(inverse_d, fresh_d));
      const auto kept = tables.active.template keep<L>(word, ratio);
      for (unsigned j = 0; j < L::words; ++j) most = one::max(most, word_of<L>(kept, j));
      const auto prelim = L::mul(L::mul(m, m_correction), inverse_d);
      const auto u = L::fma(decay, params.load(k), prelim);
      L::store(fresh + word * 32, w);
      add_squares<L>(ms, prelim);
      add_squares<L>(us, u);
    }
    L::store_scalar(sum_m + i, one::fold(ms));
    L::store_scalar(sum_u + i, one::fold(us));
    L::store_scalar(tables.sums + i, one::fold_max(most));
  }
};

/// The layer's factor and coefficient, unless it rests.
template <class P, class G>
struct paper_factor_kernel {
  static constexpr bool serial = true;
  step_tables<P, G> tables;
  const float *sum_m, *sum_u;
  paper_layer* layers;
  lamb_layer* coefficients;
  double least, greatest, threshold;  ///< clips of the factor, and of its change

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

/// Per tile ||m||^2, and ||v||_1.
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

/// k_l = mean over layers of R / R_l, R_l the RMS of the layer's momentum; 1 where v is 0 too.
/// Empty tensors are no layers. One call for all layers.
///
/// The momentum of a layer that had no gradient for a while is next to nothing, and k_l would blow
/// its next gradients up over all others: R_l counts as a tenth of the root of the mean of v at
/// least, which forgets a hundred times slower. (Noise alone keeps m at 0.23 of it.)
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

/// The paper's 1-bit LAMB: LAMB, until v is frozen. Then c = c_avg f, where c_avg is the average of
/// c over the warm-up and f follows how far a second variance, of gradients rebuilt from the agreed
/// momentum, has moved from the frozen one; f = 1 where no element has variance.
///
/// State: m and v, 8 bytes per element in dense steps; then 1 / (sqrt(v) + eps) and the second
/// variance, 8 bytes; 60 bytes per tensor.
/// Source: 1-bit LAMB (arXiv 2104.06069), algorithm 2; eps outside the root as in the authors'
/// code.
template <Backend B>
class lamb_rule : public onebit::lamb_rule<B, lamb_options> {
  using base = onebit::lamb_rule<B, lamb_options>;
  using base::backend_, base::m_, base::options_, base::v_, base::frozen_, base::layers_;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = false;

  lamb_rule(lamb_options options, B backend) : base(options, std::move(backend)) {}
  void prepare(const layout& axis) {
    const std::size_t n_tensors = axis.tensor_tiles().size();
    base::prepare(axis);
    paper_layers_ = to_buffer(backend_, std::vector<paper_layer>(n_tensors));
    factors_ = backend_.template make_buffer<float>(n_tensors);
  }
  /// The second variance's, too.
  [[nodiscard]] moments_updated updated(const step_plan&) const {
    return {options_.bias_correction, true, true};
  }
  /// LAMB's step, and the average of coefficients.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    base::dense_update(gradient, at);
    at.launch(layers_.size(),
              detail::average_coefficient_kernel<P, G>{at.tensors, layers_.data(),
                                                       paper_layers_.data(), options_.coeff_beta});
  }
  /// Freezes v: fills `active`, hands over a copy of m, scaled so that all layers have one RMS
  /// (their common scale then fits all), and keeps m for the first compressed step.
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
    const copy_kernel keep_m{m_.data(), copy.data(), m_.size()};
    backend_.launch(keep_m.launches(), keep_m);
    const copy_kernel keep_v{v_.data(), fresh.data(), v_.size()};
    backend_.launch(keep_v.launches(), keep_v);
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, copy.data(),
                                                        v_.data(), active, false});
    fresh_ = std::move(fresh);
    frozen_ = true;
    return {std::move(copy), factors_.data(), at.scalars};
  }
  /// Back to dense steps; coefficients go on from their averages.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    base::thaw(detail::unscaled_view<View>{previous, paper_layers_.data()}, at);
    fresh_ = {};
  }
  /// Hands over what was agreed, for an exchange that starts with v frozen; keeps it for the first
  /// compressed step, as `freeze` does.
  template <class View, class At>
  [[nodiscard]] initial_momentum<float_buffer> resume(const View& previous, const At& at) {
    const detail::unscaled_view<View> unscaled{previous, paper_layers_.data()};
    // until a compressed step has been made nothing was agreed, and m is still here
    auto m = m_.size() > 0 ? float_buffer{} : base::resume(unscaled, at).momentum;
    auto copy = base::resume(unscaled, at).momentum;
    if (m.size() > 0) m_ = std::move(m);
    return {std::move(copy), factors_.data(), at.scalars};
  }
  /// base + k (beta1 m + (1 - beta1) g), k m as last agreed.
  template <class View, class P, class G>
  [[nodiscard]] detail::scaled_momentum_message<View, P, G> message(
      const View& previous, const step_context<B, P, G>& at) const {
    return {{previous, paper_layers_.data()}, at.tensors, at.scalars, at.now};
  }
  /// The update: two passes over the agreed message, 28 bytes per element.
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View& previous, const step_context<B, P, G>& at,
                         const Update& update) {
    const float* const first = m_.size() > 0 ? m_.data() : nullptr;
    using unscaled = detail::unscaled_view<View>;
    const unscaled m{latest, paper_layers_.data()}, before{previous, paper_layers_.data()};
    at.launch(detail::second_variance_kernel<unscaled, P, G>{
        m, before, first, at, {v_.data()}, fresh_.data(), at.second_sums(), at.third_sums()});
    at.launch(layers_.size(),
              detail::paper_factor_kernel<P, G>{
                  at, at.second_sums(), at.third_sums(), paper_layers_.data(), layers_.data(),
                  options_.factor_min, options_.factor_max, options_.factor_threshold});
    update(detail::adam_update_kernel<unscaled, P, G, lamb_layer>{m, at, v_.data(), nullptr,
                                                                  layers_.data()});
  }
  /// Whether the host must know the outcome of the next step: the first compressed one is the last
  /// that reads m.
  [[nodiscard]] bool needs_outcome() const { return frozen_ && m_.size() > 0; }
  void done(const step_plan& plan, float) {
    if (plan.exchange && needs_outcome()) m_ = {};
  }

  /// The second variance, after the freeze.
  [[nodiscard]] const float* fresh_variance() const { return fresh_.data(); }
  /// By tensor: average coefficient, last factor, momentum scaling.
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
  float_buffer fresh_;
  buffer_of<B, paper_layer> paper_layers_;
  float_buffer factors_;  ///< by tensor: momentum scaling k
};

static_assert(ResumingRule<lamb_rule<onebit::detail::any_backend>>);

/// Options of the paper's 1-bit LAMB. (No aggregate: braces mean onebit::one_bit_lamb_options.)
struct one_bit_lamb_options {
  /// So many dense steps.
  template <std::integral I>
  explicit one_bit_lamb_options(I after) : freeze{static_cast<std::uint64_t>(after)} {}

  lamb_options lamb{};                           ///< of each step
  freeze_options freeze;                         ///< when the dense steps end
  dense_sum warm_up_sum = dense_sum::automatic;  ///< how averages travel
};

/// What an algorithm is given.
template <class Options>
struct form {
  Options options;                            ///< of the algorithm
  gather_scatter<sign<l2_scale>> collective;  ///< with the paper's scales
};

/// 1-bit Adam (arXiv 2102.02888), algorithm 1: so many dense steps, a scale per tensor.
[[nodiscard]] inline form<one_bit_adam_options> one_bit_adam(std::uint64_t after) {
  return {{.adam = {.bias_correction = false, .max_step = 0}, .freeze = {after}, .refreshes = 0},
          {{granularity::layer(), 1}}};
}
/// 1-bit LAMB (arXiv 2104.06069), algorithm 2: coefficients of the warm-up times factors of the
/// second variance, one scale for all momenta, which are brought to one size.
[[nodiscard]] inline form<one_bit_lamb_options> one_bit_lamb(std::uint64_t after) {
  return {one_bit_lamb_options(after), {{granularity::vector(), 1}}};
}
/// 0/1 Adam (arXiv 2202.06009), algorithm 1 and section 5: T_v in the first so many steps, in which
/// every step exchanges; then T_u doubles each time the learning rate has halved. A scale per
/// tensor. eps is added to the root, as in the authors' code: an element with next to no variance
/// moves by its tensor's scale over eps. Short runs can diverge at 1e-8; `.adam.eps` 1e-4 helps.
[[nodiscard]] inline form<zero_one_adam_options> zero_one_adam(std::uint64_t warm_up) {
  return {{.adam = {.bias_correction = false, .max_step = 0, .keeps_squares = false},
           .schedule = {.warmup_steps = warm_up, .stop_refreshing = true}},
          {{granularity::layer(), 1}}};
}

}  // namespace onebit::inline v0_2::papers

namespace onebit::inline v0_2 {

/// The paper's 1-bit LAMB: see papers::lamb_rule. Collective over the transport.
///
/// Cost per compressed step: as one_bit_adam without refreshes; state 12.25 + 4/W bytes per
/// parameter. One scale for all layers fits where momentum_scaling is on.
template <class P, class G, class T, class B = host, class C = gather_scatter<sign<l2_scale>>>
[[nodiscard, gnu::cold]] auto one_bit_lamb(const std::vector<param_group<P, G>>& groups,
                                           T transport, papers::one_bit_lamb_options options,
                                           C collective, B backend = B{}) {
  detail::check_policies<T, B>();
  check_split<C, T>();
  communicator comm(std::move(transport));
  auto [rule, schedule] = detail::collective_try(comm, [&] {
    return std::pair(papers::lamb_rule<B>(options.lamb, std::move(backend)),
                     freeze(options.freeze, options.lamb.beta2, 0, options.lamb.bias_correction));
  });
  return optimizer("papers::one_bit_lamb" + describe(options.lamb) + describe(options.freeze) +
                       ", " + policy_name(collective) + describe(groups),
                   groups, comm, std::move(rule), std::move(schedule), collective,
                   options.warm_up_sum);
}

}  // namespace onebit::inline v0_2
