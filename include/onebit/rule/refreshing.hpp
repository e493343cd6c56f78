// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/sketch.hpp>
#include <utility>
#include <vector>

/// Bases of rules whose v follows: compressed steps refresh v, from the ranks' own squares.
namespace onebit { inline namespace v0_3 {

/// Message with the next local momentum: base + beta1 m + (1 - beta1) g, m the previous mean
/// message and g in `units`. The sum starts from the base, so that a momentum gives the same bits
/// whether the base holds beta1 m or the previous mean is m.
template <class View, class P, class G>
struct momentum_message {
  static constexpr bool single_word = detail::SingleWordField<View> || requires { View::n_slots; };
  View momentum;
  const detail::tensor_entry<P, G>* tensors;
  const detail::tensor_scalars* scalars;
  const step_scalars* now;
  detail::direction_units units{};

  template <class L>
  struct reader {
    typename View::template reader<L> momentum;
    gradients_of<L, G> gradient;
    detail::moments_constants c;
    detail::direction_units::reader<L> in_units;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = in_units(k, gradient.load(k));
      return L::fma(g, L::set(c.one_minus_beta1), L::fma(momentum(k), L::set(c.beta1), base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    const detail::tensor_scalars& moments = scalars[t.tensor];
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now),
            moments.c, units.at<L>(t, moments)};
  }
};

namespace detail {

/// Exchanges the next rho for the one in use, by tensor.
struct swap_rho_kernel {
  static constexpr bool serial = true;
  float *next, *rho;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const float was = rho[i], will = next[i];
    L::store_scalar(rho + i, will);
    L::store_scalar(next + i, was);
  }
};

/// What this rank's own v has taken in since the last refresh: own - beta2^k v, not below 0. What
/// it has taken in by more than rho^2 counts rho^2: the mean over the ranks is rho^2 times the mean
/// of their squares.
struct own_squares_field {
  const float *own, *variance;
  const tensor_scalars* scalars;
  const float *weighted, *unweighted;  ///< see growth_state; or null

  template <class L>
  struct reader {
    const float *own, *variance;
    float decay, part;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      const auto old = L::mul(L::load(variance + 32 * k), L::set(decay));
      return L::mul((L::max)(L::sub(L::load(own + 32 * k), old), L::set(0.0F)), L::set(part));
    }
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, (*this)(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    // sums that overflow say nothing
    const float all = weighted == nullptr ? 0.0F : weighted[t.tensor];
    const float part = all > 0 ? unweighted[t.tensor] / all : 1.0F;
    return {own + t.word * 32, variance + t.word * 32,
            static_cast<float>(scalars[t.tensor].decay_since), part < 1 ? part : 1.0F};
  }
};

/// Brings v up to date: v <- beta2^k v + rho q, q the mean of the ranks' squares in the k steps
/// since the last refresh; `mean` is q times the square of the rho that they were kept with. Each
/// rank's own v starts from it, with this step's gradient, unless `units` has none. Active elements
/// stay active; those with v > 0 become active.
template <class View, class P, class G>
struct refresh_variance_kernel {
  View mean;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const step_scalars* now;
  active_mask before;
  std::uint32_t* active;  ///< null: no element becomes active
  const float* old_rho;   ///< by tensor: of the last refresh
  direction_units units;  ///< with the new rho; without: no gradient is taken in
  float *v, *own;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto mean_at = mean.template at<L>(t, i);
    const tensor_scalars& moments = scalars[t.tensor];
    const float old = old_rho[t.tensor],
                rho = L::abs_scalar(units.rho == nullptr ? old : units.rho[t.tensor]);
    const auto decay = L::set(static_cast<float>(moments.decay_since)),
               inverse = L::set(rho / (old * old));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k, place = word * 32;
      const auto v_new = L::fma(mean_at(k), inverse, L::mul(L::load(v + place), decay));
      L::store(v + place, v_new);
      if (active == nullptr) {
        L::store(own + place, v_new);
        continue;
      }
      std::uint32_t lives = 0;
      L::store_bits(&lives, L::positive(v_new));
      L::store_scalar(active + word, lives | before.words[word]);
      const gradients_of<L, G> gradient(tensors[t.tensor], t, now);
      const auto in_units = units.template at<L>(t, moments);
      L::store(own + place, in_units.next_variance(v_new, gradient.load(k)));
    }
  }
};

