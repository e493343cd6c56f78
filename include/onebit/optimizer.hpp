// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/mismatch.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/engine.hpp>
#include <onebit/step/model_parallel.hpp>
#include <onebit/step/read_moments.hpp>
#include <onebit/step/refresh.hpp>
#include <onebit/step/report.hpp>
#include <onebit/step/restore.hpp>
#include <onebit/step/step_in_progress.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The distributed optimizer, which a trainer holds.
///
/// The class is declared first, and its calls are defined below, not inline. A program that writes
///
///     extern template class onebit::optimizer<RULE, SCHEDULE, COLLECTIVE, float, float>;
///
/// where it uses an optimizer, and the line without `extern` in one file, compiles the calls there.
namespace onebit { inline namespace v0_3 {

/// A distributed optimizer: a rule, a schedule and a collective over a transport.
///
/// Built collectively by all ranks over the same tensors and options, with equal parameters. Holds
/// views of the trainer's memory, which must outlive the optimizer and stay in place. Movable.
/// `algorithms.hpp` has the usual combinations; others are built by this constructor.
///
/// R: a Rule (adam_rule, lamb_rule, zero_one_rule), which has the backend
/// S: a Schedule (always_dense, freeze, intervals, custom_schedule)
/// C: a Collective (gather_scatter, all_gather, hierarchical)
template <class R, class S, class C, class P, class G>
class optimizer {
  static_assert(detail::can_be_trained<P, std::remove_const_t<G>>,
                "onebit: parameters must be float, bf16 or fp16, gradients the same or const");
  using engine_type = detail::engine<R, S, detail::collective_for<C>, P, G>;
  using B = typename R::backend_type;
  using parts = detail::running<engine_type>;

 public:
  using groups_type = std::vector<param_group<P, G>>;      ///< tensors to train
  static constexpr bool takes_moments = R::takes_moments;  ///< has start_from
  static constexpr bool gives_moments = R::gives_moments;  ///< has moments
  static constexpr bool resumes = ResumingRule<R>;         ///< has load_old_job

  /// Collective: compares sizes, options and parameters of the ranks, and throws on all ranks if
  /// one differs. `name` describes the algorithm and its options; ranks and checkpoints compare the
  /// name. Throws invalid_input, rank_mismatch.
  template <class T>
  [[gnu::cold]] optimizer(std::string name, const std::vector<param_group<P, G>>& groups,
                          T transport, R rule, S schedule, const C& collective,
                          dense_sum sum = dense_sum::automatic)
      : optimizer(detail::communicator_of<C>(std::move(transport)), std::move(name), groups,
                  std::move(rule), std::move(schedule), collective, sum) {}
  optimizer(optimizer&&) noexcept;             ///< the source may only be assigned or destroyed
  optimizer& operator=(optimizer&&) noexcept;  ///< takes back a step in progress
  [[gnu::cold]] ~optimizer();

  // -- a step ------------------------------------------------------------------------------------

  /// Does one step with the gradients that are in the tensors now. Each group multiplies lr by its
  /// factor; `inverse_loss_scale` multiplies every gradient as it is read. Consumes the gradients
  /// (see onebit::tensor). Collective; blocks unless the backend is deferred.
  ///
  /// - Cost of a step compressed by gather_scatter: 2 collectives (per bucket) and 2 (W-1)/W n/8
  /// bytes sent, plus scales and status words; about 43 bytes of memory traffic per parameter. No
  /// allocation after the second step of a phase.
  /// - Skips: if a gradient on any rank is not finite, or reaches gradient_limit, no rank changes
  /// anything and all report the step as skipped.
  /// - Throws: invalid_input on a rank whose lr is negative or not finite; unless the step is
  /// local, ranks with other numbers then throw rank_mismatch instead of waiting. rank_mismatch if
  /// ranks are out of step. Errors of the transport, an allocation or a codec. Then nothing has
  /// changed on this rank, except that the warm-up may have ended before the step.
  /// - On a deferred backend (CUDA) the report is `pending`: `settle` returns the outcome. A
  /// skipped step then counts for the schedule. The host waits only in steps whose outcome the next
  /// step depends on.
  report step(float lr, float inverse_loss_scale = 1.0F) {
    return run_step(nullptr, lr, inverse_loss_scale);
  }
  /// Does one step, like `step`. Work that does not depend on the numbers goes through `run(key,
  /// enqueue)`, which calls enqueue() or repeats its work under an equal key: a CUDA graph.
  report step_with(step_runner run, float lr, float inverse_loss_scale = 1.0F) {
    return run_step(&run, lr, inverse_loss_scale);
  }

