// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <istream>
#include <memory>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/fields.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/loop.hpp>
#include <onebit/report.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/state.hpp>
#include <onebit/transport/counting.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// What a trainer holds.
namespace onebit {

/// A distributed optimizer: a rule, a schedule and a collective over a transport and a backend.
///
/// Built collectively by all ranks over the same tensors and options, with equal parameters. Holds
/// views of the trainer's memory, which must outlive it and stay where it is. Movable, not
/// copyable. `algorithms.hpp` has the usual pairings; a new pairing is a call of this constructor.
///
/// Rule        adam_rule, lamb_rule, zero_one_rule; see rule/adam.hpp for the members
/// Schedule    always_dense, freeze, intervals, custom_schedule; see schedule/freeze.hpp
/// Collective  gather_scatter<C>, all_gather<C>, hierarchical<C>
template <class Rule, class Schedule, class Collective, class T, class B, class P, class G>
class optimizer : private loop<Rule, Schedule, Collective, T, B, P, G> {
  static_assert(Element<P> && Element<std::remove_const_t<G>>,
                "onebit: parameters must be float, bf16 or fp16, gradients the same or const");
  using base = loop<Rule, Schedule, Collective, T, B, P, G>;

 public:
  using base::rank;
  using base::settle;
  using base::size;

  /// Collective: the ranks compare sizes, options and parameters, and all throw when one differs.
  /// `name` tells the algorithm and its options; ranks and checkpoints compare it. Throws
  /// invalid_input, rank_mismatch.
  optimizer(std::string name, const std::vector<param_group<P, G>>& groups, T transport, B backend,
            Rule rule, Schedule schedule, const Collective& collective,
            dense_sum sum = dense_sum::rank_order)
      : base(groups, std::move(transport), std::move(backend), std::move(rule), std::move(schedule),
             collective, sum),
        name_(std::move(name) + (sum == dense_sum::transport ? ", sums by the transport" : "")) {
    detail::roll_call(*transport_, own_card(parameter_digest()).ranks);
    base::start();
  }

  /// One step from the gradients that lie in the tensors now; lr is multiplied by each group's
  /// factor.
  ///
  /// Collective; waits, unless the backend is deferred. Cost of a step compressed by
  /// gather_scatter: 2 collectives (per bucket) and 2 (W-1)/W n/8 bytes sent, plus scales and
  /// status words; about 30 bytes of memory traffic per parameter. No allocation after the second
  /// step of a phase. Consumes the gradients (see onebit::tensor). When a rank's gradient is not
  /// finite, no rank changes anything and all report the step as skipped. Throws invalid_input when
  /// lr is not finite, rank_mismatch, or what the transport throws; then nothing has changed here.
  ///
  /// `inverse_loss_scale` multiplies every gradient as it is read. On a deferred backend (CUDA) the
  /// report does not know the outcome (`pending`), and a skipped step counts for the schedule;
  /// `settle` tells. Only steps on whose outcome the host depends wait for it (loop::conclude).
  report step(float lr, float inverse_loss_scale = 1.0F) {
    return step_with([](std::uint64_t, const auto& enqueue) { enqueue(); }, lr, inverse_loss_scale);
  }
  /// The same, and what does not depend on the step's numbers goes through `run(key, enqueue)`,
  /// which calls enqueue() or does what enqueue() did with the same key before: a CUDA graph.
  template <class Run>
  report step_with(Run&& run, float lr, float inverse_loss_scale = 1.0F) {
    if (!begun_) begin(lr, inverse_loss_scale);
    if (lr != begun_lr_ || inverse_loss_scale != begun_scale_) {
      throw invalid_input(detail::message("optimizer: step ", step_, " with lr ", lr, " and scale ",
                                          inverse_loss_scale, ", but begin() was told ", begun_lr_,
                                          " and ", begun_scale_, where()));
    }
    step_meter<counting<T>>& time = *time_;
    time.enter();
    begun_ = false;
    const std::uint64_t across = this->sent_across();
    outcome o = outcome::pending;
    try {
      if (B::deferred && !this->rule_must_know() && !sent_early_) {
        run(phase_ * 4 + plan_.average_gradient * 2U + plan_.exchange,
            [&] { o = this->enqueue(time); });
      } else {
        o = this->enqueue(time);
      }
    } catch (...) {
      this->take_back();
      throw;
    }
    o = this->conclude(o, lr);
    return time.finish(o, step_, !plan_.exchange && !plan_.average_gradient,
                       this->sent_across() - across);
  }