/// Sums by tile of a rank's squares and of its v before them, from which its growth comes.
struct growth_sums {
  float *squares = nullptr, *variances = nullptr;

  template <class L>
  struct of_tile {
    using word_lanes = one_word<L>;
    typename word_lanes::value squares = word_lanes::set(0.0F), variances = word_lanes::set(0.0F);
    ONEBIT_HD void add(const typename L::value& g, const typename L::value& v) {
      add_squares<L>(squares, g);
      add_words<L>(variances, v);
    }
  };
  template <class L>
  ONEBIT_HD void store(std::size_t i, const of_tile<L>& sums) const {
    L::store_scalar(squares + i, one_word<L>::fold(sums.squares));
    L::store_scalar(variances + i, one_word<L>::fold(sums.variances));
  }
};

/// Updates this rank's v with the gradients of tile i.
template <class L, class P, class G>
ONEBIT_HD void update_variance(float* variance, const direction_units& units,
                               const growth_sums& growth, std::size_t i, const tile& t,
                               const step_tables<P, G>& tables) {
  const gradients_of<L, G> gradient(tables.tensors[t.tensor], t, tables.now);
  const auto in_units = units.at<L>(t, tables.scalars[t.tensor]);
  growth_sums::of_tile<L> sums;
  for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
    float* const place = variance + (t.word + k) * 32;
    const auto g = gradient.load(k), v = L::load(place);
    sums.add(g, v);
    L::store(place, in_units.next_variance(v, g));
  }
  growth.store<L>(i, sums);
}

inline constexpr std::size_t growth_arrays = 3;  ///< of growth_state

/// What a rank knows of a tensor's growth, from its own gradients: arrays by tensor, one after the
/// other. All null if the rule does not note it.
template <class T>
struct growth_state {
  T* growth = nullptr;      ///< squared norm over what v expected, in the last step that noted it
  T* weighted = nullptr;    ///< squares noted since the last refresh, weighted
  T* unweighted = nullptr;  ///< the same squares, all with the weight rho^2
  std::size_t n = 0;        ///< number of tensors

  growth_state(T* memory, std::size_t n_floats) {
    if (n_floats == 0) return;
    n = n_floats / growth_arrays;
    growth = memory;
    weighted = growth + n;
    unweighted = weighted + n;
  }
  /// Restarts what is summed up between refreshes.
  [[nodiscard]] copy_kernel restart() const { return {nullptr, weighted, 2 * n}; }
};

/// Brings growth_state up to date after a step. v expects v / rho of a rank's squares.
struct growth_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_scalars* scalars;
  growth_sums sums;
  direction_units units;
  growth_state<float> state;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    const std::size_t n = r.end - r.begin;
    const double squares = L::sum(sums.squares + r.begin, n),
                 v = product(L::sum(sums.variances + r.begin, n),
                             static_cast<double>(scalars[i].v_correction));
    const float rho = L::abs_scalar(units.rho[i]), beta2 = scalars[i].c.beta2;
    const auto by = [&](float sum, float weight) {
      return fmaf(weight, static_cast<float>(squares), product_of(beta2, sum));
    };
    L::store_scalar(state.weighted + i, by(state.weighted[i], units.weight_of(i)));
    L::store_scalar(state.unweighted + i, by(state.unweighted[i], rho * rho));
    const double found = squares > 0 && v > 0 ? product(squares, static_cast<double>(rho)) / v : 0;
    L::store_scalar(state.growth + i, static_cast<float>(found));
  }
  /// Returns a b, never contracted.
  ONEBIT_HD static float product_of(float a, float b) { return fmaf(a, b, 0.0F); }
};

}  // namespace detail