  /// Begins the next step, so that `ready` can send before `step`. `step` must follow with equal
  /// numbers, and throws if they cannot be used. Not collective.
  void begin(float lr, float inverse_loss_scale = 1.0F);
  /// Marks the gradients of one tensor, in the order of the groups, as final. Buckets whose
  /// gradients are all final are sent, the last bucket first. Do not touch the gradients until
  /// `step` returns, which reads them again; dense steps may overwrite them. Blocks until all ranks
  /// take part if there is one bucket, if the transport cannot start collectives (threads), and if
  /// averages reuse memory. Collective in effect: all ranks announce the same tensors in the same
  /// order, between begin() and step(); `step` sends the others. If the transport throws, the step
  /// is taken back: call begin() again, with fresh gradients.
  void ready(std::size_t tensor);

  /// Returns the outcome of the last step, on a deferred backend too. Waits. Throws like `step`.
  outcome settle();
  /// Returns report::gradient_norm of the last step. Waits.
  [[nodiscard]] std::optional<float> gradient_norm() {
    const float norm = detail::gradient_norm_of(now());
    return norm >= 0 ? std::optional(norm) : std::nullopt;
  }
  /// Number of steps skipped since the optimizer was built. Waits.
  [[nodiscard]] std::uint64_t n_skipped() { return now().counts.n_skipped; }

  // -- between steps -----------------------------------------------------------------------------

  // The calls below that change or compare state throw invalid_input between begin() and step();
  // load and load_old_job throw checkpoint_error there.
  /// Sets the options of a group, by its index, from the next step on: schedules of decay and
  /// betas, discriminative rates, frozen layers. All ranks must set equal options. Checkpoints hold
  /// them: a load with resume_with::same_options restores the options. Throws invalid_input like
  /// the constructor, and if eps changes.
  void set_group(std::size_t group, const group_options& options);
  void set_group(std::size_t group, float lr_factor, float weight_decay);  ///< only these
  /// Declares that a tensor, in the order of the groups, has no gradient in the next step (torch's
  /// None). Holds for one attempt, even if this is skipped or fails. Memory of the gradient is not
  /// read, but may be scratch from begin() on. Parameters, m, v and bias corrections stay. Still
  /// applied: residuals, and earlier local steps of 0/1 Adam; in the first compressed step m takes
  /// in a gradient of 0. All ranks must do so; otherwise all throw rank_mismatch.
  void rest(std::size_t tensor) { between_steps().tensors.rest(tensor, comm()); }
  /// Takes the addresses of all tensors from `groups`, from the next step on, on this rank: for
  /// memory that moved with its values. Returns the number of tensors that moved; 0 costs next to
  /// nothing. Throws invalid_input for other sizes.
  std::size_t rebind(const std::vector<param_group<P, G>>& groups);
  /// Starts from moments of Adam in another framework: for each tensor, in the order of the groups,
  /// m and v before bias correction (torch's exp_avg and exp_avg_sq), after `steps` steps: as many
  /// as v has averaged squares, fewer than the job has made where v was frozen. They count for bias
  /// corrections alone: steps() stays 0, and the schedule begins at its start (rank 0 warns if
  /// `freeze` then makes dense steps). A tensor may have a number of its own
  /// (given_moments::steps); without state, all 0, it has 0, and starts as in a new Adam. All ranks
  /// must give equal moments and steps; otherwise the next step that communicates throws
  /// rank_mismatch on all ranks. Throws invalid_input after a step or begin(), if sizes differ, and
  /// if m or v is not finite or v is negative.
  void start_from(const std::vector<given_moments>& moments,
                  std::uint64_t steps) requires(takes_moments) {
    take(moments, steps);
  }

