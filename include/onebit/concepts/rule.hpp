// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <utility>

/// What arithmetic a step is.
namespace onebit { inline namespace v0_3 {

/// Upper bound of the scales in a message, or in a mean of messages; a sum of k messages has k
/// times the bound. The residual keeps what a bounded scale does not send.
struct scale_bound {
  float most = 0;                  ///< 0: no bound
  const float* factors = nullptr;  ///< by tensor: multiply `most`; null: all 1
};

/// Defaults of a Rule: a base for rules that need not define all members.
struct rule_defaults {
  static constexpr bool local_steps = false;    ///< has steps without communication: a LocalRule
  static constexpr bool accumulates = false;    ///< the exchange sums the messages of local steps
  static constexpr bool refreshes = false;      ///< is a RefreshingRule
  static constexpr bool takes_moments = false;  ///< has take(m, v), for optimizer::start_from
  /// Has momentum(), variance(), write_variance and write_moments, for optimizer::moments.
  static constexpr bool gives_moments = false;
  static constexpr bool has_moments = false;  ///< has betas and eps, which groups may override
  [[nodiscard]] moments own_moments() const { return {}; }  ///< the rule's betas and eps
  /// Returns which moments a step with this plan updates, and if their bias is corrected.
  [[nodiscard]] moments_updated updated(const step_plan&) const { return {}; }
  /// Limit of the global norm, to which gradients are clipped; 0: no clipping.
  [[nodiscard]] double max_grad_norm() const { return 0; }
  /// Makes the plan of a step from what is due, the step's number and lr. Changes nothing. Not
  /// asked with one rank: all steps are dense then. A LocalRule must write its own.
  [[nodiscard]] step_plan plan(const due& now, std::uint64_t, float) const {
    return detail::plan_without_local_steps(now, false);
  }
  /// Called at the start of a step, with its plan, lr, number and context, after any `freeze`.
  /// Gradients may not be ready; `now` is of the previous step. May throw.
  template <class At>
  void begin_step(const step_plan&, float, std::uint64_t, const At&) {}
  /// True if the host must know whether the step in progress is kept, even if that means to wait.
  [[nodiscard]] bool needs_outcome() const { return false; }
  /// Called after each step, with its plan and lr, unless all ranks are known to have skipped it.
  void done(const step_plan&, float) {}
  /// True after `freeze`, until `thaw`. Each FreezingRule must define this.
  [[nodiscard]] bool frozen() const { return false; }
  /// Upper bound of the scales of this rule's messages.
  [[nodiscard]] scale_bound bound() const { return {}; }
};

/// The arithmetic of an optimizer. A rule never communicates. `at` is a step_context
/// (kernel/context.hpp): everything that a rule sees of the step.
template <class R>
concept Rule = requires(R r, const R fixed, const layout& axis,
                        const detail::any_step_context<R>& at, const detail::any_field& field,
                        detail::any_archive a, const step_plan& plan) {
  requires Backend<typename R::backend_type>;
  r.backend();                // the backend that runs the rule's kernels
  r.prepare(axis);            // allocates the state; called once, before the first step
  fixed.gradient(at);         // returns the message that dense steps average: the local gradient
  r.dense_update(field, at);  // dense step from the mean gradient
  { fixed.state_bytes() } -> std::convertible_to<std::size_t>;  // memory of the lasting state
  r.archive(a);  // passes the lasting state to `a`, for checkpoints: see schedule_defaults
  // the members from here on: see rule_defaults
  { R::has_moments&& R::takes_moments&& R::gives_moments } -> std::convertible_to<bool>;
  { fixed.own_moments() } -> std::same_as<moments>;
  { fixed.updated(plan) } -> std::same_as<moments_updated>;
  { fixed.max_grad_norm() } -> std::convertible_to<double>;
  { fixed.plan(due{}, std::uint64_t{}, 0.0F) } -> std::same_as<step_plan>;
  r.begin_step(plan, 0.0F, std::uint64_t{}, at);
  { fixed.needs_outcome() } -> std::convertible_to<bool>;
  r.done(plan, 0.0F);
  { fixed.frozen() } -> std::convertible_to<bool>;
  { fixed.bound() } -> std::same_as<scale_bound>;
};

namespace detail {

/// A rule whose messages are exchanged. `previous` is the mean message of the last kept exchange.
/// After a freeze or a resume it is 0 at first: the residual then holds the momentum handed over.
template <class R>
concept ExchangeRule = Rule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& latest, const detail::any_field& previous) {
  fixed.message(previous, at);  // returns this rank's message; called and read several times a step
  // Makes the step from `latest`, the mean message. The first kernel that changes state which
  // `message` reads must run through update(kernel), which finishes the message of a tile first.
  r.compressed_update(latest, previous, at, detail::any_visitor{});
};

}  // namespace detail

/// A rule that hands its momentum over, and may freeze v, when the dense steps end. A
/// rule without v need not freeze.
template <class R>
concept FreezingRule = detail::ExchangeRule<R> &&
    requires(R r, const detail::any_step_context<R>& at, std::uint32_t* active) {
  // Returns the momentum, as initial_momentum, and sets the bits of active elements (for all:
  // all_active_kernel). Allocates before it changes anything: if it throws, the next step retries.
  r.freeze(active, at);
};

/// A rule in which each rank has a v of its own in compressed steps, from its own gradients. A
/// refresh brings v up to date with the mean of what the ranks' own v have taken in, `own_squares`,
/// and averages some floats beside (sketches of gradients). It may make elements active. `work` is
/// memory for refresh_floats (rule/sketch.hpp), kept through the step.
template <class R>
concept RefreshingRule = detail::ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& mean, std::uint32_t* active, float* work,
             detail::any_archive a) {
  { fixed.own_variance() } -> std::convertible_to<bool>;  // false: v is never refreshed
  { R::n_floats_beside(at.axis) } -> std::convertible_to<std::size_t>;   // floats that travel
  { R::n_floats_at_home(at.axis) } -> std::convertible_to<std::size_t>;  // floats that do not
  r.prepare_refreshes(at.axis, 1);  // takes the layout of messages and the number of ranks
  { fixed.has_own_variance() } -> std::convertible_to<bool>;  // true: this rank has a v of its own
  fixed.own_squares();                                        // returns the field to average
  // refreshes v from the mean of `own_squares` over an old job's ranks, on the flat axis;
  // overwrites it
  r.refresh_from_old_job(std::declval<decltype(r.backend().template make_buffer<float>(1))&>(), at);
  r.floats_beside(at, work);  // returns the field of floats to average beside
  // the first context has the layout of `mean`, the second the layout of messages
  r.take_floats_beside(mean, at, at, std::declval<step_scalars*>(), work);  // before updates
  r.refresh_variance(mean, at, at, active, work);  // after updates: v and the next `active`
  r.archive_own(a);                                // archives the state that differs between ranks
};

