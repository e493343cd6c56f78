// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <istream>
#include <memory>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/report.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/state.hpp>
#include <onebit/transport/counting.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// The loop that all algorithms share.
namespace onebit {

/// A distributed optimizer: a rule, a schedule and a collective over a transport and a backend.
///
/// Built collectively by all ranks over the same tensors and options, with equal parameters. Holds
/// views of the trainer's memory, which must outlive it and stay where it is. Movable, not
/// copyable. `algorithms.hpp` has the usual pairings; a new pairing is a call of this constructor.
///
/// Rule        adam_rule; see rule/adam.hpp for its members
/// Schedule    always_dense, freeze; see schedule/freeze.hpp
/// Collective  gather_scatter<C>, all_gather<C>
template <class Rule, class Schedule, class Collective, class T, class B, class P, class G>
class optimizer {
  static_assert(std::is_same_v<std::remove_const_t<G>, float> && std::is_same_v<P, float>,
                "onebit: parameters must be float, gradients float or const float");

 public:
  /// Collective: the ranks compare sizes, options and parameters, and all throw when one differs.
  /// `name` tells the algorithm and its options; ranks and checkpoints compare it. Throws
  /// invalid_input, rank_mismatch.
  optimizer(std::string name, const std::vector<param_group<P, G>>& groups, T transport, B backend,
            Rule rule, Schedule schedule, const Collective& collective,
            dense_sum sum = dense_sum::rank_order)
      : name_(std::move(name) + (sum == dense_sum::transport ? ", sums by the transport" : "")),
        transport_(std::make_unique<counting<T>>(std::move(transport))),
        backend_(std::move(backend)),
        tensors_(detail::attend(*transport_,
                                [&] { return detail::flat_tensors<P, G>(groups, where()); })),
        rule_(std::move(rule)),
        schedule_(std::move(schedule)),
        dense_(detail::attend(
            *transport_,
            [&] { return dense<counting<T>, B>(sum, *transport_, backend_, tensors_.sizes); })),
        collective_(
            detail::attend(*transport_,
                           [&] {
                             return collective.template bind<counting<T>, B, Rule::accumulates>(
                                 *transport_, backend_, tensors_.sizes);
                           })),
        entries_(to_buffer(backend_, tensors_.entries)) {
    detail::roll_call(*transport_, own_card(parameter_digest()).ranks);
    rule_.prepare(dense_.local().axis());
    if constexpr (Rule::local_steps) {
      collective_.with([&](auto& x) {
        x.local().set_live(
            backend_.template make_buffer<std::uint32_t>(dense_.local().axis().n_words()));
        x.start_empty();
      });
    }
  }

  /// One step from the gradients that lie in the tensors now; lr is multiplied by each group's
  /// factor.
  ///
  /// Collective; waits. Cost of a compressed step: 2 collectives and 2 (W-1)/W n/8 bytes sent, plus
  /// scales and status words; about 30 bytes of memory traffic per parameter. No allocation after
  /// the first step of a phase. Consumes the gradients (see onebit::tensor). When a rank's gradient
  /// is not finite, no rank changes anything and all report the step as skipped. Throws
  /// invalid_input when lr is not finite, rank_mismatch, or what the transport throws; then nothing
  /// has changed here.
  report step(float lr) {
    if (!std::isfinite(lr)) {
      throw invalid_input(detail::message("optimizer: step ", step_, " with lr ", lr,
                                          "; it must be finite", where()));
    }
    step_plan plan = schedule_.plan(step_, lr);
    if constexpr (Rule::local_steps) {
      rule_.check(plan, lr, step_, entries_.data(), dense_.local());
    }
    step_meter time(*transport_, plan, step_);
    if (plan.average_gradient &&
        dense_.agree(rule_.gradient(entries_.data()), step_) == outcome::skipped) {
      return time.finish(outcome::skipped, step_);
    }
    outcome o = outcome::agreed;
    if constexpr (Schedule::compresses) {
      if (plan.exchange) {
        o = exchange(plan, lr, time);
      } else {
        o = update_locally(plan, lr, time);
      }
      if (o == outcome::agreed || !plan.exchange) advance(plan, lr);
    } else {
      time.agreed();
      rule_.refresh(dense_.pending(), dense_.local(), entries_.data(), lr, step_);
    }
    return time.finish(o, step_, !plan.exchange);
  }

  /// Writes all that this rank needs to go on, residuals included; not the parameters, which are
  /// the trainer's. Not collective. Throws checkpoint_error when the stream fails.
  void save(std::ostream& out) {
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

  [[nodiscard]] int rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->size(); }
  /// Steps done, without the skipped ones.
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

  /// For inspection and tests: the rule, the schedule, and the exchange in use (f gets a two_phase
  /// or one_phase).
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
    return {flat.data() + first, flat.data() + first + tensors_.sizes[tensor]};
  }

 private:
  using clock = std::chrono::steady_clock;
  using bound =
      decltype(std::declval<const Collective&>().template bind<counting<T>, B, Rule::accumulates>(
          std::declval<counting<T>&>(), std::declval<const B&>(), {}));
  template <class U>
  using buffer = decltype(std::declval<B&>().template make_buffer<U>(0));