  /// Returns m and v of all tensors, in the order of the groups, equal on all ranks: for another
  /// framework, a tensor that changes its shape, a new optimizer. With start_from(moments, steps())
  /// a new optimizer goes on as this one, but its schedule starts anew.
  ///
  /// m is the mean momentum, with what residuals still hold, and v Adam's exp_avg_sq, both before
  /// bias correction. In compressed steps m is the direction times sqrt(v) + eps, and v is what a
  /// refresh now would give (it is kept in bf16, rounded at random: docs/variance.md). In 0/1 Adam
  /// m is that of the last exchange, without residuals. Collective: two allreduces of floats in
  /// compressed steps. Memory: 24 bytes per parameter. Throws invalid_input between begin() and
  /// step(), and after a local step, when ranks differ.
  [[nodiscard]] std::vector<tensor_moments> moments() requires(gives_moments) {
    return read_moments();
  }

  /// Connects the optimizers of a model that is split over ranks (pipeline stages, tensor-parallel
  /// ranks, experts). `transport` joins the ranks that hold the parts of this rank's replica, in
  /// the same order on all replicas; each rank has its own optimizer. From now on, if one part
  /// skips a step, all skip, and max_grad_norm limits the norm of the whole model (a tensor on
  /// several ranks counts once for each). LAMB's layers are the tensors of each rank. Local steps
  /// are not coordinated.
  ///
  /// All parts must make equal steps: one schedule, and either several ranks in each part or one in
  /// each; otherwise all throw rank_mismatch. Collective over the ranks of `transport` if that is a
  /// DuplicatingTransport. Costs an all_gather of 20 bytes in steps that average or exchange; two
  /// in steps that do both, or that clip and exchange.
  template <class T>
  [[gnu::cold]] void join_model_parallel(T transport) {
    join_model(detail::communicator_of<C>(std::move(transport)));
  }

  // -- functions of the trainer ------------------------------------------------------------------

  /// Sets a veto: a threshold or a z-score, as in llm.c. From the next step on each rank calls
  /// `f(norm)` before anything has changed. If f returns true on one rank, all ranks skip the step;
  /// in a local step this rank leaves its gradient out. If f throws, all ranks skip, and this rank
  /// rethrows after the step. An empty f removes the veto.
  ///
  ///     step                     norm that f sees
  ///     averages gradients       that of the mean gradient
  ///     refreshes v              an estimate of it: see report::gradient_norm
  ///     else                     this rank's own, over the usual ratio of own to mean norm
  ///
  /// In the last kind f is called even if a gradient of another rank will call the step off.
  ///
  /// Collective: throws rank_mismatch on all ranks if some give a veto and others none. The parts
  /// of a model (join_model_parallel) must all give one, or none. Costs in each step as much as
  /// clipping; in dense steps one more collective of 4 bytes (and one of 20 between model parts).
  /// A deferred backend waits for the norm, and captures no step.
  void veto_with(std::function<bool(float norm)> f);
  /// Sets a function that each step, save, load and verify calls first, to rebind to the groups
  /// that it returns: for trainers whose memory moves (x = ..., a vector that grows). Empty: none.
  /// Not collective; not to be called from `groups` itself.
  void rebind_with(std::function<groups_type()> groups) {
    between_steps().hooks.groups = std::move(groups);
  }
  /// Compares parameters, moments and previous means of the ranks, bit for bit. Finds memory that
  /// fails, and trainers that write to parameters on one rank. Collective: throws rank_mismatch on
  /// all ranks, naming a rank that differs from most; invalid_input after a local step, when ranks
  /// differ. Costs a pass over all of this on the host, 4 bytes per parameter during the call, and
  /// a collective of 24 bytes.
  [[gnu::cold]] void verify();

