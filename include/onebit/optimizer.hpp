// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <onebit/checkpoint/restore.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/model_parallel.hpp>
#include <onebit/step/report.hpp>
#include <onebit/step/state.hpp>
#include <onebit/step/step.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// A distributed optimizer: what a trainer holds.
///
/// The class comes first, and then what its calls do. These are not inline: a program that says
///
///     extern template class onebit::optimizer<RULE, SCHEDULE, COLLECTIVE, float, float>;
///
/// where it uses one, and the same without `extern` in one file, compiles them in that file alone.
namespace onebit::inline v0_2 {

/// The moments of one tensor, from elsewhere: as many of each as it has parameters.
struct given_moments {
  /// @{
  /// The averages of gradients, and of their squares.
  std::span<const float> m, v;
  /// @}
};

namespace detail {

/// Moments of tensors of these sizes to the flat axis, m and v. Throws invalid_input.
[[gnu::cold]] inline void flatten(const std::vector<given_moments>& moments,
                                  const std::vector<std::size_t>& sizes,
                                  std::vector<float> (&flat)[2], const std::string& where) {
  if (moments.size() != sizes.size()) {
    throw invalid_input(
        message("start_from: moments of ", moments.size(), " tensors for ", sizes.size(), where));
  }
  std::size_t first = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const given_moments& g = moments[t];
    if (g.m.size() != sizes[t] || g.v.size() != sizes[t]) {
      throw invalid_input(message("start_from: tensor ", t, " has ", sizes[t], " parameters, but ",
                                  g.m.size(), " of m and ", g.v.size(), " of v", where));
    }
    for (std::size_t i = 0; i < sizes[t]; ++i) {
      if (!std::isfinite(g.m[i]) || !(g.v[i] >= 0 && std::isfinite(g.v[i]))) {
        throw invalid_input(message("start_from: tensor ", t, " element ", i, " has m ", g.m[i],
                                    " and v ", g.v[i], "; both must be finite, v not negative",
                                    where));
      }
      flat[0][first + i] = g.m[i];
      flat[1][first + i] = g.v[i];
    }
    first += (sizes[t] + word_elements - 1) / word_elements * word_elements;
  }
}

}  // namespace detail

/// The moments of an engine's tensors, of so many steps, before its first one; `begun`: it has.
template <class E>
[[gnu::cold]] void take_moments(E& e, const std::vector<given_moments>& moments,
                                std::uint64_t steps, bool begun) {
  if (begun || e.step > 0) {
    throw invalid_input(detail::message("start_from: step ", e.step, " has begun or is done; ",
                                        "moments can be given before the first step only",
                                        e.comm.where()));
  }
  std::vector<float> flat[2];
  for (auto& f : flat) f.assign(e.average.axis().n_words() * word_elements, 0.0F);
  detail::flatten(moments, e.tensors.sizes, flat, e.comm.where());
  e.rule.take(flat[0].data(), flat[1].data());
  if (!e.rule.updated(step_plan{}).corrected) return;
  step_scalars s = e.fetch();
  s.bias = detail::bias_after(e.rule.own_moments(), steps);
  e.backend().copy_in(e.now(), &s, 1);
  e.tensors.count_steps(e.backend(), steps);
}

/// A distributed optimizer: a rule, a schedule and a collective over a transport.
///
/// Built collectively by all ranks over the same tensors and options, with equal parameters. Holds
/// views of the trainer's memory, which must outlive it and stay where it is. Movable.
/// `algorithms.hpp` has the usual pairings; a new pairing is a call of this constructor.
///
/// R  a Rule: adam_rule, lamb_rule, zero_one_rule; it says on which backend it runs
/// S  a Schedule: always_dense, freeze, intervals, custom_schedule
/// C  a Collective: gather_scatter, all_gather, hierarchical
template <class R, class S, class C, class P, class G>
class optimizer {
  static_assert(detail::can_be_trained<P, std::remove_const_t<G>>,
                "onebit: parameters must be float, bf16 or fp16, gradients the same or const");
  using engine_type = engine<R, S, detail::collective_for<C>, P, G>;
  using B = typename R::backend_type;
  using parts = running<engine_type>;

 public:
  using groups_type = std::vector<param_group<P, G>>;      ///< what it trains
  static constexpr bool takes_moments = R::takes_moments;  ///< it has start_from
  static constexpr bool resumes = ResumingRule<R>;         ///< with other ranks

