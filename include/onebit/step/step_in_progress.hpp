// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/kernel/clipping.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/mismatch.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/model_parallel.hpp>
#include <onebit/step/report.hpp>
#include <onebit/step/watch.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// One step: a fixed sequence of passes and collectives, kept or taken back as a whole.
namespace onebit { inline namespace v0_3 { namespace detail {

/// State of a step from its begin to its end. The constructor opens the step with its numbers;
/// `ready` may send buckets early; `run` does the rest.
///
/// Up to the last check, of the last message that arrives, a step writes nothing that lasts. A bad
/// value, a rank out of step, an exception and the destructor set `now->verdict.skip`. Each later
/// pass reads it, and then does nothing. Only an exchange that stores while it encodes
/// (store_at_encode) has something to restore, in `finish`.
template <class E>
class step_in_progress {
  using B = typename E::backend_type;
  using R = decltype(E::rule);
  static constexpr bool compresses = decltype(E::schedule)::compresses;

 public:
  /// Opens a step. Not collective. Throws errors of allocations and of the schedule; then no step
  /// has begun (but the warm-up may have ended). Throws invalid_input for unusable numbers if the
  /// step sends nothing; else calls it off, and `run` throws: the other ranks are in that step.
  [[gnu::cold]] step_in_progress(E& e, float lr, float inverse_loss_scale)
      : e_(&e),
        lr_(lr + 0.0F),  // -0 is 0
        scale_(inverse_loss_scale),
        refusal_(e.why_not(lr, inverse_loss_scale)),
        plan_(e.open_step(usable_lr(), refusal_)),
        at_(e.at()),  // after open_step, which may allocate what at_ and args_ point to
        args_(e.exchange_args()),
        meter_(e.comm, phase_of_step(), averages_beside(), e.step,
               e.exchange.bytes_between_nodes()) {
    const bool refused = !refusal_.empty();
    e.backend().launch(e.tensors.launches(),
                       detail::begin_step_kernel{e.now(), e.tensors.moments_of(e.rule, plan_),
                                                 usable_lr(), refused ? 1.0F : scale_,
                                                 static_cast<std::uint32_t>(e.step % status_steps),
                                                 digest(), refused});
    if constexpr (requires { e.rule.refuse_written(at_, e.now()); }) {
      if (plan_.update == update_from::exchange) e.rule.refuse_written(at_, e.now());
    }
    for (std::size_t t = 0; t < e.tensors.size(); ++t) {
      e.announced[t] = e.tensors.entries[t].rests ? e.rests : 0;
    }
  }
  step_in_progress(const step_in_progress&) = delete;
  step_in_progress& operator=(const step_in_progress&) = delete;
  /// Takes the step back if it has not ended.
  ~step_in_progress() {
    if (!over_) take_back();
  }

  /// True once the step was kept or taken back.
  [[nodiscard]] bool over() const { return over_; }
  /// Throws invalid_input unless the step was opened with these numbers.
  [[gnu::cold]] void require(float lr, float inverse_loss_scale) const {
    const auto same = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; };  // NaN
    if (same(lr + 0.0F, lr_) && same(inverse_loss_scale, scale_)) return;
    throw invalid_input(detail::error_text(
        "optimizer: step ", e_->step, " with lr ", lr, " and scale ", inverse_loss_scale,
        ", but begin() was told ", lr_, " and ", scale_, e_->comm.where()));
  }

  /// Throws invalid_input while the step runs: from inside a veto, or another function of the
  /// trainer that a step calls.
  [[gnu::cold]] void require_idle(const char* call) const {
    if (!running_) return;
    throw invalid_input(detail::error_text("optimizer: ", call, " from inside step ", e_->step,
                                           ", which calls the veto; a veto may only answer",
                                           e_->comm.where()));
  }
  /// Marks the gradients of one tensor as final, and sends the buckets that are complete.
  [[gnu::cold]] void ready(std::size_t tensor) {
    if (tensor >= e_->announced.size()) {
      throw invalid_input(detail::error_text("optimizer: ready(", tensor, ") of ",
                                             e_->announced.size(), " tensors", e_->comm.where()));
    }
    if (e_->announced[tensor] == e_->is_final) {
      throw invalid_input(detail::error_text(
          "optimizer: ready(", tensor, ") twice in step ", e_->step,
          ": its gradient may have been ",
          "sent already; announce a tensor once, after the last micro-batch", e_->comm.where()));
    }
    e_->announced[tensor] = e_->is_final;
    meter_.enter();
    try {
      send_known();
    } catch (...) {
      take_back();
      throw;
    }
    meter_.leave();
  }