  /// Sets the receiver of warnings (empty: none); at first stderr. Rank 0 warns, and after 10
  /// skipped steps in a row (20, 40, ...) the ranks that called them off. (On a deferred backend
  /// the library looks in settle, in steps that wait, and once in 128 steps.)
  void warn_with(std::function<void(const std::string& text)> f) {
    parts_->engine.hooks.warn = std::move(f);
  }

  // -- checkpoints -------------------------------------------------------------------------------

  /// Writes all state that this rank needs to go on, residuals included; not the parameters. Not
  /// collective. Throws checkpoint_error, and invalid_input if the trainer has written to
  /// parameters after a local step of 0/1 Adam.
  [[gnu::cold]] void save(std::ostream& out);
  /// Reads what `save` wrote on this rank. Build the optimizer, then restore the parameters of this
  /// rank, then load: a digest of the parameters is compared. (Not restore before building: ranks
  /// must start equal, and between two exchanges of 0/1 Adam they are not.) Collective: throws
  /// checkpoint_error on all ranks if one fails; then nothing has changed. Memory: the state twice.
  [[gnu::cold]] void load(std::istream& in, resume_with with = resume_with::same_options);
  /// Loads what the `n_ranks` ranks of an old job saved; `open(r)` returns the file of rank r as a
  /// (unique) pointer to a stream. Rank r takes the place of old rank r mod n_ranks, whose
  /// parameters must be restored first; residuals of the old ranks are kept on average. A single
  /// rank goes on uncompressed; right after a refresh its m starts from 0. Collective; throws like
  /// load. Reads all files on each rank; memory: the state three times.
  template <class Open>
  [[gnu::cold]] void load_old_job(std::size_t n_ranks, const Open& open,
                                  resume_with with = resume_with::same_options) {
    static_assert(resumes,
                  "onebit: load_old_job needs a ResumingRule: options(), a constructor "
                  "R(options, backend), resume(previous, at) and thaw(previous, at)");
    read_old_job(
        n_ranks, [&](std::size_t r, function_ref<void(std::istream&)> read) { read(*open(r)); },
        with);
  }

  /// Checkpoints that this object has loaded from directories, or saved to them.
  [[nodiscard]] detail::known_checkpoints& checkpoints() { return checkpoints_; }

  // -- what it is --------------------------------------------------------------------------------

  /// The transport, for collectives of the trainer between steps. They count as the optimizer's.
  [[nodiscard]] communicator transport() const { return parts_->engine.comm; }
  [[nodiscard]] int rank() const { return parts_->engine.comm.rank(); }  ///< number of this rank
  [[nodiscard]] int size() const { return parts_->engine.comm.size(); }  ///< number of ranks
  /// Number of steps done. Skipped steps do not count, except local ones and on a deferred backend.
  [[nodiscard]] std::uint64_t steps() const { return parts_->engine.step; }
  [[nodiscard]] std::size_t n_parameters() const {  ///< in all tensors
    return parts_->engine.average.axis().n_elements();
  }
  /// Bytes of state that lasts from step to step in this phase.
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const;
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const;  ///< bytes used in a step