  /// Collective: the ranks compare sizes, options and parameters, and all throw when one differs.
  /// `name` tells the algorithm and its options; ranks and checkpoints compare it. Throws
  /// invalid_input, rank_mismatch.
  template <class T>
  [[gnu::cold]] optimizer(std::string name, const std::vector<param_group<P, G>>& groups,
                          T transport, R rule, S schedule, const C& collective,
                          dense_sum sum = dense_sum::automatic)
      : optimizer(detail::communicator_of<C>(std::move(transport)), std::move(name), groups,
                  std::move(rule), std::move(schedule), collective, sum) {}
  optimizer(optimizer&&) noexcept;             ///< the other may only be assigned to, or end
  optimizer& operator=(optimizer&&) noexcept;  ///< a step that has begun is taken back
  [[gnu::cold]] ~optimizer();

  /// One step from the gradients that lie in the tensors now; lr is multiplied by each group's
  /// factor.
  ///
  /// Collective; waits, unless the backend is deferred. Cost of a step compressed by
  /// gather_scatter: 2 collectives (per bucket) and 2 (W-1)/W n/8 bytes sent, plus scales and
  /// status words; about 30 bytes of memory traffic per parameter. No allocation after the second
  /// step of a phase. Consumes the gradients (see onebit::tensor). When a rank's gradient is not
  /// finite, or reaches gradient_limit, no rank changes anything and all report the step as
  /// skipped. Throws invalid_input when lr is not finite or negative, on all ranks, unless the step
  /// is local (rank_mismatch on those that were told other numbers: no rank waits for one that was
  /// given a NaN); rank_mismatch when ranks are out of step, or what the transport, an allocation
  /// or a codec throws. Then nothing has changed here, but that the warm-up may have ended, which
  /// comes before a step.
  ///
  /// `inverse_loss_scale` multiplies every gradient as it is read. On a deferred backend (CUDA) the
  /// report does not know the outcome (`pending`), and a skipped step counts for the schedule;
  /// `settle` tells. Only steps on whose outcome the next one hangs wait for it.
  report step(float lr, float inverse_loss_scale = 1.0F) {
    const auto at_once = [](std::uint64_t, function_ref<void()> enqueue) { enqueue(); };
    return step_with(at_once, lr, inverse_loss_scale);
  }
  /// The same; what does not depend on its numbers goes through `run(key, enqueue)`, which calls
  /// enqueue() or does what it did with the same key before: a CUDA graph.
  report step_with(step_runner run, float lr, float inverse_loss_scale = 1.0F);

  /// Announces the next step, so that `ready` may send before it: `step` must follow with the same
  /// numbers, and refuses them if they cannot be used. Not collective.
  void begin(float lr, float inverse_loss_scale = 1.0F);
  /// Says that the gradients of one tensor, in the order of the groups, are final: buckets whose
  /// gradients are all known start to travel, the last bucket first. Leave them alone until the
  /// step returns: it reads them again, and dense steps may overwrite them. `ready` waits for all
  /// ranks where there is one bucket, where the transport cannot start collectives (threads), and
  /// where averages use memory again. Collective in its effect: all ranks announce the same in the
  /// same order, between begin() and step(), with which the others go. When the transport throws,
  /// the step is taken back: begin() again, with fresh gradients.
  void ready(std::size_t tensor);

  /// What became of the last step, on a deferred backend too: waits. Throws as step.
  outcome settle();
  /// report::gradient_norm of the last step; waits.
  [[nodiscard]] std::optional<float> gradient_norm() {
    const float norm = gradient_norm_of(now());
    return norm >= 0 ? std::optional(norm) : std::nullopt;
  }
  /// Steps skipped since the optimizer was built. Waits.
  [[nodiscard]] std::uint64_t n_skipped() { return now().n_skipped; }

