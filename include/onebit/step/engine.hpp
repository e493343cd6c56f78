// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/stateful_exchange.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/concepts/schedule.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/clipping.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/model_parallel.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/step/watch.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// State that lasts from step to step.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Explains why a step cannot use these numbers; empty if the step can.
[[nodiscard, gnu::cold]] inline std::string why_not_numbers(std::uint64_t step, float lr,
                                                            float largest_lr_factor,
                                                            float inverse_loss_scale,
                                                            const communicator& comm) {
  const bool is_rate = lr == 0 || (lr > 0 && std::isnormal(lr));
  if (!is_rate || !std::isfinite(lr * largest_lr_factor)) {
    return error_text("optimizer: step ", step, " with lr ", lr, " and lr_factor up to ",
                      largest_lr_factor,
                      "; lr must be 0 or positive, at least 1.2e-38, and finite ",
                      "times each factor", comm.where());
  }
  if (!std::isfinite(inverse_loss_scale) || !(inverse_loss_scale > 0)) {
    return error_text("optimizer: step ", step, " with inverse loss scale ", inverse_loss_scale,
                      "; must be finite and positive", comm.where());
  }
  return {};
}

template <class B, class R, bool Refreshes>
class variance_refresh;  // step/refresh.hpp

/// Parts and state of an optimizer: communicator, the trainer's tensors, a rule R, a schedule S,
/// the exact average of gradients, and the compressed exchange that the policy C makes.
/// step_in_progress.hpp runs steps over an engine.
template <class R, class S, class C, class P, class G>
struct engine {
  using backend_type = typename R::backend_type;
  using B = backend_type;
  using param_type = P;
  using gradient_type = G;
  static_assert(Rule<R>,
                "onebit: this type is no Rule: derive from rule_defaults and write backend_type, "
                "backend(), prepare(axis), gradient(at), dense_update(mean, at), state_bytes() and "
                "archive(a), as in onebit/rule/adam.hpp");
  static_assert(Schedule<S>,
                "onebit: this type is no Schedule: derive from schedule_defaults and write "
                "due due_in(step, lr) const");
  static_assert(
      !S::compresses ||
          requires(const R r, const detail::any_field& previous,
                   const detail::any_step_context<R>& at) { r.message(previous, at); },
      "onebit: this schedule exchanges, but the rule has no message(previous, at) const");
  static_assert(
      !S::compresses ||
          requires(R r, const detail::any_field& f, const detail::any_step_context<R>& at) {
            r.compressed_update(f, f, at, detail::any_visitor{});
          },
      "onebit: this schedule exchanges, but the rule has no "
      "compressed_update(latest, previous, at, update)");
  static_assert(
      !R::refreshes || RefreshingRule<R>,
      "onebit: this rule says `refreshes`, but is no RefreshingRule: derive from refreshing_rule, "
      "as in onebit/rule/zero_one_adam.hpp");
  static_assert(!R::local_steps || LocalRule<R>,
                "onebit: this rule says `local_steps`, but is no LocalRule: write "
                "local_step(plan, at) and update_variance(mean, at); dense_update is a whole step");
  // names of 0.3, which would be taken for nothing
  static_assert(
      !requires(R r, const detail::any_field& f, const detail::any_step_context<R>& at) {
        r.dense_step(f, at);
      },
      "onebit: dense_step of a rule is now dense_update, and its dense_update update_variance");
  static_assert(
      !requires(typename C::template exchange<B> x, const detail::any_field& f,
                const exchange_args<store_at_encode>& t) { x.settle(f, t); },
      "onebit: settle of an exchange is now fold_in");
  using exchange_type = stateful_exchange<typename C::template exchange<B>>;
  using mask_buffer = typename exchange_type::mask_buffer;
  static constexpr bool splits = C::splits;  ///< a rank may send on what others sent
  static constexpr bool scratch_gradients =
      detail::mean_destination<P, G>::in_gradients;  ///< for means
  using gradient_squares = detail::squares_kernel<gradient_message<P, G>>;
  static constexpr bool refreshes = R::refreshes && S::compresses;
  using refresh_type = variance_refresh<B, R, refreshes>;
  /// Memory needs of an exchange that starts from a momentum, and of one that starts from zeros.
  static constexpr exchange_memory from_momentum{
      .previous = !R::local_steps, .accumulates = R::accumulates, .compensated = R::local_steps};
  static constexpr exchange_memory from_nothing{.previous = !R::local_steps,
                                                .accumulates = R::accumulates};