/// Base of rules whose v follows (docs/variance.md). In compressed steps no rank knows the mean
/// gradient. Each rank updates a v of its own from its own gradients, v_r <- beta2 v_r + rho^2 (1 -
/// beta2) g_r^2, and divides by it. A refresh, k steps after the last one, averages what the ranks'
/// v have taken in: v <- beta2^k v + rho mean q_r, q_r the rank's squares since then, weighted as
/// in v. The ranks' own v start from v.
///
/// rho, by tensor, is the squared norm of the mean gradient over the mean of the ranks' squared
/// norms: 1 if all gradients are equal, 1/W if they are independent noise. Refreshes estimate it
/// from sketches. In v its weight is rho. In a rank's own v it is rho^2: one rank alone may have
/// the gradients of an element that v does not know yet, and its share of the mean, 1/W, makes a
/// first step as long as Adam's only if its squares count 1/W^2.
///
/// Where a rank's squares of a whole tensor exceed what its v expects tenfold, its gradients have
/// grown at once. From the next step on its squares count rho, as in v, until its v has caught up:
/// with rho^2 all steps up to the refresh would be up to 1 / sqrt(rho) too long. The refresh counts
/// them rho^2, as all others. Each rank decides from its own gradients, which costs no traffic.
/// Rare rows do not show in the sum over a tensor. 1-bit LAMB notes no growth: its coefficient
/// shortens such steps, so it gained nothing.
///
/// `Options` has the members that moments_rule requires, bias_correction, max_step and
/// keeps_squares. State after the freeze: v, and the rank's own, 8 bytes per element; without
/// keeps_squares 1 / (sqrt(v) + eps), which is constant, 4 bytes.
template <Backend B, class Options>
class refreshing_rule : public moments_rule<B, Options> {
  using base = moments_rule<B, Options>;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true;

  void prepare(const layout& axis) {
    base::prepare(axis);
    n_tensors_ = axis.tensor_tiles().size();
    rho_ = make_rho(keeps_squares());
    const bool notes = notes_growth_ && keeps_squares();
    growth_ =
        to_buffer(backend_, std::vector<float>(notes ? detail::growth_arrays * n_tensors_ : 0));
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  /// Returns v, on the flat axis, of the last refresh; null while its inverse takes its place.
  [[nodiscard]] const float* variance() const { return inverted() ? nullptr : v_.data(); }
  /// Returns 1 / (sqrt(v) + eps), on the flat axis, if v is constant after the freeze; else null.
  [[nodiscard]] const float* inverse() const { return inverted() ? v_.data() : nullptr; }
  /// An average beside an exchange is a refresh, if v follows.
  [[nodiscard]] step_plan plan(const due& now, std::uint64_t, float) const {
    return detail::plan_without_local_steps(now, keeps_squares());
  }
  template <class At>
  void begin_step(const step_plan& plan, float, std::uint64_t, const At&) {
    refreshing_ = plan.refreshes();
  }
  [[nodiscard]] moments_updated updated(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average == averages::gradients || follows()};
  }
  /// True if messages are directions, m / (sqrt(v) + eps); false if they are momenta, m.
  [[nodiscard]] bool directions() const {
    return frozen_ && (options_.max_step > 0 || keeps_squares());
  }
  /// Returns the largest scale: `max_step` if messages are directions, else no bound.
  [[nodiscard]] scale_bound bound() const {
    return directions() ? scale_bound{static_cast<float>(options_.max_step)} : scale_bound{};
  }
  /// True if v follows in compressed steps.
  [[nodiscard]] bool keeps_squares() const { return options_.keeps_squares; }
  /// Returns the rank's own v, on the flat axis; null if all ranks have the same.
  [[nodiscard]] const float* own_variance() const { return own_.data(); }
  /// Returns the field that a refresh averages.
  [[nodiscard]] detail::own_squares_field own_squares(const detail::tensor_scalars* scalars) const {
    const detail::growth_state<const float> g = growth();
    return {own_.data(), v_.data(), scalars, g.weighted, g.unweighted};
  }
  /// Takes the layout of messages and the number of ranks. rho starts anew.
  void prepare_refreshes(const layout&, int n_ranks) {
    first_rho_ = 1.0F / static_cast<float>(n_ranks);
    rho_ = make_rho(keeps_squares());
  }
  /// Returns zeroed memory for v.
  [[nodiscard]] float_buffer make_variance() { return make_floats(); }
  /// Refreshes v, if it follows, by the mean over the ranks of an older job of `own_squares`. Only
  /// launches.
  template <class P, class G>
  void take_squares(const float_buffer& mean, const step_context<B, P, G>& at) {
    if (!follows()) return;
    bring_up_to_date(mean, at, v_.data(), own_.data());
    backend_.launch(growth().restart().launches(), growth().restart());
  }