  /// Runs the rest of the step. Work that does not depend on the step's numbers goes through
  /// `runner(key, enqueue)`, unless it is null. Throws errors of the transport and the backend; the
  /// step is then taken back. Throws rank_mismatch if a rank was at another step; then all ranks
  /// have skipped.
  [[nodiscard, gnu::cold]] report run(const step_runner* runner) {
    running_ = true;
    meter_.enter();
    try {
      if (runner == nullptr || sent_early_ || e_->rule.needs_outcome() || e_->hooks.veto) {
        run_phases();
      } else {
        (*runner)(key(), [this] { run_phases(); });
      }
    } catch (...) {
      take_back();
      throw;
    }
    over_ = true;
    return end_on_host();
  }

 private:
  /// Computes and communicates everything in a step; only enqueues if the backend is deferred.
  [[gnu::cold]] void run_phases() {
    average_gradients();  // in dense steps, and beside other updates of the paper's 0/1 Adam
    switch (plan_.update) {
      case update_from::mean_gradient:
        dense();
        break;
      case update_from::exchange:
        if constexpr (compresses) compressed();
        break;
      case update_from::own_gradient:
        if constexpr (LocalRule<R>) local();
        break;
    }
    end();
  }

  /// A step from the exact mean of the gradients.
  void dense() {
    ask_veto();
    meter_.communicated();
    e_->rule.dense_update(e_->mean(plan_), e_->at_average(e_->mask()));
  }

  /// A step from an exchange of messages.
  void compressed() {
    E& e = *e_;
    const bool has_norms = clip_and_ask();

    // The exchange finds ranks that are out of step, so nothing but norms goes before it.
    if (!diverged()) e.exchange.all_reduce(message(), args_);
    reduce_over_model(false);
    if (!has_norms) average_squares();
    meter_.communicated();

    update_shared_variance();  // only in the paper's 0/1 Adam

    // Parameters change here. Tile by tile, the update first stores what the encode pass did not:
    // it makes the message again, for the next residual.
    e.rule.compressed_update(e.exchange.latest(), e.exchange.previous(), at_,
                             e.exchange.updates_after(message(), args_));
  }

  /// A step from this rank's own gradient. Averages for v at most.
  void local() {
    E& e = *e_;
    const bool has_norms = clip_and_ask();
    if (!has_norms) average_squares();

    // Where nothing is sent, no status reports a gradient that is not finite.
    if (plan_.sends_nothing() && !has_norms) require_finite();
    meter_.communicated();

    update_shared_variance();  // only in the paper's 0/1 Adam
    if constexpr (R::accumulates) e.exchange.accumulate(message(), args_);
    e.rule.local_step(plan_, at_);
  }

