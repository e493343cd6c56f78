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
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/own_variance.hpp>
#include <onebit/rule/sketch.hpp>
#include <utility>
#include <vector>

/// Bases of rules in which each rank has a v of its own in compressed steps, which refreshes
/// average.
namespace onebit { inline namespace v0_3 {

/// Message with the next local momentum: base + beta1 m + (1 - beta1) g, m the previous mean
/// message and g in `units`. The sum starts from the base, so that a momentum gives the same bits
/// whether the base holds beta1 m or the previous mean is m.
template <class View, class P, class G>
struct momentum_message {
  static constexpr bool single_word = detail::SingleWordField<View> || requires { View::n_slots; };
  static constexpr bool short_of_registers = detail::is_any<G>;  ///< sm_80, sm_100 spilled a mask
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
    bool kept = false;  ///< the step is kept: gradients need no check
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = in_units(k, kept ? gradient.load_kept(k) : gradient.load(k));
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

/// Base of rules whose ranks have a v of their own (docs/variance.md). In compressed steps no rank
/// knows the mean gradient. Each rank updates a v of its own from its own gradients, v_r <- beta2
/// v_r + rho^2 (1 - beta2) g_r^2, and divides by it. A refresh, k steps after the last one,
/// averages what the ranks' v have taken in: v <- beta2^k v + rho mean q_r, q_r the rank's squares
/// since then, weighted as in v. The ranks' own v start from v.
///
/// rho, by tensor, is the squared norm of the mean gradient over the mean of the ranks' squared
/// norms: 1 if all gradients are equal, 1/W if they are independent noise. Refreshes estimate it
/// from sketches. A rank's squares have the weight rho in v, and rho^2 in its own v: one rank alone
/// may have the gradients of an element that v does not know yet, and its share of the mean, 1/W,
/// makes a first step as long as Adam's only if its squares count 1/W^2.
///
/// Where a rank's squares of a whole tensor exceed what its v expects tenfold, its gradients have
/// grown at once. From the next step on its squares count rho, as in v, until its v has caught up:
/// with rho^2 all steps up to the refresh would be up to 1 / sqrt(rho) too long. The refresh counts
/// them rho^2, as all others. Each rank decides from its own gradients, which costs no traffic.
/// Rare rows do not show in the sum over a tensor. 1-bit LAMB notes no growth: its coefficient
/// shortens such steps, so it gained nothing.
///
/// `Options` has the members that moments_rule requires, and bias_correction. State after the
/// freeze: v and the rank's squares since the last refresh, in bf16 (rule/own_variance.hpp), 4
/// bytes per element; if v is constant, 1 / (sqrt(v) + eps) in floats.
template <Backend B, class Options>
class refreshing_rule : public moments_rule<B, Options> {
  using base = moments_rule<B, Options>;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true, gives_moments = true;