  [[nodiscard]] const std::string& description() const { return name_; }  ///< algorithm, options
  [[nodiscard]] const R& rule() const { return parts_->engine.rule; }     ///< of type R
  [[nodiscard]] const S& schedule() const { return parts_->engine.schedule; }  ///< of type S
  [[nodiscard]] auto& exchange() { return parts_->engine.exchange; }  ///< the compressed exchange
  [[nodiscard]] active_mask active() const { return parts_->engine.mask(); }  ///< exchange mask
  /// Copies one tensor out of a field, such as exchange().sender().residual(active()). Waits.
  /// Throws invalid_input for a tensor that does not exist, and for a residual before the first
  /// compressed step, when there is none.
  template <class Field>
  [[nodiscard]] std::vector<float> copy(const Field& field, std::size_t tensor) {
    auto& e = parts_->engine;
    if (tensor >= e.tensors.size()) {
      throw invalid_input(detail::error_text("optimizer: copy of tensor ", tensor, " of ",
                                             e.tensors.size(), where()));
    }
    if constexpr (requires { field.residual.compensated.values; }) {  // see sender::residual
      if (field.residual.compensated.values == nullptr) {
        throw invalid_input(detail::error_text(
            "optimizer: copy of a residual: step ", e.step,
            " comes before the first compressed step, when there is none", where()));
      }
    }
    const auto flat = e.exchange.sender().flatten(field);
    std::size_t words = 0;  // before the tensor
    for (std::size_t i = 0; i < tensor; ++i) words += words_of(e.tensors.sizes[i]);
    std::vector<float> values(e.tensors.sizes[tensor]);
    e.backend().copy_out(values.data(), flat.data() + words * word_elements, values.size());
    return values;
  }

 private:
  [[gnu::cold]] optimizer(communicator transport, std::string name,
                          const std::vector<param_group<P, G>>& groups, R rule, S schedule,
                          const C& collective, dense_sum sum);
  [[gnu::cold]] void join_model(communicator transport);
  // Calls that not all policies have. The constrained public functions cannot be defined outside of
  // the class (clang 14); these can, and are empty where no public function calls them.
  [[gnu::cold]] void take(const std::vector<given_moments>& moments, std::uint64_t steps);
  [[nodiscard, gnu::cold]] std::vector<tensor_moments> read_moments();
  [[gnu::cold]] void read_old_job(std::size_t n_ranks, detail::old_files files, resume_with with);
  [[nodiscard]] step_scalars now() { return parts_->engine.fetch(); }
  [[nodiscard]] const communicator& comm() const { return parts_->engine.comm; }
  [[nodiscard]] std::string where() const { return comm().where(); }
  [[nodiscard]] engine_type& between_steps() { return parts_->between_steps(); }
  [[nodiscard]] detail::checkpoint_header header() {
    rebind_if_asked();
    return detail::own_header(name_, parts_->engine);
  }
  /// Implements `step` (`run` is null) and `step_with`.
  report run_step(const step_runner* run, float lr, float inverse_loss_scale);
  /// Rebinds to the groups of `rebind_with`, if a function is set.
  void rebind_if_asked() {
    engine_type& e = parts_->engine;
    if (e.hooks.groups) (void)detail::rebind(e.tensors, e.hooks.groups(), comm());
  }