  /// Writes v to `v`, as a refresh by `mean`, the mean over the ranks of `own_squares`, would bring
  /// it up to date; changes no state. `spare` is memory like `v`.
  template <class P, class G>
  void write_variance(const float_buffer& mean, const step_context<B, P, G>& at, float* v,
                      float* spare) {
    const detail::copy_kernel copy{v_.data(), v, v_.size()};
    backend_.launch(copy.launches(), copy);
    if (follows()) bring_up_to_date(mean, at, v, spare);
  }
  /// Writes the momentum to `m`, from a mean message and `v` of write_variance, from which it takes
  /// the inverse, if v is one.
  template <class View, class At>
  void write_moments(const View& mean, const At& at, float* m, float* v) {
    const bool inverse = inverted();
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{
                                      mean, at.tiles, at.active, m, inverse ? nullptr : v,
                                      inverse ? v : nullptr, at.scalars, directions(), true});
  }

  /// Returns the number of floats that travel beside v, for messages on `axis`.
  [[nodiscard]] static std::size_t n_floats_beside(const layout& axis) {
    return detail::refresh_floats::n_beside(axis);
  }
  /// Returns the number of floats of the work space that do not travel.
  [[nodiscard]] static std::size_t n_floats_at_home(const layout& axis) {
    return detail::refresh_floats::n_at_home(axis);
  }
  /// Returns the field of floats that travel beside v, which is computed into `work`. Reads the
  /// gradients; uses the first two arrays of `sums`.
  template <class P, class G>
  [[nodiscard]] flat_field floats_beside(const step_context<B, P, G>& at, float* work,
                                         std::size_t n_more = 0) {
    const detail::refresh_floats f(work, at.axis, n_more);
    backend_.launch(at.n_tiles(),
                    detail::gradient_sketch_kernel<P, G>{at.tiles, at.tensors, at.now, f.sketch,
                                                         at.sums, at.second_sums()});
    backend_.launch(n_tensors_, detail::own_sums_kernel{at.tensor_tiles, at.sums, at.second_sums(),
                                                        at.n_tiles(), f.own, f.total});
    return {work};
  }
  /// Computes the next rho and the estimated norm of the mean gradient from `mean`, the averaged
  /// floats beside v. `at_mean` has the layout of `mean`, `at` the layout of messages.
  template <class View, class P, class G>
  void take_floats_beside(const View& mean, const step_context<B, P, G>& at_mean,
                          const step_context<B, P, G>& at, step_scalars* now, float* work,
                          std::size_t n_more = 0) {
    const detail::refresh_floats f(work, at.axis, n_more);
    at_mean.launch(detail::take_beside_kernel<View>{mean, at_mean.tiles, work, now});
    at.launch(detail::mean_sketch_kernel{at.tiles, f.sketch, at.sums});
    at.launch(1, detail::mean_ratio_kernel{f.own, at.sums, f.total, n_tensors_, at.n_tiles(),
                                           f.model_rho, now});
    at.launch(n_tensors_, detail::next_rho_kernel{at.tiles, at.tensor_tiles, f.own, at.sums,
                                                  f.model_rho, rho_.data(), f.rho});
  }
  /// Updates v from `mean`, the mean of `own_squares` before this step, and this rank's own v from
  /// it and this step's gradient. Writes to `active` which elements are active from now on.
  /// `at_mean` has the layout of `mean`, `at` the layout of messages. One pass, 12 bytes per
  /// element and the gradients.
  template <class View, class P, class G>
  void refresh_variance(const View& mean, const step_context<B, P, G>& at_mean,
                        const step_context<B, P, G>& at, std::uint32_t* active, float* work,
                        std::size_t n_more = 0) {
    const detail::refresh_floats f(work, at.axis, n_more);
    at.launch(n_tensors_, detail::swap_rho_kernel{f.rho, rho_.data()});
    detail::direction_units started = units();
    started.growth = nullptr;  // no step has noted the squares of this one
    at_mean.launch(detail::refresh_variance_kernel<View, P, G>{
        mean, at_mean.tiles, at_mean.tensors, at_mean.scalars, at_mean.now, at_mean.active, active,
        f.rho, started, v_.data(), own_.data()});
    at.launch(growth().restart().launches(), growth().restart());
  }
  /// Returns the message of the compressed phase.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& previous,
                                                     const step_context<B, P, G>& at) const {
    return {previous, at.tensors, at.scalars, at.now, units()};
  }
  /// Archives the form of the state, and rho by tensor; frozen_ must be known. A reader throws
  /// checkpoint_error if checkpoint and rule disagree on the units of messages, or, with `differs`,
  /// on whether v follows.
  template <class Archive>
  void archive_form(Archive& a, bool differs) {
    bool keeps = keeps_squares(), sends_directions = directions();
    a.local(keeps);
    a.local(sends_directions);
    a.buffer(rho_, backend_, keeps ? n_tensors_ : 0);
    if (Archive::reading) {
      if ((differs || frozen_) && keeps != keeps_squares()) {
        throw checkpoint_error(detail::error_text(
            "checkpoint: its v is ", keeps ? "" : "not ",
            "refreshed after the dense steps, and here it ", keeps ? "would not" : "would",
            " be: set refreshes or keeps_squares as it was saved"));
      }
      if (frozen_ && sends_directions != directions()) {
        throw checkpoint_error(detail::error_text(
            "checkpoint: its ranks exchanged ", sends_directions ? "m / (sqrt(v) + eps)" : "m",
            ", and here they would exchange ", directions() ? "m / (sqrt(v) + eps)" : "m",
            ": load it with max_step and refreshes as it was saved with"));
      }
      if (keeps != keeps_squares()) rho_ = make_rho(keeps_squares());
    }
  }

  /// Archives the state that differs between ranks: the rank's own v.
  template <class Archive>
  void archive_own(Archive& a) {
    a.buffer(own_, backend_, follows() ? n_floats() : 0);
    if (follows()) a.buffer(growth_, backend_);
  }

 protected:
  /// `notes_growth`: false if the rule does not call `note_growth`.
  refreshing_rule(Options options, B backend, bool notes_growth = true)
      : base(options, std::move(backend)), notes_growth_(notes_growth) {}
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;
  /// True if each rank has a v of its own.
  [[nodiscard]] bool follows() const { return frozen_ && keeps_squares(); }
  /// True if v's inverse is in its place: while v is constant.
  [[nodiscard]] bool inverted() const { return frozen_ && !keeps_squares(); }
  /// The rank's own v, for the update of a step: null in a refresh, which computes it.
  [[nodiscard]] float* own() { return refreshing_ ? nullptr : own_.data(); }
  [[nodiscard]] detail::direction_units units() const {
    if (follows()) return {own_.data(), rho_.data(), growth().growth, nullptr};
    return {nullptr, nullptr, nullptr, directions() ? inverse() : nullptr};
  }
  /// Memory for the sums of a step's tiles.
  template <class P, class G>
  [[nodiscard]] static detail::growth_sums growth_sums(const step_context<B, P, G>& at) {
    return {at.second_sums(), at.third_sums()};
  }
  /// Notes how this rank's gradients have grown, after an update of its own v. Steps with a
  /// refresh, and local ones, keep the growth that was noted before.
  template <class P, class G>
  void note_growth(const step_context<B, P, G>& at) {
    if (!follows() || refreshing_) return;
    at.launch(n_tensors_, detail::growth_kernel{at.tensor_tiles, at.scalars, growth_sums(at),
                                                units(), growth()});
  }
  /// Starts the rank's own v from v; `own` is memory of make_variance.
  void start_own(float_buffer&& own) {
    const detail::copy_kernel copy{v_.data(), own.data(), v_.size()};
    own_ = std::move(own);
    backend_.launch(copy.launches(), copy);
    const detail::copy_kernel clear{nullptr, growth_.data(), growth_.size()};
    backend_.launch(clear.launches(), clear);
  }
  void forget_own() noexcept { own_ = {}; }

  bool frozen_ = false;
  bool refreshing_ = false;  ///< the step in progress is a refresh
  std::size_t n_tensors_ = 0;
  float_buffer rho_;     ///< by tensor, of the last refresh; before the first: -first_rho_
  float_buffer own_;     ///< the rank's own v, while v follows
  float_buffer growth_;  ///< see detail::growth_state

 private:
  [[nodiscard]] detail::growth_state<float> growth() { return {growth_.data(), growth_.size()}; }
  [[nodiscard]] detail::growth_state<const float> growth() const {
    return {growth_.data(), growth_.size()};
  }
  /// Refreshes `v` by the mean of `own_squares`, without this step's gradient; copies it to `own`.
  template <class P, class G>
  void bring_up_to_date(const float_buffer& mean, const step_context<B, P, G>& at, float* v,
                        float* own) {
    backend_.launch(at.n_tiles(), detail::refresh_variance_kernel<flat_field, P, G>{{mean.data()},
                                                                                    at.tiles,
                                                                                    at.tensors,
                                                                                    at.scalars,
                                                                                    at.now,
                                                                                    {},
                                                                                    nullptr,
                                                                                    rho_.data(),
                                                                                    {},
                                                                                    v,
                                                                                    own});
  }
  [[nodiscard]] float_buffer make_rho(bool kept) {
    return to_buffer(backend_, std::vector<float>(kept ? n_tensors_ : 0, -first_rho_));
  }

  bool notes_growth_;
  float first_rho_ = 1;  ///< 1 / W: of gradients that are noise, or that one rank alone has
};