  // What follows throws invalid_input between begin() and step(); load and load_old_job throw
  // checkpoint_error there.
  /// Other options for a group, by its place, from the next step on: schedules of decay and betas,
  /// discriminative rates, frozen layers. All ranks must do the same. Checkpoints hold it: a load
  /// with the same options brings it back. Throws invalid_input as the constructor, and for another
  /// eps.
  void set_group(std::size_t group, const group_options& options);
  void set_group(std::size_t group, float lr_factor, float weight_decay);  ///< the same, of these
  /// A tensor, in the order of the groups, has no gradient in the next step (torch's None), or in
  /// the next attempt, where that is skipped or fails: what lies there is not read, but it may be
  /// scratch from begin() on. Parameters, m, v and corrections stay, but for what compression owes,
  /// m in the first compressed step (a gradient of 0), and 0/1 Adam's earlier local steps. All
  /// ranks say so, or throw rank_mismatch.
  void rest(std::size_t tensor) { between_steps().tensors.rest(tensor, where()); }
  /// Memory that moved, with the same values, is where `groups` says from the next step on, on this
  /// rank. How many tensors have; 0 costs next to nothing. Throws invalid_input for
  /// other sizes.
  std::size_t rebind(const std::vector<param_group<P, G>>& groups);
  /// Takes moments over, of Adam in another framework: of each tensor, in the order of the groups,
  /// m and v before their bias is corrected (torch's exp_avg and exp_avg_sq), after so many steps.
  /// All ranks must give the same. Throws invalid_input after a step or begin(), where sizes
  /// differ, and where m or v is not finite or v is negative.
  void start_from(const std::vector<given_moments>& moments,
                  std::uint64_t steps) requires(takes_moments) {
    take(moments, steps);
  }

  /// For a model of which no rank holds the whole (pipeline stages, tensor-parallel ranks,
  /// experts): `transport` joins the ranks that hold the other parts of this rank's replica, in the
  /// same order on all replicas, each with an optimizer of its own. From now on a step that one
  /// skips all skip, and max_grad_norm is the norm of the whole (a tensor that several ranks hold
  /// counts as often). LAMB's layers are each rank's own tensors. Local steps are each rank's own.
  ///
  /// All make the same steps: one schedule, more than one rank each or one each; else all throw
  /// rank_mismatch. Not collective itself. Costs an all_gather of 20 bytes in steps that average or
  /// exchange, a second if both, or to clip alone.
  template <class T>
  [[gnu::cold]] void join_model_parallel(T transport) {
    join_model(detail::communicator_of<C>(std::move(transport)));
  }

  /// From the next step on `f(norm)` is asked on every rank before anything has changed; where one
  /// returns true, all ranks skip the step (in a local step this rank leaves its gradient out):
  /// thresholds, z-scores (as in llm.c). In steps that average, the norm is the mean gradient's;
  /// where they average squares, an estimate (6%). In other steps it is this rank's own norm,
  /// divided by the usual ratio of own to mean norm. There a rank is asked although another one's
  /// gradient may call the step off. When f throws, all skip, and the rank throws it after the
  /// step. Empty: nobody is asked.
  ///
  /// Collective: throws rank_mismatch on all ranks when one gives none and another does. The parts
  /// of a model (join_model_parallel) give one, or none. Costs in each step what clipping costs; in
  /// steps without an exchange one more collective of 4 bytes (and of the parts, one of 20); on a
  /// deferred backend it waits for the norm, and no step is captured.
  void veto_with(std::function<bool(float norm)> f);
  /// Before each step, save, load and verify calls `groups()` and rebinds to what it returns: for
  /// trainers whose memory moves (x = ..., a vector that grows). Empty: nobody is asked. Not
  /// collective; not from `groups` itself.
  void rebind_with(std::function<groups_type()> groups) {
    (void)between_steps();
    groups_ = std::move(groups);
  }
  /// Compares parameters, moments and what the ranks agreed on, bit for bit. Finds memory that
  /// fails, and trainers that write to parameters on one rank. Collective: throws rank_mismatch on
  /// all ranks, naming the one that differs from most; invalid_input after a local step, when ranks
  /// differ. Costs a pass over all of it on the host, 4 bytes per parameter for as long, and a
  /// collective of 24 bytes.
  [[gnu::cold]] void verify();

  /// Where warnings go (null: nowhere); at first to stderr. Rank 0 warns, and after 10 skipped
  /// steps in a row (20, 40, ...) the ranks that called them off. (On a deferred backend the
  /// library looks in settle, in steps that wait, and once in 128 steps.)
  void warn_with(void (*f)(const std::string& text)) { parts_->engine.warn = f; }