  /// Ends the step: collectives keep or take back what they did; v is refreshed; moments and
  /// counts.
  void end() {
    E& e = *e_;
    finish();
    if (plan_.refreshes()) e.refresh.refresh(e, at_, args_);
    const float largest_ratio = std::sqrt(static_cast<float>(e.comm.size()));
    e.backend().launch(
        e.tensors.launches(),
        detail::end_step_kernel{e.now(), e.tensors.moments_of(e.rule, plan_), largest_ratio,
                                plan_.sends_nothing(), plan_.refreshes()});
  }
  /// Makes the results of the collectives permanent, unless the step is called off.
  [[gnu::cold]] void finish() {
    E& e = *e_;
    if (plan_.averages_gradients()) e.average.finish();
    if (plan_.refreshes()) e.refresh.finish();
    if constexpr (compresses) {
      if (plan_.update == update_from::exchange) e.exchange.finish(args_);
    }
  }
  /// Calls the step off and ends it. Ignores errors of that itself (such as a lost device).
  [[gnu::cold]] void take_back() noexcept {
    over_ = true;
    try {
      e_->backend().launch(1, detail::call_off_kernel{e_->now()});
      finish();
      // the next step must not report this rank
      if (step_scalars* const now = host_view<B>(e_->now())) {
        now->verdict.mismatched_rank = now->verdict.written = 0;
      }
    } catch (...) {
    }
  }
  /// Host's part of the step: counts it, and makes the report.
  [[nodiscard, gnu::cold]] report end_on_host() {
    E& e = *e_;
    const bool rule_waits = e.rule.needs_outcome();
    e.watch.count_attempt(meter_.bytes_sent());
    const detail::step_outcome found = learn_outcome(rule_waits);

    // Local steps count, whether or not this rank left its gradient out, and refused ones, if other
    // ranks count them.
    if (found.kind != outcome::skipped || plan_.sends_nothing()) {
      if (rule_waits) ++e.graph_epoch;
      e.rule.done(plan_, usable_lr());
      e.schedule.done(e.step, usable_lr());
      if (plan_.frees_averages) e.release_averages_memory();
      e.count_step(plan_, usable_lr());
      if (plan_.next_needs_outcome) warn();
    }
    if (!refusal_.empty()) throw invalid_input(refusal_);

    report r = meter_.finish(found.kind, e.exchange.bytes_between_nodes(), found.gradient_norm);
    if (found.is_known) r.skipped_share = e.watch.share_of(found.scalars->counts.n_skipped);
    if (!B::deferred)
      r.sent_of_dense = e.watch.sent_of_dense(e.comm.size(), e.average.axis().n_elements());
    if (found.scalars) e.watch.look(e, *found.scalars, plan_.sends_nothing(), true);
    if (veto_failure_) std::rethrow_exception(veto_failure_);
    return r;
  }
  /// Fetches the outcome if that costs nothing or the next step depends on it. Throws if a rank was
  /// out of step.
  [[nodiscard, gnu::cold]] detail::step_outcome learn_outcome(bool rule_waits) {
    E& e = *e_;
    detail::step_outcome found;
    found.is_known = !B::deferred || rule_waits || plan_.next_needs_outcome;
    if (!refusal_.empty()) {
      e.wait();
      (void)difference_of(take_mismatch(e.backend(), e.now()));  // collective: other ranks call it
      if (found.is_known) found.kind = outcome::skipped;
    } else if (found.is_known) {
      e.wait();
      const step_scalars now = take_mismatch(e.backend(), e.now());
      if (now.verdict.written != 0) {
        (void)difference_of(now);
        detail::throw_written(e.step, now.verdict.written - 1, e.comm.where());
      }
      if (now.verdict.mismatched_rank != 0) throw_mismatch(now);
      found.kind = outcome_of(now);
      found.gradient_norm = gradient_norm_of(now);
      found.scalars = now;
    } else if (e.watch.must_look()) {
      found.scalars = e.fetch();
    }
    return found;
  }