/// Base of rules that freeze v after their dense steps, and then exchange directions, or momenta if
/// `directions` is false: 1-bit Adam and 1-bit LAMB.
template <Backend B, class Options>
class freezing_rule : public refreshing_rule<B, Options> {
  using base = refreshing_rule<B, Options>;

 public:
  using typename base::float_buffer;

  /// Ends the dense steps: fills `active`, and hands m over. Allocates before it changes anything.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    auto own = base::keeps_squares() ? base::make_variance() : float_buffer{};
    frozen_ = true;
    if (own.size() > 0) base::start_own(std::move(own));
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(), v_.data(),
                                                        base::inverted() ? v_.data() : nullptr,
                                                        active, base::directions()});
    return {std::move(m_), nullptr, at.scalars};
  }
  /// Returns to dense steps, with m from the previous mean message. Drops what residuals hold.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    auto m = base::make_floats();
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{previous, at.tiles, at.active, m.data(),
                                                            base::variance(),
                                                            base::inverted() ? v_.data() : nullptr,
                                                            at.scalars, base::directions()});
    m_ = std::move(m);
    base::forget_own();
    frozen_ = false;
  }
  /// Hands over the previous mean message, to an exchange that starts with v frozen.
  template <class View, class At>
  [[nodiscard]] initial_momentum<float_buffer> resume(const View& previous, const At& at) {
    auto m = base::make_floats();
    backend_.launch(at.n_tiles(), detail::flatten_kernel<View>{previous, at.tiles, m.data()});
    return {std::move(m), nullptr, at.scalars};
  }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + base::own_.bytes() + base::rho_.bytes() +
           base::growth_.bytes();
  }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    base::archive_form(a, false);
    a.buffer(m_, backend_, frozen_ ? 0 : base::n_floats());
    a.buffer(v_, backend_, base::n_floats());
  }

 protected:
  freezing_rule(Options options, B backend, bool notes_growth = true)
      : base(options, std::move(backend), notes_growth) {}
  using base::backend_, base::m_, base::v_, base::frozen_;
};

}}  // namespace onebit