  /// Announces the next step, so that `ready` may send before it: `step` must follow with the same
  /// numbers. Not collective.
  void begin(float lr, float inverse_loss_scale = 1.0F) {
    if (!std::isfinite(lr) || !std::isfinite(inverse_loss_scale) || !(inverse_loss_scale > 0)) {
      throw invalid_input(detail::message("optimizer: step ", step_, " with lr ", lr,
                                          " and inverse loss scale ", inverse_loss_scale,
                                          "; both must be finite, the scale above 0", where()));
    }
    if (begun_) throw invalid_input(detail::message("optimizer: begin() twice in a step", where()));
    plan_ = schedule_.plan(step_, lr);
    if constexpr (Rule::local_steps) {
      rule_.check(plan_, lr, step_, entries_.data(), dense_.local());
    }
    float m_correction = 1, v_correction = 1;
    if constexpr (requires { rule_.corrections(step_); }) {
      const auto [m, v] = rule_.corrections(step_);
      m_correction = static_cast<float>(m);
      v_correction = static_cast<float>(v);
    }
    backend_.launch(1, detail::begin_step_kernel{now_.data(), lr, inverse_loss_scale, m_correction,
                                                 v_correction,
                                                 static_cast<std::uint32_t>(step_ % status_steps)});
    time_.emplace(*transport_, plan_, step_);
    begun_ = true;
    sent_early_ = false;
    begun_lr_ = lr;
    begun_scale_ = inverse_loss_scale;
    waiting_.assign(waiting_.size(), 1);
  }

  /// Says that the gradients of one tensor, in the order of the groups, are final: buckets whose
  /// gradients are all known start to travel, the last bucket first. Collective in its effect: all
  /// ranks announce the same tensors in the same order. Between begin() and step(); tensors that
  /// are not announced go with step(). Changes nothing but time. When the transport throws, the
  /// step is taken back: call begin() again, with fresh gradients.
  void ready(std::size_t tensor) {
    if (!begun_ || tensor >= waiting_.size()) {
      throw invalid_input(detail::message(
          "optimizer: ready(", tensor, ") ",
          begun_ ? "of " + std::to_string(waiting_.size()) + " tensors" : "without begin()",
          where()));
    }
    waiting_[tensor] = 0;
    time_->enter();
    try {
      this->send_known();
    } catch (...) {
      this->take_back();
      throw;
    }
    time_->leave();
  }

  /// Steps that all ranks skipped, or this one alone, since the optimizer was built. Waits.
  [[nodiscard]] std::uint64_t n_skipped() {
    step_scalars now;
    backend_.copy_out(&now, now_.data(), 1);
    return now.n_skipped;
  }

  /// Writes all that this rank needs to go on, residuals included; not the parameters, which are
  /// the trainer's. Not collective. Throws checkpoint_error when the stream fails, invalid_input
  /// between begin() and step().
  void save(std::ostream& out) {
    if (begun_) throw invalid_input(has_begun());
    const std::uint64_t parameters = parameter_digest();
    detail::write_checkpoint(out, [&](auto& a) {
      detail::checkpoint_card card = own_card(parameters);
      a.scalar(card);
      archive(a);
    });
  }

  /// Reads what `save` wrote on this rank. Restore the parameters first: their digest is compared.
  /// Collective: when one rank fails, all throw, and nothing has changed. Throws checkpoint_error.
  void load(std::istream& in) {
    std::optional<detail::memory_reader> payload;
    detail::checkpoint_card card = own_card(parameter_digest());
    std::string failure;
    try {
      if (begun_) throw invalid_input(has_begun());
      payload = detail::read_checkpoint(in);
      detail::checkpoint_card found;
      payload->scalar(found);
      failure = found.difference(card);
      card.step = found.step;
    } catch (const std::exception& e) {  // a stream may throw too; the other ranks wait
      failure = e.what();
    }
    detail::agree_on_checkpoint(*transport_, failure, card.step);
    archive(*payload);
  }

