// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <onebit/core/clipping.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/model_parallel.hpp>
#include <onebit/step/report.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// One step: a fixed sequence of passes and collectives, kept or taken back as a whole.
namespace onebit::inline v0_2 {

/// State of a step from its begin to its end. The constructor opens the step with its numbers;
/// `ready` may send buckets early; `run` does the rest. No phase asks whether an earlier one
/// failed: a bad value, a rank out of step, an exception and the destructor all set one word,
/// `now->skip`, and `finish` then keeps the step or restores the bits from before.
template <class E>
class step_in_progress {
  using B = typename E::backend_type;
  using R = decltype(E::rule);
  static constexpr bool compresses = decltype(E::schedule)::compresses;
  /// Interval in steps at which the host fetches outcomes that the next step does not need.
  static constexpr std::uint64_t steps_unwatched = 128;

 public:
  /// Opens a step. Not collective. Throws errors of allocations and of the schedule; then no step
  /// has begun (but the warm-up may have ended). Throws invalid_input for unusable numbers if the
  /// step sends nothing; else calls it off, and `run` throws: the other ranks are in that step.
  [[gnu::cold]] step_in_progress(E& e, float lr, float inverse_loss_scale)
      : e_(&e),
        lr_(lr + 0.0F),  // -0 is 0
        scale_(inverse_loss_scale),
        refusal_(e.refuse(lr, inverse_loss_scale)),
        plan_(prepare()),
        meter_(e.comm, phase_of_step(),
               refreshes() || (plan_.average_gradient && phase_of_step() != phase::dense), e.step,
               e.compressed.bytes_between_nodes()) {
    const bool nonfinite = !refusal_.empty();
    e.backend().launch(e.tensors.launches(),
                       detail::begin_step_kernel{e.now(), e.tensors.moments_of(e.rule, plan_),
                                                 usable_lr(), nonfinite ? 1.0F : scale_,
                                                 static_cast<std::uint32_t>(e.step % status_steps),
                                                 digest(), nonfinite});
    // not at(): nvcc 13.0's front end says no to a member whose return type is deduced, the host's
    // compiler yes, and the device would lack the kernels
    if constexpr (requires { e.rule.refuse_written(e.at(e.mask()), e.now()); }) {
      if (plan_.exchange) e.rule.refuse_written(at(), e.now());
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
    throw invalid_input(detail::message(
        "optimizer: step ", e_->step, " with lr ", lr, " and scale ", inverse_loss_scale,
        ", but begin() was told ", lr_, " and ", scale_, e_->comm.where()));
  }

  /// Throws invalid_input while the step runs: from inside a veto, or another function of the
  /// trainer that a step calls.
  [[gnu::cold]] void require_idle(const char* call) const {
    if (!running_) return;
    throw invalid_input(detail::message("optimizer: ", call, " from inside step ", e_->step,
                                        ", which calls the veto; a veto may only answer",
                                        e_->comm.where()));
  }
  /// Marks the gradients of one tensor as final, and sends the buckets that are complete.
  [[gnu::cold]] void ready(std::size_t tensor) {
    if (tensor >= e_->announced.size()) {
      throw invalid_input(detail::message("optimizer: ready(", tensor, ") of ",
                                          e_->announced.size(), " tensors", e_->comm.where()));
    }
    if (e_->announced[tensor] == e_->is_final) {
      throw invalid_input(detail::message(
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
  /// `run(key, enqueue)`. Throws errors of the transport and the backend; the step is then taken
  /// back. Throws rank_mismatch if a rank was at another step; then all ranks have skipped.
  [[nodiscard, gnu::cold]] report run(step_runner run) {
    running_ = true;
    meter_.enter();
    try {
      if (sent_early_ || e_->rule.needs_outcome() || e_->veto) {
        run_phases();
      } else {
        run(key(), [this] { run_phases(); });
      }
    } catch (...) {
      take_back();
      throw;
    }
    over_ = true;
    return report_outcome();
  }

 private:
  /// Computes and communicates everything in a step; only enqueues if the backend is deferred.
  [[gnu::cold]] void run_phases() {
    E& e = *e_;
    if (plan_.average_gradient) {
      e.average.all_reduce(e.mean_message(), e.now(), largest_norm(), e.mean_destination_in(plan_));
      reduce_over_model(true);
    }
    if (refreshes() && needs_norms()) average_squares();  // before gradients are clipped
    if (needs_norms() && uses_own_gradient()) clip_own();
    if (e.veto) ask_veto();
    if (plan_.exchange) {
      if (!diverged()) exchange();
      reduce_over_model(false);
    }
    // after the exchange, which detects ranks with different plans
    if (refreshes() && !needs_norms()) average_squares();
    if (plan_.local() && !needs_norms()) require_finite();
    meter_.communicated();
    if (plan_.average_gradient) dense_update();
    if (plan_.exchange) compressed_update();
    if (!plan_.exchange) local_step();
    finish();
    if (refreshes()) e.refresh.refresh(e);
    const float largest_ratio = std::sqrt(static_cast<float>(e.comm.size()));
    e.backend().launch(e.tensors.launches(),
                       detail::end_step_kernel{e.now(), e.tensors.moments_of(e.rule, plan_),
                                               largest_ratio, plan_.local(), refreshes()});
  }
  /// Ends every step: makes its results permanent, or restores the state from before.
  [[gnu::cold]] void finish() {
    E& e = *e_;
    if (plan_.average_gradient) e.average.finish();
    if (refreshes()) e.refresh.finish();
    if (plan_.exchange) end_exchange();
  }
  /// Calls the step off and ends it. Ignores errors of that itself (such as a lost device).
  [[gnu::cold]] void take_back() noexcept {
    over_ = true;
    try {
      e_->backend().launch(1, detail::call_off_kernel{e_->now()});
      finish();
      // the next step must not report this rank
      if (step_scalars* const now = host_view<B>(e_->now())) {
        now->mismatched_rank = now->written = 0;
      }
    } catch (...) {
    }
  }
  /// Host's part of the step. Fetches the outcome if that costs nothing or the next step depends on
  /// it. Local steps count as done, whether or not this rank left its gradient out.
  [[nodiscard, gnu::cold]] report report_outcome() {
    E& e = *e_;
    const bool needs_outcome = e.rule.needs_outcome(), refused = !refusal_.empty();
    const bool is_known = !B::deferred || needs_outcome || plan_.ends_warm_up;
    outcome o = refused && is_known ? outcome::skipped : outcome::pending;
    float norm = -1;
    std::optional<step_scalars> found;
    ++e.n_attempts;
    e.bytes_sent += meter_.bytes_sent();
    if (refused || is_known) e.wait();
    if (refused) {
      (void)difference_of(take_mismatch(e.backend(), e.now()));  // collective: other ranks call it
    } else if (is_known) {
      found = take_mismatch(e.backend(), e.now());
      if (found->written != 0) {
        (void)difference_of(*found);
        detail::throw_written(e.step, found->written - 1, e.comm.where());
      }
      if (found->mismatched_rank != 0) throw_mismatch(*found);
      o = outcome_of(*found);
      norm = gradient_norm_of(*found);
    } else if (e.n_attempts % steps_unwatched == 0) {
      found = e.fetch();
    }
    if (o != outcome::skipped || plan_.local()) {
      if (needs_outcome) ++e.graph_epoch;
      e.rule.done(plan_, usable_lr());
      e.schedule.done(e.step, usable_lr());
      if (plan_.last_average) e.release_averages_memory();
      e.alike = !R::local_steps || plan_.exchange || is_dense();
      e.refreshed = refreshes();
      e.count_step(plan_, usable_lr());  // also a refused step, if other ranks count it
      if (plan_.ends_warm_up) warn();
    }
    if (refused) throw invalid_input(refusal_);
    report r = meter_.finish(o, e.compressed.bytes_between_nodes(), norm);
    if (is_known) {
      r.skipped_share = static_cast<float>(static_cast<double>(found->n_skipped) /
                                           static_cast<double>(e.n_attempts));
    }
    if (!B::deferred) r.sent_of_dense = e.sent_of_dense();
    if (found) e.watch(*found, plan_.local(), true);
    if (veto_failure_) std::rethrow_exception(veto_failure_);
    return r;
  }

  /// Names the number that differs between ranks, or returns an empty text. Collective over the
  /// ranks of this exchange, all of which have found the mismatch. On deferred backends always
  /// empty: ranks learn of a mismatch at different times there.
  [[nodiscard, gnu::cold]] std::string difference_of(const step_scalars& found) {
    // mismatches of a model part, missing and mistaken slots may be found by one rank alone
    const mismatch in = found.mismatched_in;
    const bool alone = in == mismatch::part || in == mismatch::missing || in == mismatch::sender;
    if (B::deferred || found.mismatched_rank == 0 || alone) return {};
    std::vector<double> told;
    if (in == mismatch::arguments) {
      e_->visit_agreed_numbers(lr_, scale_, plan_,
                               [&](auto x) { told.push_back(static_cast<double>(x)); });
      told.push_back(static_cast<double>(found.written) - 1);
    }
    return detail::differing_number_text(e_->comm, told,
                                         [&](std::size_t i) { return e_->agreed_number_name(i); });
  }
  [[noreturn, gnu::cold]] void throw_mismatch(const step_scalars& found) {
    const std::string where = e_->comm.where();
    if (const std::string text = difference_of(found); !text.empty()) {
      throw rank_mismatch(
          detail::message("exchange: the ranks were told different numbers for step ", e_->step,
                          ": ", text, where));
    }
    detail::throw_odd_rank(found, where);
  }
  /// Passes on the warning of the schedule, on rank 0.
  [[gnu::cold]] void warn() const {
    if (e_->warn == nullptr || e_->comm.rank() != 0 || !e_->compressed.travels()) return;
    if (const std::string text = e_->schedule.warning(); !text.empty()) e_->warn(text);
  }
  /// True if this rank's gradient goes into a message or a local step, not only into a mean.
  [[nodiscard]] bool uses_own_gradient() const {
    return plan_.exchange || (R::local_steps && !is_dense());
  }
  /// For rules with local steps: true if this step uses nothing but the mean gradient.
  [[nodiscard]] bool is_dense() const { return !e_->compressed.travels() || e_->rule.dense(); }
  /// Limit for clipping; 0: norms are not computed. A veto without clipping: FLT_MAX.
  [[nodiscard]] double largest_norm() const {
    const double largest = e_->rule.max_grad_norm();
    return largest > 0 || !e_->veto ? largest : static_cast<double>(FLT_MAX);
  }
  [[nodiscard]] bool needs_norms() const { return largest_norm() > 0; }
  /// Asks the veto before anything has changed. The message of the exchange carries the answer;
  /// dense steps without an exchange gather it. If the veto throws, the step is called off, and the
  /// exception is rethrown at its end.
  [[gnu::cold]] void ask_veto() {
    E& e = *e_;
    const step_scalars now = e.fetch();
    const float norm = gradient_norm_of(now);
    bool own = false;
    try {
      own = now.mismatched_rank == 0 && norm >= 0 && e.veto(norm);
    } catch (...) {
      own = true;
      veto_failure_ = std::current_exception();
    }
    e.vetoed = own;
    std::uint32_t vetoed = own ? 1 : 0;
    const bool gathers = !plan_.exchange && !plan_.local();
    if (gathers) {
      std::vector<std::uint32_t> all(static_cast<std::size_t>(e.comm.size()));
      e.comm.host_all_gather(&vetoed, all.data(), sizeof vetoed);
      for (const std::uint32_t one : all) vetoed |= one;
    }
    if (vetoed != 0) e.backend().launch(1, detail::call_off_kernel{e.now(), plan_.exchange});
    if (gathers) reduce_over_model(false);
  }
  void clip_own() {
    if constexpr (compresses) {
      E& e = *e_;
      if (!plan_.average_gradient) {
        const auto axis = at();
        using squares = typename E::own_squares;
        e.backend().launch(axis.n_tiles(),
                           squares{{axis.tensors, axis.now}, axis.tiles, axis.sums});
        e.backend().launch(1, own_norm_kernel{e.now(), axis.sums, axis.n_tiles(), plan_.local()});
        if (!plan_.local()) reduce_over_model(true);
      }
      const auto largest = static_cast<float>(largest_norm());
      e.backend().launch(1, clip_own_kernel{e.now(), largest});
    }
  }
  /// Combines skips with the other parts of the model, if any; with `norms` also the norms that
  /// this step has just computed, which become norms of the whole model.
  void reduce_over_model(bool norms) {
    const std::uint32_t plan = (plan_.average_gradient ? 1U : 0U) | (plan_.exchange ? 2U : 0U) |
                               (needs_norms() ? 4U : 0U) | (refreshes() ? 8U : 0U) |
                               (e_->veto ? 16U : 0U);
    e_->model_parts.reduce(e_->backend(), e_->now(), plan, norms, largest_norm());
  }
  /// True if all ranks have found a rank out of step; always false on a deferred backend.
  [[nodiscard]] bool diverged() {
    const step_scalars* const now = host_view<B>(e_->now());
    return now != nullptr && now->mismatched_rank != 0;
  }
  void exchange() {
    if constexpr (compresses) e_->compressed.all_reduce(own_message(), args());
  }
  void end_exchange() {
    if constexpr (compresses) e_->compressed.finish(args());
  }
  void dense_update() {
    E& e = *e_;
    if constexpr (LocalRule<R>) {
      if (is_dense()) return e.rule.dense_step(e.mean(plan_), e.at_average(e.mask()));
    }
    e.rule.dense_update(e.mean(plan_), e.at_average(e.mask()));
  }
  /// Averages the squares from which v is refreshed later.
  void average_squares() {
    if (!diverged()) e_->refresh.average(*e_);
    if (!needs_norms()) reduce_over_model(true);  // else in `clip_own`, with own norms
  }
  /// Updates parameters; before that, tile by tile, completes what the encode pass left undone.
  void compressed_update() {
    if constexpr (compresses) {
      E& e = *e_;
      const auto latest = e.compressed.latest(e.mask());
      const auto previous = e.compressed.previous(e.mask());
      e.rule.compressed_update(latest, previous, at(),
                               e.compressed.updates_after(own_message(), args()));
    }
  }
  /// Skips a local step on this rank alone if its gradient is not finite: no message reports it.
  void require_finite() {
    if constexpr (LocalRule<R>) {
      using message = decltype(e_->rule.gradient(at()));
      const finite_kernel<message> check{e_->rule.gradient(at()), at().tiles, e_->now()};
      e_->backend().launch(at().n_tiles(), check);
    }
  }
  void local_step() {
    if constexpr (LocalRule<R>) {
      if (is_dense()) return;
      if (R::accumulates) e_->compressed.accumulate(own_message(), args());
      e_->rule.local_step(plan_, at());
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
    if (plan_.average_gradient) {
      for (; is_known(e.average); sent_early_ = true) {
        e.average.send_next(e.mean_message(), e.now(), e.mean_destination_in(plan_));
      }
    } else if constexpr (compresses) {
      // clipping needs the norm of all gradients
      const bool may_send = plan_.exchange && !needs_norms();
      for (; may_send && is_known(e.compressed); sent_early_ = true) {
        e.compressed.send_next(own_message(), args());
      }
    }
  }

  /// Learning rate of this step; the last one above 0 if the numbers of this step are refused.
  [[nodiscard]] float usable_lr() const { return refusal_.empty() ? lr_ : e_->last_lr; }
  [[nodiscard]] std::uint32_t digest() const {
    return refusal_.empty() ? e_->digest_of(lr_, scale_, plan_) : ~0U;
  }
  /// Prepares options, phase and rule for the step, and returns its plan.
  [[nodiscard, gnu::cold]] step_plan prepare() const {
    e_->model_parts.begin_step();
    step_plan plan = e_->plan(usable_lr());
    const bool sends = !plan.local() && e_->comm.size() > 1;
    if (!refusal_.empty() && !sends) throw invalid_input(refusal_);
    e_->tensors.take_options(e_->backend());
    try {
      e_->enter_phase(plan);
      e_->rule.begin_step(plan, usable_lr(), e_->step, e_->at(e_->mask()));
    } catch (const invalid_input&) {
      if (!refusal_.empty()) throw invalid_input(refusal_);
      throw;
    }
    return plan;
  }
  /// Key for `run`: steps with equal keys do the same work on the same memory.
  [[nodiscard]] std::uint64_t key() const {
    return e_->graph_epoch * 8 + (refreshes() ? 4 : 0) + (plan_.average_gradient ? 2 : 0) +
           (plan_.exchange ? 1 : 0);
  }
  [[nodiscard]] phase phase_of_step() const {
    if (plan_.exchange) return phase::compressed;
    return R::local_steps && !is_dense() ? phase::local : phase::dense;
  }
  [[nodiscard]] bool refreshes() const { return plan_.average_squares; }
  [[nodiscard]] auto at() const { return e_->at(e_->mask()); }
  [[nodiscard]] auto own_message() const {
    return e_->rule.message(e_->compressed.previous(e_->mask()), at());
  }
  [[nodiscard]] auto args() const { return e_->exchange_args(); }

  E* e_;
  float lr_, scale_;
  std::string refusal_;  ///< why the numbers cannot be used; empty: they can
  step_plan plan_;
  step_meter meter_;
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
    return detail::message("optimizer: step ", engine.step,
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

}  // namespace onebit::inline v0_2