  [[nodiscard]] detail::checkpoint_card own_card(std::uint64_t parameters) {
    const std::size_t slot_bytes =
        collective_.with([](auto& x) { return x.local().format().slot_bytes; });
    return {detail::make_card(name_, tensors_.sizes, parameters, slot_bytes),
            static_cast<std::uint32_t>(rank()), static_cast<std::uint32_t>(size()), step_};
  }

  /// A step without exchange: dense, or for rules that have them a local one.
  outcome update_locally(const step_plan& plan, float lr, step_meter<counting<T>>& time) {
    const auto* entries = entries_.data();
    if constexpr (Rule::local_steps) {
      return collective_.with([&](auto& x) {
        if (!plan.average_gradient && !x.local().finite(rule_.gradient(entries))) {
          return outcome::skipped;
        }
        time.agreed();
        if (plan.average_gradient) {
          preview_live(x);
          rule_.refresh(dense_.pending(), dense_.local(), entries, lr, step_);
        }
        if (!Rule::refresh_is_step || !plan.average_gradient) {
          rule_.local_step(x.local(), entries, lr);
        }
        return outcome::agreed;
      });
    } else {
      time.agreed();
      rule_.refresh(dense_.pending(), dense_.local(), entries, lr, step_);
      return outcome::agreed;
    }
  }

  /// A step with a compressed exchange. Changes nothing unless all agree.
  outcome exchange(const step_plan& plan, float lr, step_meter<counting<T>>& time) {
    if constexpr (std::is_const_v<G>) {
      if (undo_.size() == 0) {
        undo_ =
            backend_.template make_buffer<float>(dense_.local().axis().n_words() * word_elements);
      }
      return exchange(plan, lr, time, undo_in_buffer{undo_.data()});
    } else {
      return exchange(plan, lr, time, undo_in_gradients<P, G>{entries_.data()});
    }
  }
  template <class Undo>
  outcome exchange(const step_plan& plan, float lr, step_meter<counting<T>>& time,
                   const Undo& undo) {
    const auto* entries = entries_.data();
    return collective_.with([&](auto& x) {
      if (plan.average_gradient) preview_live(x);
      const auto take_back = [&] {
        x.rollback(undo);
        if (plan.average_gradient) x.local().swap_live(live_);
      };
      outcome o = outcome::skipped;
      try {
        o = x.agree(rule_.message(x.agreed(), entries, lr), undo, step_);
      } catch (...) {
        take_back();
        throw;
      }
      if (o == outcome::skipped) {
        take_back();
        return o;
      }
      time.agreed();
      if (plan.average_gradient) {
        rule_.refresh(dense_.pending(), dense_.local(), entries, lr, step_);
      }
      rule_.apply(x.pending(), x.agreed(), x.local(), entries, lr);
      x.commit();
      return o;
    });
  }

  /// Puts the mask of the elements that will have variance in use; `live_` keeps the one of before.
  template <class Exchange>
  void preview_live(Exchange& x) {
    if constexpr (Rule::local_steps) {
      if (live_.size() == 0) {
        live_ = backend_.template make_buffer<std::uint32_t>(dense_.local().axis().n_words());
      }
      rule_.preview_live(dense_.pending(), dense_.local(), live_.data());
      x.local().swap_live(live_);
    }
  }

  /// Tells the schedule that a step was done; ends the warm-up where it says so.
  void advance(const step_plan& plan, float lr) {
    if constexpr (requires { schedule_.observe(step_, lr); }) schedule_.observe(step_, lr);
    double norm = 0;
    if constexpr (!Rule::local_steps) {
      if (plan.average_gradient && schedule_.wants_variance_norm()) {
        norm = rule_.variance_norm(dense_.local());
      }
    }
    const bool freezes = schedule_.freezes_after(step_, norm);
    if constexpr (requires { schedule_.averages_after(step_); }) {
      if (!schedule_.averages_after(step_)) dense_.release();
    }
    if (!freezes) return;
    dense_.release();
    collective_.with([&](auto& x) {
      if constexpr (Rule::local_steps) {
        rule_.freeze();
        x.clear_residuals();
      } else {
        auto live = backend_.template make_buffer<std::uint32_t>(dense_.local().axis().n_words());
        auto given = rule_.freeze(live.data(), dense_.local(), step_);
        x.local().set_live(std::move(live));
        x.adopt(std::move(given));
      }
    });
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(step_);
    schedule_.archive(a);
    rule_.archive(a);
    if constexpr (Schedule::compresses) {
      collective_.with([&](auto& exchange) { exchange.archive(a); });
    }
    if constexpr (Archive::reading) dense_.release();
  }

  [[nodiscard]] std::uint64_t parameter_digest() const {
    digest d;
    for (std::size_t i = 0; i < tensors_.sizes.size(); ++i) {
      d.add(tensors_.entries[i].params, tensors_.sizes[i] * sizeof(P));
    }
    return d.value();
  }
  [[nodiscard]] std::string where() const { return detail::rank_suffix(rank(), size()); }

  std::string name_;
  std::unique_ptr<counting<T>> transport_;
  B backend_;
  detail::flat_tensors<P, G> tensors_;
  Rule rule_;
  Schedule schedule_;
  dense<counting<T>, B> dense_;
  bound collective_;
  buffer<tensor_entry<P, G>> entries_;
  buffer<std::uint32_t> live_;  ///< the mask in use before this step
  buffer<float> undo_;          ///< only where the gradients must not be written
  std::uint64_t step_ = 0;
};

}  // namespace onebit