  /// Steps done, without the skipped ones (on a deferred backend, and in local steps, these count).
  [[nodiscard]] std::uint64_t steps() const { return step_; }
  [[nodiscard]] std::size_t n_parameters() { return dense_.local().axis().n_elements(); }

  /// Bytes that live from step to step in this phase.
  [[nodiscard]] std::size_t state_bytes() {
    return rule_.state_bytes() + undo_.bytes() +
           collective_.with([](auto& x) { return x.state_bytes(); });
  }
  /// Bytes of work space: messages and tables.
  [[nodiscard]] std::size_t work_bytes() {
    return entries_.bytes() + dense_.work_bytes() +
           collective_.with([](auto& x) { return x.work_bytes(); });
  }

  /// For inspection and tests: the rule, the schedule, and the exchange in use (f gets a two_phase,
  /// one_phase or two_level).
  [[nodiscard]] const Rule& rule() const { return rule_; }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }
  template <class F>
  decltype(auto) inspect(F&& f) {
    return collective_.with(std::forward<F>(f));
  }
  /// A field (index -> value) of the flat axis, copied out for one tensor, in the order of the
  /// groups.
  template <class Field, class Worker>
  [[nodiscard]] std::vector<float> copy(const Field& field, Worker& at, std::size_t tensor) {
    auto flat = backend_.template make_buffer<float>(at.axis().n_words() * word_elements);
    backend_.launch(at.axis().tiles().size(),
                    detail::copy_field_kernel<Field>{field, at.tiles(), flat.data()});
    std::size_t first = 0;
    for (std::size_t i = 0; i < tensor; ++i) {
      first += (tensors_.sizes[i] + word_elements - 1) / word_elements * word_elements;
    }
    std::vector<float> values(tensors_.sizes[tensor]);
    backend_.copy_out(values.data(), flat.data() + first, values.size());
    return values;
  }

 private:
  using base::backend_;
  using base::begun_;
  using base::begun_lr_;
  using base::begun_scale_;
  using base::collective_;
  using base::dense_;
  using base::entries_;
  using base::now_;
  using base::phase_;
  using base::plan_;
  using base::rule_;
  using base::schedule_;
  using base::sent_early_;
  using base::step_;
  using base::tensors_;
  using base::time_;
  using base::transport_;
  using base::undo_;
  using base::waiting_;
  using base::where;

  [[nodiscard]] detail::checkpoint_card own_card(std::uint64_t parameters) {
    const std::size_t slot_bytes =
        collective_.with([](auto& x) { return x.local().format().slot_bytes; });
    return {detail::make_card(name_, tensors_.sizes, parameters, slot_bytes),
            static_cast<std::uint32_t>(rank()), static_cast<std::uint32_t>(size()), step_};
  }

  [[nodiscard]] std::string has_begun() const {
    return detail::message("optimizer: step ", step_,
                           " has begun; save and load before begin() or after step()", where());
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(step_);
    schedule_.archive(a);
    rule_.archive(a);
    if constexpr (Schedule::compresses) {
      collective_.with([&](auto& exchange) { exchange.archive(a); });
    }
    if constexpr (Archive::reading) {
      dense_.release();
      ++phase_;
    }
  }

  [[nodiscard]] std::uint64_t parameter_digest() {
    digest d;
    for (std::size_t i = 0; i < tensors_.sizes.size(); ++i) {
      add_to(d, tensors_.entries[i].params, tensors_.sizes[i]);
      if (tensors_.entries[i].master != nullptr) {
        add_to(d, tensors_.entries[i].master, tensors_.sizes[i]);
      }
    }
    return d.value();
  }
  template <class U>
  void add_to(digest& d, const U* data, std::size_t n) {
    if constexpr (B::deferred) {
      constexpr std::size_t piece = std::size_t{1} << 20U;
      std::vector<U> here(n < piece ? n : piece);
      for (std::size_t at = 0; at < n; at += piece) {
        const std::size_t m = n - at < piece ? n - at : piece;
        backend_.copy_out(here.data(), data + at, m);
        d.add(here.data(), m * sizeof(U));
      }
    } else {
      d.add(data, n * sizeof(U));
    }
  }

  std::string name_;
};

}  // namespace onebit