  /// Collective: throws on all ranks if one rejects its input.
  [[gnu::cold]] engine(const std::vector<param_group<P, G>>& groups, communicator w, R own_rule,
                       S own_schedule, const C& collective, dense_sum sum)
      : comm(std::move(w)),
        rule(std::move(own_rule)),
        tensors(detail::collective_try(comm,
                                       [&] {
                                         detail::check_streams(comm, rule.backend());
                                         return detail::flat_tensors<P, G>(groups, comm.where());
                                       }),
                rule.backend()),
        schedule(std::move(own_schedule)),
        policy(collective),
        average(detail::collective_try(
            comm,
            [&] {
              return decltype(average)(resolved<G>(sum), comm, rule.backend(), tensors.sizes,
                                       buckets_of_means(tensors.sizes, collective.bucket_elements));
            })),
        exchange(bind(collective)),
        refresh(detail::collective_try(comm,
                                       [&] {
                                         return refresh_type(comm, rule, tensors.sizes,
                                                             exchange.axis(),
                                                             collective.bucket_elements);
                                       })),
        scalars(to_buffer(rule.backend(), std::vector<step_scalars>(1))),
        announced(tensors.size(), 0) {
    detail::collective_try(comm, [&] {
      for (std::size_t g = 0; g < tensors.options.size(); ++g) {
        tensors.set_group(g, tensors.options[g], rule, comm.where());
      }
    });
    tensors.built = true;
  }

  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return rule.state_bytes() + exchange.state_bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return tensors.bytes() + average.work_bytes() + refresh.work_bytes() + exchange.work_bytes();
  }
  /// Explains why the next step cannot use these numbers; empty if the step can.
  [[nodiscard]] std::string why_not(float lr, float inverse_loss_scale) const {
    return detail::why_not_numbers(step, lr, tensors.largest_lr_factor(), inverse_loss_scale, comm);
  }
  /// Digest of the numbers that must be equal on all ranks, in a step and the local steps before.
  [[nodiscard, gnu::cold]] std::uint32_t digest_of(float lr, float inverse_loss_scale,
                                                   const step_plan& plan) const {
    digest d;
    visit_agreed_numbers(lr, inverse_loss_scale, plan, [&](auto x) { d.add(x); });
    return static_cast<std::uint32_t>(d.value() ^ d.value() >> 32U);
  }
  /// Calls add(x) for each number in `digest_of`, in the order of `agreed_number_name`.
  template <class F>
  [[gnu::cold]] void visit_agreed_numbers(float lr, float inverse_loss_scale, const step_plan& plan,
                                          const F& add) const {
    add(lr);
    add(inverse_loss_scale);
    add(static_cast<int>(plan.update));
    add(static_cast<int>(plan.average));
    add(plan.dense_steps_ended ? 1 : 0);
    tensors.visit_agreed_numbers(add);
    add(local_steps_digest);
    add(given_digest);
  }
  [[nodiscard, gnu::cold]] std::string agreed_number_name(std::size_t i) const {
    constexpr const char* names[] = {"lr", "the inverse loss scale", detail::update_of_plan,
                                     detail::average_of_plan, "whether the dense steps have ended"};
    constexpr std::size_t n = std::size(names);
    return i < n ? names[i] : tensors.agreed_number_name(i - n);
  }
  /// Allocates state once the ranks have agreed. `number`: of the optimizer, equal on all ranks.
  [[gnu::cold]] void begin_after_agreement(std::uint32_t number) {
    const step_scalars s = detail::first_scalars(comm, number);
    backend().copy_in(now(), &s, 1);
    rule.prepare(average.axis());
    if constexpr (refreshes) rule.prepare_refreshes(exchange.axis(), comm.size());
    if constexpr (LocalRule<R>) {
      if (exchange.travels()) start_compressed();
    }
  }

  [[nodiscard]] B& backend() { return rule.backend(); }
  /// Waits for the transport, which has a deadline: otherwise the host could wait forever for a
  /// lost rank. Does nothing unless the backend is deferred.
  void wait() {
    if (B::deferred) {
      comm.wait();
      model_parts.wait();
    }
  }
  /// Waits, and copies the step's numbers to the host.
  [[nodiscard]] step_scalars fetch() {
    wait();
    step_scalars s;
    backend().copy_out(&s, now(), 1);
    return s;
  }
  /// True if all ranks have equal parameters: not between exchanges with local steps. May wait.
  [[nodiscard]] bool ranks_alike() {
    if constexpr (B::deferred && requires { rule.between_exchanges(); }) {
      wait();
      return alike && !rule.between_exchanges();
    }
    return alike;
  }
  [[nodiscard]] step_scalars* now() { return scalars.data(); }
  [[nodiscard]] active_mask mask() const { return exchange.mask(); }
  /// Step context for a rule, on the axis of the average.
  [[nodiscard]] step_context<B, P, G> at_average(active_mask elements = {}) {
    return average.sender().at(tensors.table.data(), tensors.scalars.data(), now(), elements);
  }
  /// Step context for a rule, on the axis of the exchange.
  [[nodiscard]] step_context<B, P, G> at() {
    return exchange.sender().at(tensors.table.data(), tensors.scalars.data(), now(), mask());
  }
  /// Arguments of the exchange in this step.
  [[nodiscard]] auto exchange_args() { return exchange.args(now(), mask(), rule.bound()); }
  /// Returns the next plan, equal on all ranks; dense if there is no other rank (or node).
  [[nodiscard]] step_plan plan(float lr) const {
    return exchange.travels() ? rule.plan(schedule.due_in(step, lr), step, lr) : step_plan{};
  }
  /// Opens a step: prepares options, phase and rule, and returns the plan. `refusal`: why the
  /// step's numbers cannot be used, if so. Throws it if no other rank waits for this step.
  [[nodiscard, gnu::cold]] step_plan open_step(float lr, const std::string& refusal) {
    model_parts.begin_step();
    const step_plan next = plan(lr);
    const bool sends = !next.sends_nothing() && comm.size() > 1;
    if (!refusal.empty() && !sends) throw invalid_input(refusal);
    tensors.take_options(backend());
    try {
      enter_phase(next);
      rule.begin_step(next, lr, step, at());
    } catch (const invalid_input&) {
      if (!refusal.empty()) throw invalid_input(refusal);
      throw;
    }
    return next;
  }
  /// Prepares a step with this plan: freezes the rule, starts the exchange, allocates averages.
  /// Allocates before it changes anything. Throws invalid_input if the rule has no such step.
  [[gnu::cold]] void enter_phase([[maybe_unused]] const step_plan& plan) {
    if constexpr (S::compresses) {
      require_possible(plan);
      if constexpr (FreezingRule<R>) {
        if (plan.dense_steps_ended && !rule.frozen()) freeze();
      }
      if (plan.update == update_from::exchange && !exchange.started()) start_compressed();
      if (plan.refreshes() && refresh.prepare(*this)) ++graph_epoch;
    }
    if (plan.averages_gradients() && average.prepare(mean_destination_in(plan))) {
      ++graph_epoch;
    }
  }
  /// Returns from the compressed phase to dense steps, on a single rank.
  [[gnu::cold]] void thaw() {
    // right after a refresh elements may have become active: a mask without a bit drops the mean
    const auto none = averaged_squares ? exchange.make_mask() : mask_buffer{};
    rule.thaw(exchange.previous(averaged_squares ? active_mask{none.data()} : mask()), at());
    exchange.start({}, {});  // frees its memory
    exchange.active() = {};
  }
  /// Counts a step that is kept, or may be.
  void count_step(const step_plan& plan, float lr) {
    local_steps_digest =
        plan.sends_nothing() ? digest_of(lr, 1, plan) : 0;  // loss scales may differ there
    if (lr > 0) last_lr = lr;
    alike = plan.update != update_from::own_gradient;
    averaged_squares = plan.refreshes();
    ++step;
  }
  /// Frees the memory of averages, after the last step for a while that averages gradients.
  void release_averages_memory() noexcept {
    release_averages();
    ++graph_epoch;
  }

  /// Destination of means in a step with this plan: the gradients, unless the step rereads them.
  [[nodiscard]] detail::mean_destination<P, G> mean_destination_in(const step_plan& plan) const {
    const bool once_more =
        R::local_steps ? exchange.travels() : plan.update == update_from::exchange;
    return {scratch_gradients && !once_more ? tensors.table.data() : nullptr};
  }
  [[nodiscard]] auto mean(const step_plan& plan) {
    return average.latest(now(), mean_destination_in(plan));
  }
  /// Message of the exact average.
  [[nodiscard]] auto mean_message() { return rule.gradient(at_average()); }
  /// Reads or writes all lasting state (old_job::adopt takes it over by hand). If reading throws, a
  /// reader restores it; else call `adopt`.
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a) {
    a.scalar(step);
    a.scalar(last_lr);
    a.scalar(averaged_squares);
    a.scalar(given_moments);
    archive_averages(a);
    schedule.archive(a);
    rule.archive(a);
    if constexpr (refreshes) rule.archive_own(a);
    if constexpr (S::compresses) {
      exchange.archive(a, from_nothing);
    }
    if (Archive::reading) {
      const bool fits = R::local_steps    ? exchange.started() == exchange.travels()
                        : FreezingRule<R> ? exchange.started() == rule.frozen()
                                          : true;
      constexpr const char* what = "checkpoint: its rule and its exchange are in different phases";
      if (S::compresses && !fits) throw checkpoint_error(detail::error_text(what));
      if (exchange.started()) exchange.allocate_undo(from_nothing);
    }
  }
  /// Throws invalid_input or checkpoint_error if the group options that were read cannot be used.
  [[gnu::cold]] void check_read(resume_with with) const {
    if (with == resume_with::same_options) tensors.check_saved(rule, comm.where());
  }
  /// With the same options: sets the groups to the options that were read.
  [[gnu::cold]] void restore_options(resume_with with) {
    if (with == resume_with::same_options) tensors.restore_saved(rule);
  }
  [[gnu::cold]] void adopt() {
    if (exchange.active().size() > 0) exchange.count_active(mask());
    release_averages();
    refresh.forget();
    local_steps_digest = 0;
    given_digest = 0;
    alike = !R::local_steps;
    ++graph_epoch;
    if constexpr (requires(const step_context<B, P, G>& c) { rule.take_as_written(c); }) {
      tensors.copy_changes(backend());  // addresses of memory that has moved
      rule.take_as_written(at());
    }
  }

  // The parts.
  communicator comm;
  R rule;
  detail::tensor_table<B, P, G> tensors;
  S schedule;
  C policy;  ///< makes the exchange
  dense_average<B, detail::mean_destination<P, G>> average;
  exchange_type exchange;
  refresh_type refresh;
  detail::model_parallel_group<B> model_parts;  ///< the ranks with the other parts of the model
  detail::hooks<P, G> hooks;
  detail::step_watch watch;

  // The step in progress.
  buffer_of<B, step_scalars> scalars;  ///< one element
  static constexpr char is_final = 1, rests = 2;
  std::vector<char> announced;  ///< by tensor, in this step: is_final, rests or 0
  bool vetoed = false;          ///< last answer of `hooks.veto` on this rank; true if it threw

  // What the next step must know of the ones before.
  std::uint64_t step = 0;
  bool given_moments = false;  ///< v is known before the first step
  bool alike = true;  ///< equal parameters on all ranks; false between exchanges with local steps
  std::uint32_t given_digest = 0;        ///< of what start_from was given; 0 after a load
  std::uint32_t local_steps_digest = 0;  ///< of local steps since ranks last communicated
  float last_lr = 1;                     ///< last learning rate that was not 0
  bool averaged_squares = false;         ///< the last step was plan.refreshes()
  std::uint64_t graph_epoch = 0;         ///< changes if steps use other memory; part of step keys

 private:
  template <class Archive>
  [[gnu::cold]] void archive_averages(Archive& a) {
    std::vector<step_scalars> s(1);
    backend().copy_out(s.data(), now(), 1);
    a.local(s[0].bias.m);
    a.local(s[0].bias.v);
    a.local(s[0].norms.own_over_mean);
    if (Archive::reading) {
      s[0].counts.n_skipped_in_row = 0;
      auto read = to_buffer(backend(), s);
      a.back_up(scalars);
      scalars = std::move(read);
    }
    tensors.archive(a, backend());
  }
  /// Binds the policy once all ranks agree on nodes: otherwise a split would deadlock. Collective.
  [[nodiscard, gnu::cold]] exchange_type bind(const C& collective) {
    if (std::string text = collective.agreement(); !text.empty()) {
      (void)detail::compare_fingerprints(comm, detail::make_fingerprint(std::move(text), {}, 0, 0),
                                         {});
    }
    return exchange_type(detail::collective_try(
        comm, [&] { return collective.bind(comm, rule.backend(), tensors.sizes); }));
  }
  void release_averages() noexcept {
    average.release();
    refresh.release();
  }
  [[noreturn, gnu::cold]] void refuse(const char* why) const {
    throw invalid_input(
        detail::error_text("optimizer: the schedule's step ", step, " ", why, comm.where()));
  }
  /// Throws invalid_input if the rule has no such step.
  [[gnu::cold]] void require_possible(const step_plan& plan) const {
    const bool exchanges = plan.update == update_from::exchange;
    if constexpr (LocalRule<R>) {
      if (plan.update == update_from::mean_gradient && !plan.averages_gradients()) {
        refuse(
            "is dense, by the rule's plan(), and averages no gradients; a rule with local steps "
            "writes plan() itself");
      }
      return;
    }
    if (plan.update == update_from::own_gradient) {
      refuse("is local, by the rule's plan(), and the rule is no LocalRule");
    }
    if (!exchanges && !plan.averages_gradients()) {
      refuse("has nothing due: set average or exchange (only 0/1 Adam has local steps)");
    }
    if (exchanges && plan.averages_gradients()) {
      refuse(
          "has both an average and an exchange due, a refresh of v, which this rule does not "
          "refresh (direction_options::own_variance is false, or it is no RefreshingRule)");
    }
    if (!exchanges && exchange.started()) {
      refuse(
          "is dense, and the dense steps have ended (at the first exchange, even if that was "
          "skipped): set exchange, or both for a refresh of v");
    }
  }
  [[gnu::cold]] void start_compressed() {
    exchange.start_from_nothing(from_nothing);
    ++graph_epoch;
  }
  [[gnu::cold]] void freeze() {
    if (step == 0 && !given_moments)
      refuse("needs v, which no step has computed yet; the first step must average gradients");
    release_averages();
    exchange.allocate_undo(from_momentum);
    auto space = exchange.allocate(from_momentum);
    auto elements = exchange.make_mask();
    auto given = rule.freeze(elements.data(), at_average());
    exchange.start(std::move(space), std::move(given));  // from here on only launches
    backend().launch(tensors.size(), detail::begin_since_kernel{tensors.scalars.data()});
    exchange.set_active(std::move(elements));
    ++graph_epoch;
  }
};

}  // namespace detail

}}  // namespace onebit