  /// Names the number that differs between ranks, or returns an empty text. Collective over the
  /// ranks of this exchange, all of which have found the mismatch. On deferred backends always
  /// empty: ranks learn of a mismatch at different times there.
  [[nodiscard, gnu::cold]] std::string difference_of(const step_scalars& found) {
    // mismatches of a model part, missing and mistaken slots may be found by one rank alone
    const mismatch in = found.verdict.mismatched_in;
    const bool alone = in == mismatch::part || in == mismatch::missing || in == mismatch::sender;
    if (B::deferred || found.verdict.mismatched_rank == 0 || alone) return {};
    std::vector<double> told;
    if (in == mismatch::arguments) {
      e_->visit_agreed_numbers(lr_, scale_, plan_,
                               [&](auto x) { told.push_back(static_cast<double>(x)); });
      told.push_back(static_cast<double>(found.verdict.written) - 1);
    }
    return detail::differing_number_text(e_->comm, told,
                                         [&](std::size_t i) { return e_->agreed_number_name(i); });
  }
  [[noreturn, gnu::cold]] void throw_mismatch(const step_scalars& found) {
    const std::string where = e_->comm.where();
    if (const std::string text = difference_of(found); !text.empty()) {
      throw rank_mismatch(
          detail::error_text("exchange: the ranks were told different numbers for step ", e_->step,
                             ": ", text, where));
    }
    detail::throw_odd_rank(found, where);
  }
  /// Passes on the warning of the schedule, on rank 0.
  [[gnu::cold]] void warn() const {
    if (e_->hooks.warn == nullptr || e_->comm.rank() != 0 || !e_->exchange.travels()) return;
    if (const std::string text = e_->schedule.warning(); !text.empty()) e_->hooks.warn(text);
  }
  /// Limit for clipping; 0: norms are not computed. A veto without clipping: FLT_MAX.
  [[nodiscard]] double largest_norm() const {
    const double largest = e_->rule.max_grad_norm();
    return largest > 0 || !e_->hooks.veto ? largest : static_cast<double>(FLT_MAX);
  }
  [[nodiscard]] bool needs_norms() const { return largest_norm() > 0; }
  /// In a step without a mean gradient: where clipping or a veto needs norms, computes them before
  /// anything is sent. Returns true if it has.
  bool clip_and_ask() {
    const bool needed = needs_norms();
    if (needed) {
      average_squares();
      clip_own();
    }
    ask_veto();
    return needed;
  }
  /// Asks the veto before anything has changed. The message of the exchange carries the answer;
  /// dense steps without an exchange gather it. If the veto throws, the step is called off, and the
  /// exception is rethrown at its end. Does nothing if there is no veto.
  [[gnu::cold]] void ask_veto() {
    E& e = *e_;
    if (!e.hooks.veto) return;
    const step_scalars now = e.fetch();
    const float norm = gradient_norm_of(now);
    bool own = false;
    try {
      own = now.verdict.mismatched_rank == 0 && norm >= 0 && e.hooks.veto(norm);
    } catch (...) {
      own = true;
      veto_failure_ = std::current_exception();
    }
    e.vetoed = own;
    std::uint32_t vetoed = own ? 1 : 0;
    const bool exchanges = plan_.update == update_from::exchange;
    const bool gathers = !exchanges && !plan_.sends_nothing();
    if (gathers) {
      std::vector<std::uint32_t> all(static_cast<std::size_t>(e.comm.size()));
      e.comm.host_all_gather(&vetoed, all.data(), sizeof vetoed);
      for (const std::uint32_t one : all) vetoed |= one;
    }
    if (vetoed != 0) e.backend().launch(1, detail::call_off_kernel{e.now(), exchanges});
    if (gathers) reduce_over_model(false);
  }
  /// Clips this rank's own gradient, by the norm of the mean or an estimate of it.
  void clip_own() {
    if constexpr (compresses) {
      E& e = *e_;
      if (!plan_.averages_gradients()) {
        using squares = typename E::gradient_squares;
        const bool alone = plan_.sends_nothing();
        e.backend().launch(at_.n_tiles(), squares{{at_.tensors, at_.now}, at_.tiles, at_.sums});
        e.backend().launch(1, detail::own_norm_kernel{e.now(), at_.sums, at_.n_tiles(), alone});
        if (!alone) reduce_over_model(true);
      }
      const auto largest = static_cast<float>(largest_norm());
      e.backend().launch(1, detail::clip_own_kernel{e.now(), largest});
    }
  }
  /// Combines skips with the other parts of the model, if any; with `norms` also the norms that
  /// this step has just computed, which become norms of the whole model.
  void reduce_over_model(bool norms) {
    const std::uint32_t plan =
        work_of_plan() | (needs_norms() ? 16U : 0U) | (e_->hooks.veto ? 32U : 0U);
    e_->model_parts.reduce(e_->backend(), e_->now(), plan, norms, largest_norm());
  }
  /// True if all ranks have found a rank out of step; always false on a deferred backend.
  [[nodiscard]] bool diverged() {
    const step_scalars* const now = host_view<B>(e_->now());
    return now != nullptr && now->verdict.mismatched_rank != 0;
  }
  /// Averages the gradients exactly, if the plan says so; computes their norm, if it is needed.
  void average_gradients() {
    if (!plan_.averages_gradients()) return;
    E& e = *e_;
    e.average.all_reduce(e.mean_message(), e.now(), largest_norm(), e.mean_destination_in(plan_));
    reduce_over_model(true);
  }
  /// In a refresh: averages the squares from which v is refreshed when the step ends.
  void average_squares() {
    if (!plan_.refreshes()) return;
    if (!diverged()) e_->refresh.average(*e_, at_);
    if (!needs_norms()) reduce_over_model(true);  // else in `clip_own`, with own norms
  }
  /// Updates v, equal on all ranks, beside an update that is not from the mean gradient.
  void update_shared_variance() {
    if constexpr (LocalRule<R>) {
      if (!plan_.averages_gradients()) return;
      e_->rule.update_variance(e_->mean(plan_), e_->at_average(e_->mask()));
    }
  }
  /// Skips a local step on this rank alone if its gradient is not finite: no message reports it.
  void require_finite() {
    if constexpr (LocalRule<R>) {
      using gradient = decltype(e_->rule.gradient(at_));
      e_->backend().launch(at_.n_tiles(), detail::finite_kernel<gradient>{e_->rule.gradient(at_),
                                                                          at_.tiles, e_->now()});
    }
  }