  /// Writes all that this rank needs to go on, residuals included; not the parameters. Not
  /// collective. Throws checkpoint_error.
  [[gnu::cold]] void save(std::ostream& out);
  /// Reads what `save` wrote on this rank. Between building the optimizer and this, restore the
  /// parameters of this rank: their digest is compared. (Not before building: ranks start equal,
  /// and between two exchanges of 0/1 Adam they are not.) Collective: when one rank fails, all
  /// throw, and nothing has changed. Throws checkpoint_error. Memory: the state twice.
  [[gnu::cold]] void load(std::istream& in, resume_with with = resume_with::same_options);
  /// Reads what `n_ranks` ranks of a job saved into the ranks of this one; `open(r)` gives rank r's
  /// file as a (unique) pointer to a stream. Rank r takes the place of rank r mod n_ranks, whose
  /// parameters it restores before; what the old ranks had still to send is kept on average. One
  /// rank alone goes on uncompressed; right after a refresh without m.
  /// Collective; throws as load. Costs reading all files on each rank; memory: the state three
  /// times.
  template <class Open>
  [[gnu::cold]] void load_old_job(std::size_t n_ranks, const Open& open,
                                  resume_with with = resume_with::same_options) requires resumes {
    read_old_job(
        n_ranks, [&](std::size_t r, function_ref<void(std::istream&)> read) { read(*open(r)); },
        with);
  }

  /// The transport, for what ranks decide together between steps. It counts as the optimizer's.
  [[nodiscard]] communicator transport() const { return parts_->engine.comm; }
  [[nodiscard]] int rank() const { return parts_->engine.comm.rank(); }  ///< of this optimizer
  [[nodiscard]] int size() const { return parts_->engine.comm.size(); }  ///< ranks that train
  /// Steps done, without the skipped ones (on a deferred backend, and in local steps, these count).
  [[nodiscard]] std::uint64_t steps() const { return parts_->engine.step; }
  [[nodiscard]] std::size_t n_parameters() const {  ///< of all tensors
    return parts_->engine.average.axis().n_elements();
  }
  /// Bytes that live from step to step in this phase.
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const;
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const;  ///< in one

  [[nodiscard]] const std::string& description() const { return name_; }       ///< and its options
  [[nodiscard]] const R& rule() const { return parts_->engine.rule; }          ///< a part
  [[nodiscard]] const S& schedule() const { return parts_->engine.schedule; }  ///< a part
  [[nodiscard]] auto& exchange() { return parts_->engine.compressed; }         ///< what sends
  [[nodiscard]] active_mask active() const { return parts_->engine.mask(); }  ///< what is exchanged
  /// One tensor of a field of all elements, such as exchange().sender().residual(active()). Waits.
  /// Throws invalid_input for a tensor that is not there, and for a residual before the first
  /// compressed step, when there is none.
  template <class Field>
  [[nodiscard]] std::vector<float> copy(const Field& field, std::size_t tensor) {
    auto& e = parts_->engine;
    if (tensor >= e.tensors.size()) {
      throw invalid_input(
          detail::message("optimizer: copy of tensor ", tensor, " of ", e.tensors.size(), where()));
    }
    if constexpr (requires { field.field.compensated.values; }) {  // see sender::residual
      if (field.field.compensated.values == nullptr) {
        throw invalid_input(detail::message(
            "optimizer: copy of a residual: step ", e.step,
            " comes before the first compressed step, when there is none", where()));
      }
    }
    const auto flat = e.compressed.sender().flatten(field);
    std::size_t words = 0;  // before it
    for (std::size_t i = 0; i < tensor; ++i) words += (e.tensors.sizes[i] + 31) / word_elements;
    std::vector<float> values(e.tensors.sizes[tensor]);
    e.backend().copy_out(values.data(), flat.data() + words * word_elements, values.size());
    return values;
  }

 private:
  [[gnu::cold]] optimizer(communicator transport, std::string name,
                          const std::vector<param_group<P, G>>& groups, R rule, S schedule,
                          const C& collective, dense_sum sum);
  [[gnu::cold]] void join_model(communicator transport);
  // What some pairings cannot do. The public names are constrained, but may not be defined
  // elsewhere (clang 14); these may, and are empty where they are never called.
  [[gnu::cold]] void take(const std::vector<given_moments>& moments, std::uint64_t steps);
  [[gnu::cold]] void read_old_job(std::size_t n_ranks, old_files files, resume_with with);
  [[nodiscard]] step_scalars now() { return parts_->engine.fetch(); }
  [[nodiscard]] std::string where() const { return parts_->engine.comm.where(); }
  [[nodiscard]] engine_type& between_steps() { return parts_->between_steps(); }
  [[nodiscard]] detail::checkpoint_header card() {
    look_again();
    return detail::own_header(name_, parts_->engine);
  }
  /// Asks where the tensors lie, if there is somebody to ask.
  void look_again() {
    if (groups_) (void)detail::rebind(parts_->engine.tensors, groups_(), where());
  }