  void prepare(const layout& axis) {
    base::prepare(axis);
    n_tensors_ = axis.tensor_tiles().size();
    rho_ = make_rho(own_variance());
    const bool notes = notes_growth_ && own_variance();
    growth_ =
        to_buffer(backend_, std::vector<float>(notes ? detail::growth_arrays * n_tensors_ : 0));
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  /// Returns v in floats, on the flat axis; null once each rank has its own, or v's inverse takes
  /// its place.
  [[nodiscard]] const float* variance() const { return inverted() ? nullptr : v_.data(); }
  /// Returns v of the last refresh, in bf16 on the flat axis, if this rank has a v of its own; else
  /// null.
  [[nodiscard]] const bf16* agreed_variance() const { return own_.v.data(); }
  /// Returns 1 / (sqrt(v) + eps), on the flat axis, if v is constant after the freeze; else null.
  [[nodiscard]] const float* inverse() const { return inverted() ? v_.data() : nullptr; }
  /// An average beside an exchange is a refresh, if ranks have a v of their own.
  [[nodiscard]] step_plan plan(const due& now, std::uint64_t, float) const {
    return detail::plan_without_local_steps(now, own_variance());
  }
  template <class At>
  void begin_step(const step_plan& plan, float, std::uint64_t, const At&) {
    refreshing_ = plan.refreshes();
  }
  [[nodiscard]] moments_updated updated(const step_plan& plan) const {
    return {options_.bias_correction, true,
            plan.average == averages::gradients || has_own_variance()};
  }
  /// True if messages are directions, m / (sqrt(v) + eps); false if they are momenta, m.
  [[nodiscard]] bool directions() const {
    return frozen_ && (directions_.max_step > 0 || own_variance());
  }
  /// Returns the largest scale: `max_step` if messages are directions, else no bound.
  [[nodiscard]] scale_bound bound() const {
    return directions() ? scale_bound{static_cast<float>(directions_.max_step)} : scale_bound{};
  }
  /// Returns the options that the rule was given for its directions.
  [[nodiscard]] const direction_options& given_directions() const { return directions_; }
  /// True if each rank has a v of its own in compressed steps; false if v is constant there.
  [[nodiscard]] bool own_variance() const { return directions_.own_variance; }
  /// True if each rank has a v of its own now.
  [[nodiscard]] bool has_own_variance() const { return frozen_ && own_variance(); }
  /// Returns the field that a refresh averages.
  [[nodiscard]] detail::own_squares_field own_squares() const {
    const detail::growth_state<const float> g = growth();
    return {own_.since.data(), g.weighted, g.unweighted};
  }
  /// Takes the layout of messages and the number of ranks. rho starts anew.
  void prepare_refreshes(const layout&, int n_ranks) {
    first_rho_ = 1.0F / static_cast<float>(n_ranks);
    rho_ = make_rho(own_variance());
  }
  /// Refreshes v, if ranks have their own, by the mean over the ranks of an older job of
  /// `own_squares`. Overwrites `mean`. Only launches.
  template <class P, class G>
  void refresh_from_old_job(float_buffer& mean, const step_context<B, P, G>& at) {
    if (!has_own_variance()) return;
    write_refreshed(mean, at, mean.data());
    launch_start(at, mean.data(), own_);
    backend_.launch(growth().restart().launches(), growth().restart());
  }

  /// Writes v to `v`, as a refresh by `mean`, the mean over the ranks of `own_squares`, would bring
  /// it up to date; changes no state.
  template <class P, class G>
  void write_variance(const float_buffer& mean, const step_context<B, P, G>& at, float* v) {
    if (has_own_variance()) return write_refreshed(mean, at, v);
    const detail::copy_kernel copy{v_.data(), v, v_.size()};
    backend_.launch(copy.launches(), copy);
  }
  /// Writes the momentum to `m`, from a mean message and `v` as write_variance wrote it. If that is
  /// v's inverse, replaces it by v.
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
  /// `at_mean` has the layout of `mean`, `at` the layout of messages. One pass, 6 bytes per
  /// element, the mean and the gradients.
  template <class View, class P, class G>
  void refresh_variance(const View& mean, const step_context<B, P, G>& at_mean,
                        const step_context<B, P, G>& at, std::uint32_t* active, float* work,
                        std::size_t n_more = 0) {
    const detail::refresh_floats f(work, at.axis, n_more);
    at.launch(n_tensors_, detail::swap_rho_kernel{f.rho, rho_.data()});
    detail::direction_units started = units();
    started.growth = nullptr;  // no step has noted the squares of this one
    at_mean.launch(
        detail::refresh_variance_kernel<View, P, G>{{mean, own_.v.data(), at_mean.scalars, f.rho},
                                                    at_mean.tiles,
                                                    at_mean.tensors,
                                                    at_mean.now,
                                                    at_mean.active,
                                                    active,
                                                    started,
                                                    own_.v.data(),
                                                    own_.since.data()});
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
  /// on whether ranks have a v of their own.
  template <class Archive>
  void archive_form(Archive& a, bool differs) {
    bool keeps = own_variance(), sends_directions = directions();
    a.local(keeps);
    a.local(sends_directions);
    a.buffer(rho_, backend_, keeps ? n_tensors_ : 0);
    if (Archive::reading) {
      if ((differs || frozen_) && keeps != own_variance()) {
        throw checkpoint_error(detail::error_text(
            "checkpoint: its v is ", keeps ? "" : "not ",
            "refreshed after the dense steps, and here it ", keeps ? "would not" : "would",
            " be: set refreshes or own_variance as it was saved"));
      }
      if (frozen_ && sends_directions != directions()) {
        throw checkpoint_error(detail::error_text(
            "checkpoint: its ranks exchanged ", sends_directions ? "m / (sqrt(v) + eps)" : "m",
            ", and here they would exchange ", directions() ? "m / (sqrt(v) + eps)" : "m",
            ": load it with max_step and refreshes as it was saved with"));
      }
      if (keeps != own_variance()) rho_ = make_rho(own_variance());
    }
  }

  /// Archives v, and whether it is one for all ranks, in floats, or each rank's own; frozen_ must
  /// be known.
  template <class Archive>
  void archive_variance(Archive& a) {
    a.buffer(v_, backend_, has_own_variance() ? 0 : n_floats());
    a.buffer(own_.v, backend_, has_own_variance() ? n_floats() : 0);
  }

  /// Archives the state that differs between ranks: the rank's squares.
  template <class Archive>
  void archive_own(Archive& a) {
    a.buffer(own_.since, backend_, has_own_variance() ? n_floats() : 0);
    if (has_own_variance()) a.buffer(growth_, backend_);
  }

 protected:
  /// Memory of detail::direction_units: see there.
  struct own_buffers {
    buffer_of<B, bf16> v, since;
    [[nodiscard]] std::size_t bytes() const { return v.bytes() + since.bytes(); }
  };
  /// `notes_growth`: false if the rule does not call `note_growth`.
  refreshing_rule(Options options, B backend, direction_options directions,
                  bool notes_growth = true)
      : base(options, std::move(backend)), directions_(directions), notes_growth_(notes_growth) {
    validate(directions);
  }
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;
  /// True if v's inverse is in its place: while v is constant.
  [[nodiscard]] bool inverted() const { return frozen_ && !own_variance(); }
  /// True if the update of a step takes its gradients into the rank's squares: a refresh does so
  /// itself.
  [[nodiscard]] bool update_takes_squares() const { return has_own_variance() && !refreshing_; }
  [[nodiscard]] detail::direction_units units() const {
    if (has_own_variance()) return {own_.v.data(), own_.since.data(), rho_.data(), growth().growth};
    return {directions() ? inverse() : nullptr};
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
    if (!update_takes_squares()) return;
    at.launch(n_tensors_, detail::growth_kernel{at.tensor_tiles, at.scalars, growth_sums(at),
                                                units(), growth()});
  }
  [[nodiscard]] own_buffers make_own() {
    return {backend_.template make_buffer<bf16>(n_floats()),
            backend_.template make_buffer<bf16>(n_floats())};
  }
  /// Starts the rank's own v from v, which is freed. `own` is memory of make_own.
  template <class At>
  void start_own(own_buffers&& own, const At& at) {
    own_ = std::move(own);
    launch_start(at, v_.data(), own_);
    v_ = {};
    const detail::copy_kernel clear{nullptr, growth_.data(), growth_.size()};
    backend_.launch(clear.launches(), clear);
  }
  /// Ends the rank's own v: v of the last refresh goes to `v`, memory of make_floats.
  template <class At>
  void end_own(float_buffer&& v, const At& at) {
    backend_.launch(at.n_tiles(), detail::widen_kernel{at.tiles, own_.v.data(), v.data()});
    v_ = std::move(v);
    own_ = {};
  }

  direction_options directions_;
  bool frozen_ = false;
  bool refreshing_ = false;  ///< the step in progress is a refresh
  std::size_t n_tensors_ = 0;
  float_buffer rho_;     ///< by tensor, of the last refresh; before the first: -first_rho_
  own_buffers own_;      ///< the rank's own v, in place of v_, once it has one
  float_buffer growth_;  ///< see detail::growth_state

 private:
  [[nodiscard]] detail::growth_state<float> growth() { return {growth_.data(), growth_.size()}; }
  [[nodiscard]] detail::growth_state<const float> growth() const {
    return {growth_.data(), growth_.size()};
  }
  /// Writes v as a refresh by the mean of `own_squares` makes it, without this step's gradient.
  template <class P, class G>
  void write_refreshed(const float_buffer& mean, const step_context<B, P, G>& at, float* v) {
    const detail::refreshed_variance<flat_field> refreshed{
        {mean.data()}, own_.v.data(), at.scalars, rho_.data()};
    backend_.launch(at.n_tiles(),
                    detail::write_variance_kernel<flat_field>{refreshed, at.tiles, v});
  }
  template <class At>
  void launch_start(const At& at, const float* from, own_buffers& own) {
    backend_.launch(at.n_tiles(),
                    detail::start_own_kernel{at.tiles, from, own.v.data(), own.since.data()});
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
    const bool has_own = base::own_variance();
    auto own = has_own ? base::make_own() : typename base::own_buffers{};
    frozen_ = true;
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(), v_.data(),
                                                        base::inverted() ? v_.data() : nullptr,
                                                        active, base::directions()});
    if (has_own) base::start_own(std::move(own), at);
    return {std::move(m_), nullptr, at.scalars};
  }
  /// Returns to dense steps, with m from the previous mean message. Drops what residuals hold.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    auto m = base::make_floats();
    if (base::has_own_variance()) base::end_own(base::make_floats(), at);
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{previous, at.tiles, at.active, m.data(),
                                                            base::variance(),
                                                            base::inverted() ? v_.data() : nullptr,
                                                            at.scalars, base::directions()});
    m_ = std::move(m);
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
    base::archive_variance(a);
  }

 protected:
  freezing_rule(Options options, B backend, direction_options directions, bool notes_growth = true)
      : base(options, std::move(backend), directions, notes_growth) {}
  using base::backend_, base::m_, base::v_, base::frozen_;
};

}}  // namespace onebit