  /// True if all gradients in the next bucket of an exchange are final.
  template <class X>
  [[nodiscard]] bool is_known(const X& x) const {
    const int b = x.n_unsent() - 1;
    if (b < 0) return false;
    return x.axis().bucket_is_known(b, e_->announced);
  }
  [[gnu::cold]] void send_known() {
    E& e = *e_;
    if (plan_.averages_gradients()) {
      for (; is_known(e.average); sent_early_ = true) {
        e.average.send_next(e.mean_message(), e.now(), e.mean_destination_in(plan_));
      }
    } else if constexpr (compresses) {
      // clipping needs the norm of all gradients
      const bool may_send = plan_.update == update_from::exchange && !needs_norms();
      for (; may_send && is_known(e.exchange); sent_early_ = true) {
        e.exchange.send_next(message(), args_);
      }
    }
  }

  /// Learning rate of this step; the last one above 0 if the numbers of this step are refused.
  [[nodiscard]] float usable_lr() const { return refusal_.empty() ? lr_ : e_->last_lr; }
  [[nodiscard]] std::uint32_t digest() const {
    return refusal_.empty() ? e_->digest_of(lr_, scale_, plan_) : ~0U;
  }
  /// Kind of work in this step, 0 to 15.
  [[nodiscard]] std::uint32_t work_of_plan() const {
    return static_cast<std::uint32_t>(plan_.update) * 4 + static_cast<std::uint32_t>(plan_.average);
  }
  /// Key for `run`: steps with equal keys do the same work on the same memory.
  [[nodiscard]] std::uint64_t key() const { return e_->graph_epoch * 16 + work_of_plan(); }
  [[nodiscard]] phase phase_of_step() const {
    return plan_.update == update_from::mean_gradient ? phase::dense
           : plan_.update == update_from::exchange    ? phase::compressed
                                                      : phase::local;
  }
  /// True if this step averages for v, beside an update that does not need it.
  [[nodiscard]] bool averages_beside() const {
    return plan_.update != update_from::mean_gradient && plan_.average != averages::nothing;
  }
  [[nodiscard]] auto message() const { return e_->rule.message(e_->exchange.previous(), at_); }

  E* e_;
  float lr_, scale_;
  std::string refusal_;  ///< why the numbers cannot be used; empty: they can
  step_plan plan_;
  // What the passes work on. Buffers do not move while a step runs.
  step_context<B, typename E::param_type, typename E::gradient_type>
      at_;  ///< the layout of messages
  typename E::exchange_type::args_type args_;
  detail::step_meter meter_;
  std::exception_ptr veto_failure_;
  bool sent_early_ = false;
  bool running_ = false;  ///< inside `run`
  bool over_ = false;
};

/// Engine with its step in progress, if any. The step is destroyed first, which takes it back.
template <class E>
struct running {
  template <class... Args>
  explicit running(Args&&... args) : engine(std::forward<Args>(args)...) {}

  /// Returns the engine. Throws invalid_input between begin() and step().
  [[nodiscard]] E& between_steps() {
    if (in_progress) throw invalid_input(refusal() + engine.comm.where());
    return engine;
  }
  /// Explains why no other call is allowed now, without the rank; empty if no step has begun.
  [[nodiscard, gnu::cold]] std::string refusal() const {
    if (!in_progress) return {};
    return detail::error_text("optimizer: step ", engine.step,
                              " has begun; call this before begin() or after step()");
  }

  /// Scope guard that destroys the step if it is over.
  struct close_after {
    running& r;
    ~close_after() {
      if (r.in_progress->over()) r.in_progress.reset();
    }
  };

  E engine;
  std::optional<step_in_progress<E>> in_progress;
};

}  // namespace detail

}}  // namespace onebit