  std::unique_ptr<parts> parts_;  ///< on the heap, where they stay when the optimizer moves
  std::string name_;
  std::function<groups_type()> groups_;  ///< or none: see rebind_with
};

// What the calls do.

template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(communicator transport, std::string name,
                                    const std::vector<param_group<P, G>>& groups, R rule,
                                    S schedule, const C& collective, dense_sum sum)
    : parts_(std::make_unique<parts>(groups, std::move(transport), std::move(rule),
                                     std::move(schedule), detail::checked_collective(collective),
                                     sum)),
      name_(std::move(name) + to_string(resolved<G>(sum))) {
  engine_type& e = parts_->engine;
  detail::rank_fingerprint card = detail::own_header(name_, e).ranks;
  card.number = detail::next_number();
  e.prepare(detail::compare_fingerprints(e.comm, card, e.tensors.sizes));
}
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>& optimizer<R, S, C, P, G>::operator=(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::~optimizer() = default;

template <class R, class S, class C, class P, class G>
report optimizer<R, S, C, P, G>::step_with(step_runner run, float lr, float inverse_loss_scale) {
  const detail::standard_arithmetic arithmetic;
  if (parts_->in_progress) {
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
    throw invalid_input(detail::message("optimizer: begin() twice in a step", where()));
  }
  look_again();
  parts_->in_progress.emplace(parts_->engine, lr, inverse_loss_scale);
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::ready(std::size_t tensor) {
  const detail::standard_arithmetic arithmetic;
  if (!parts_->in_progress) {
    throw invalid_input(detail::message("optimizer: ready(", tensor, ") without begin()", where()));
  }
  const typename parts::close_after closing{*parts_};
  parts_->in_progress->ready(tensor);
}
template <class R, class S, class C, class P, class G>
outcome optimizer<R, S, C, P, G>::settle() {
  engine_type& e = parts_->engine;
  e.wait();
  const step_scalars now = onebit::fetch_scalars(e.backend(), e.now(), rank(), size());
  e.watch(now, false, false);  // gradients may be gone
  return outcome_of(now);
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, const group_options& options) {
  between_steps().tensors.set_group(group, options, rule(), where());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, float lr_factor, float weight_decay) {
  between_steps().tensors.set_group(group, lr_factor, weight_decay, rule(), where());
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::rebind(const std::vector<param_group<P, G>>& groups) {
  return detail::rebind(between_steps().tensors, groups, where());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::join_model(communicator transport) {
  engine_type& e = between_steps();
  detail::check_streams(transport, e.backend());
  e.model_parts = model_parallel_group<B>(std::move(transport), e.backend());
  ++e.graph_epoch;
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::veto_with(std::function<bool(float norm)> f) {
  engine_type& e = between_steps();
  detail::compare_vetoes(e.comm, static_cast<bool>(f));
  e.veto = std::move(f);
  e.vetoed = false;
  ++e.graph_epoch;
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::verify() {
  engine_type& e = between_steps();
  look_again();
  detail::verify(e);
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::save(std::ostream& out) {
  engine_type& e = between_steps();
  look_again();
  e.wait();
  const detail::checkpoint_header card = detail::own_header(name_, e);
  detail::write_checkpoint(out, [&](detail::payload_writer& a) {
    a.local(card);
    e.archive(a);
  });
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::load(std::istream& in, resume_with with) {
  const detail::standard_arithmetic arithmetic;
  load_checkpoint(
      parts_->engine, in, [&] { return card(); }, with, parts_->refusal());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::take([[maybe_unused]] const std::vector<given_moments>& moments,
                                    [[maybe_unused]] std::uint64_t steps) {
  if constexpr (takes_moments) {
    const detail::standard_arithmetic arithmetic;
    take_moments(parts_->engine, moments, steps, parts_->in_progress.has_value());
  }
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::read_old_job([[maybe_unused]] std::size_t n_ranks,
                                            [[maybe_unused]] old_files files,
                                            [[maybe_unused]] resume_with with) {
  if constexpr (resumes) {
    const detail::standard_arithmetic arithmetic;
    load_old_job_of(
        parts_->engine, n_ranks, files, [&] { return card(); }, with, parts_->refusal());
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

}  // namespace onebit::inline v0_2