  std::unique_ptr<parts> parts_;  ///< on the heap: stay in place when the optimizer moves
  std::string name_;
  detail::known_checkpoints checkpoints_;
};

// Definitions of the calls.

template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(communicator transport, std::string name,
                                    const std::vector<param_group<P, G>>& groups, R rule,
                                    S schedule, const C& collective, dense_sum sum)
    : parts_(std::make_unique<parts>(groups, std::move(transport), std::move(rule),
                                     std::move(schedule), detail::checked_collective(collective),
                                     sum)),
      name_(std::move(name) + to_string(detail::resolved<G>(sum))) {
  engine_type& e = parts_->engine;
  detail::rank_fingerprint fingerprint = detail::own_header(name_, e).ranks;
  fingerprint.number = detail::next_number();
  e.begin_after_agreement(detail::compare_fingerprints(e.comm, fingerprint, e.tensors.sizes));
}
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>& optimizer<R, S, C, P, G>::operator=(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::~optimizer() = default;

template <class R, class S, class C, class P, class G>
report optimizer<R, S, C, P, G>::run_step(const step_runner* run, float lr,
                                          float inverse_loss_scale) {
  const detail::standard_arithmetic arithmetic;
  if (parts_->in_progress) {
    parts_->in_progress->require_idle("step()");
    parts_->in_progress->require(lr, inverse_loss_scale);
  } else {
    begin(lr, inverse_loss_scale);
  }
  const typename parts::close_after closing{*parts_};
  return parts_->in_progress->run(run);
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::begin(float lr, float inverse_loss_scale) {
  const detail::standard_arithmetic arithmetic;
  if (parts_->in_progress) {
    throw invalid_input(detail::error_text("optimizer: begin() twice in a step", where()));
  }
  rebind_if_asked();
  parts_->in_progress.emplace(parts_->engine, lr, inverse_loss_scale);
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::ready(std::size_t tensor) {
  const detail::standard_arithmetic arithmetic;
  if (!parts_->in_progress) {
    throw invalid_input(
        detail::error_text("optimizer: ready(", tensor, ") without begin()", where()));
  }
  parts_->in_progress->require_idle("ready()");
  const typename parts::close_after closing{*parts_};
  parts_->in_progress->ready(tensor);
}
template <class R, class S, class C, class P, class G>
outcome optimizer<R, S, C, P, G>::settle() {
  engine_type& e = parts_->engine;
  e.wait();
  const step_scalars now = onebit::detail::fetch_scalars(e.backend(), e.now(), rank(), size());
  e.watch.look(e, now, false, false);  // gradients may be gone
  return detail::outcome_of(now);
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, const group_options& options) {
  between_steps().tensors.set_group(group, options, rule(), comm());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, float lr_factor, float weight_decay) {
  between_steps().tensors.set_group(group, lr_factor, weight_decay, rule(), comm());
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::rebind(const std::vector<param_group<P, G>>& groups) {
  return detail::rebind(between_steps().tensors, groups, comm());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::join_model(communicator transport) {
  engine_type& e = between_steps();
  detail::check_streams(transport, e.backend());
  e.model_parts = detail::model_parallel_group<B>(std::move(transport), e.backend());
  ++e.graph_epoch;
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::veto_with(std::function<bool(float norm)> f) {
  engine_type& e = between_steps();
  detail::compare_vetoes(e.comm, static_cast<bool>(f));
  e.hooks.veto = std::move(f);
  e.vetoed = false;
  ++e.graph_epoch;
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::verify() {
  engine_type& e = between_steps();
  rebind_if_asked();
  detail::verify(e);
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::save(std::ostream& out) {
  engine_type& e = between_steps();
  rebind_if_asked();
  e.wait();
  if constexpr (requires { e.rule.written(e.at()); }) {
    e.tensors.copy_changes(e.backend());  // addresses of memory that has moved
    const auto written = e.rule.written(e.at());
    if (written) detail::throw_written(e.step, *written, where());
  }
  detail::save_checkpoint(e, out, detail::own_header(name_, e));
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::load(std::istream& in, resume_with with) {
  const detail::standard_arithmetic arithmetic;
  detail::load_checkpoint(
      parts_->engine, in, [&] { return header(); }, with, parts_->refusal());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::take([[maybe_unused]] const std::vector<given_moments>& moments,
                                    [[maybe_unused]] std::uint64_t steps) {
  if constexpr (takes_moments) {
    const detail::standard_arithmetic arithmetic;
    detail::take_moments(parts_->engine, moments, steps, parts_->in_progress.has_value());
  }
}
template <class R, class S, class C, class P, class G>
std::vector<tensor_moments> optimizer<R, S, C, P, G>::read_moments() {
  engine_type& e = between_steps();
  if constexpr (gives_moments) {
    const detail::standard_arithmetic arithmetic;
    return detail::moments_of(e);
  }
  return {};
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::read_old_job([[maybe_unused]] std::size_t n_ranks,
                                            [[maybe_unused]] detail::old_files files,
                                            [[maybe_unused]] resume_with with) {
  if constexpr (resumes) {
    const detail::standard_arithmetic arithmetic;
    detail::load_old_job_of(
        parts_->engine, n_ranks, files, [&] { return header(); }, with, parts_->refusal());
  }
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::state_bytes() const {
  return parts_->engine.state_bytes();
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::work_bytes() const {
  return parts_->engine.work_bytes();
}

}}  // namespace onebit