/// A rule with steps without communication, which each rank makes from its own gradient.
template <class R>
concept LocalRule = detail::ExchangeRule<R> && R::local_steps &&
    requires(R r, const detail::any_step_context<R>& at, const detail::any_field& gradient,
             const step_plan& plan) {
  r.local_step(plan, at);           // step without an exchange
  r.update_variance(gradient, at);  // v alone, from the mean gradient, beside another update
};

/// A rule that can resume from a job with another number of ranks. For each rank of the old job a
/// rule R(options, backend) reads a checkpoint (with `given_directions()` as a third argument,
/// if it has them); one of these rules then moves to the new optimizer. `resume` and `thaw`
/// allocate before they change anything.
template <class R>
concept ResumingRule = detail::ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_field& previous,
             const detail::any_step_context<R>& at) {
  R(fixed.options(), r.backend());
  // Returns the initial_momentum of the new exchange, on the flat axis: never empty, but zeros if
  // the rule keeps its momentum. In a LocalRule `resume` returns nothing, is called only if the old
  // or the new job has one rank, and makes the current parameters the start.
  r.resume(previous, at);
  // returns to dense steps, if the new job has one rank; a LocalRule has no `thaw`
  requires R::local_steps || requires { r.thaw(previous, at); };
};

}}  // namespace onebit
