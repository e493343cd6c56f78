// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/collective/dense.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/report.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/step.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/counting.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The loop that all algorithms share.
namespace onebit {

/// The steps of an optimizer: plan, average, exchange, update. See optimizer.hpp for what is built
/// around it.
template <class Rule, class Schedule, class Collective, class T, class B, class P, class G>
class loop {
 protected:
  template <class U>
  using buffer = decltype(std::declval<B&>().template make_buffer<U>(0));
  using bound =
      decltype(std::declval<const Collective&>().template bind<counting<T>, B, Rule::accumulates>(
          std::declval<counting<T>&>(), std::declval<const B&>(), {}));

  /// Collective: all ranks throw when one rejects its input.
  loop(const std::vector<param_group<P, G>>& groups, T transport, B backend, Rule rule,
       Schedule schedule, const Collective& collective, dense_sum sum)
      : transport_(std::make_unique<counting<T>>(std::move(transport))),
        backend_(std::move(backend)),
        tensors_(detail::attend(*transport_,
                                [&] { return detail::flat_tensors<P, G>(groups, where()); })),
        rule_(std::move(rule)),
        schedule_(std::move(schedule)),
        dense_(detail::attend(*transport_,
                              [&] {
                                return dense<counting<T>, B>(sum, *transport_, backend_,
                                                             tensors_.sizes, buckets(collective));
                              })),
        collective_(bind_alike(collective)),
        entries_(to_buffer(backend_, tensors_.entries)),
        now_(backend_.template make_buffer<step_scalars>(1)),
        waiting_(tensors_.sizes.size(), 1) {}

  /// Collective. Ranks that see other nodes would wait for each other where the transport is split.
  [[nodiscard]] bound bind_alike(const Collective& collective) {
    if constexpr (requires { collective.ranks_per_node; }) {
      const std::string nodes = std::to_string(collective.ranks_per_node) + " ranks per node";
      detail::roll_call(*transport_, detail::make_card(nodes, {}, 0, 0));
    }
    return detail::attend(*transport_, [&] {
      return collective.template bind<counting<T>, B, Rule::accumulates>(*transport_, backend_,
                                                                         tensors_.sizes);
    });
  }
  /// Buffers that need the ranks to agree first.
  void start() {
    rule_.prepare(dense_.local().axis());
    if constexpr (Rule::local_steps) {
      collective_.with([&](auto& x) {
        x.local().set_live(
            backend_.template make_buffer<std::uint32_t>(dense_.local().axis().n_words()));
        x.start_empty();
      });
    }
  }
  /// What became of the last step, on a deferred backend too: waits for it. Throws rank_mismatch,
  /// and what the transport throws.
  outcome settle() {
    if constexpr (requires { transport_->wait(); }) transport_->wait();
    return onebit::settle(backend_, now_.data(), rank(), size());
  }
  [[nodiscard]] int rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->size(); }
  [[nodiscard]] std::string where() const { return detail::rank_suffix(rank(), size()); }

  std::unique_ptr<counting<T>> transport_;
  B backend_;
  detail::flat_tensors<P, G> tensors_;
  Rule rule_;
  Schedule schedule_;
  dense<counting<T>, B> dense_;
  bound collective_;
  buffer<tensor_entry<P, G>> entries_;
  buffer<step_scalars> now_;  ///< one: the step in progress
  buffer<float> undo_;        ///< only where the gradients cannot hold what is overwritten
  std::uint64_t step_ = 0;
  std::uint64_t phase_ = 0;  ///< changes when a step uses other memory than the one before

  [[nodiscard]] int buckets(const Collective& collective) const {
    if constexpr (requires { collective.bucket_elements; }) {
      return detail::n_buckets(tensors_.sizes, collective.bucket_elements);
    } else {
      return 1;
    }
  }

  /// All that a step computes and communicates.
  outcome enqueue(step_meter<counting<T>>& time) {
    step_scalars* now = now_.data();
    outcome o = outcome::agreed;
    if (plan_.average_gradient) {
      o = dense_.agree(rule_.gradient(entries_.data(), now), now);
    }
    if (o != outcome::skipped) {
      if constexpr (Schedule::compresses) {
        o = plan_.exchange ? exchange(time) : update_locally(o, time);
      } else {
        time.agreed();
        rule_.refresh(dense_.pending(), dense_.local(), entries_.data(), now);
      }
    }
    backend_.launch(1, detail::end_step_kernel{now});
    return o;
  }

  /// A step without exchange: dense, or for rules that have them a local one.
  outcome update_locally(outcome o, step_meter<counting<T>>& time) {
    const auto* entries = entries_.data();
    step_scalars* now = now_.data();
    if constexpr (Rule::local_steps) {
      const bool alone = !plan_.average_gradient;
      return collective_.with([&](auto& x) {
        if (alone) {
          x.local().require_finite(rule_.gradient(entries, now), now);
          o = outcome_so_far(backend_, now, rank(), size());
        }
        time.agreed();
        if (!alone) {
          preview_live(x);
          rule_.refresh(dense_.pending(), dense_.local(), entries, now);
        }
        if (!Rule::refresh_is_step || alone) {
          if (o != outcome::skipped) rule_.local_step(x.local(), entries, now);
          rule_.count_local(x.local(), now, alone);
        }
        x.local().settle_live(o, now);
        return o;
      });
    } else {
      time.agreed();
      rule_.refresh(dense_.pending(), dense_.local(), entries, now);
      return o;
    }
  }

  /// Calls f with where an encode pass saves what it overwrites: in the gradients, if they may be
  /// written and can hold it; nowhere for an exchange that overwrites nothing.
  template <class Exchange, class F>
  decltype(auto) with_undo(const Exchange&, const F& f) {
    if constexpr (!Exchange::saves) {
      return f(undo_in_buffer{});
    } else if constexpr (std::is_same_v<G, float>) {
      return f(undo_in_gradients<P, G>{entries_.data()});
    } else {
      if (undo_.size() == 0) {
        undo_ =
            backend_.template make_buffer<float>(dense_.local().axis().n_words() * word_elements);
      }
      return f(undo_in_buffer{undo_.data()});
    }
  }

  /// Takes back what has been done of a step that cannot go on.
  void take_back() {
    begun_ = false;
    dense_.finish();
    if constexpr (Schedule::compresses) {
      if (!plan_.exchange) return;
      collective_.with([&](auto& x) {
        with_undo(x, [&](const auto& undo) { x.rollback(undo, now_.data(), false); });
        x.local().settle_live(outcome::skipped, now_.data());
      });
    }
  }

  /// A step with a compressed exchange. Changes nothing unless all agree.
  outcome exchange(step_meter<counting<T>>& time) {
    const auto* entries = entries_.data();
    step_scalars* now = now_.data();
    return collective_.with([&](auto& x) {
      return with_undo(x, [&](const auto& undo) {
        if (plan_.average_gradient) preview_live(x);
        const outcome o = x.agree(rule_.message(x.agreed(), entries, now), undo, now);
        if (o != outcome::skipped) {
          time.agreed();
          if (plan_.average_gradient) {
            rule_.refresh(dense_.pending(), dense_.local(), entries, now);
          }
          rule_.apply(x.pending(), x.agreed(), x.local(), entries, now);
        }
        if (o != outcome::agreed) x.rollback(undo, now, o == outcome::pending);
        if (o != outcome::skipped) x.commit(now);
        x.local().settle_live(o, now);
        return o;
      });
    });
  }

  /// Puts the mask of the elements that will have variance in use for this step.
  template <class Exchange>
  void preview_live(Exchange& x) {
    if constexpr (Rule::local_steps) {
      x.local().preview_live(
          [&](std::uint32_t* live) { rule_.preview_live(dense_.pending(), dense_.local(), live); });
    }
  }

  /// Are all gradients of the next bucket of an exchange known?
  template <class Exchange>
  [[nodiscard]] bool is_known(Exchange& x) {
    const int b = x.n_unsent() - 1;
    if (b < 0) return false;
    const layout& axis = x.local().axis();
    const tile_range part = axis.bucket_at(b).tiles;
    if (part.begin == part.end) return true;
    const std::uint32_t last = axis.tiles()[part.end - 1].tensor;
    for (std::uint32_t t = axis.tiles()[part.begin].tensor; t <= last; ++t) {
      if (waiting_[t] != 0 && tensors_.sizes[t] > 0) return false;
    }
    return true;
  }

  /// Sends the buckets whose gradients are all known.
  void send_known() {
    const auto* entries = entries_.data();
    step_scalars* now = now_.data();
    if (plan_.average_gradient) {
      for (; is_known(dense_); sent_early_ = true) {
        dense_.send_next(rule_.gradient(entries, now), now);
      }
    } else if (plan_.exchange) {
      collective_.with([&](auto& x) {
        with_undo(x, [&](const auto& undo) {
          for (; is_known(x); sent_early_ = true) {
            x.send_next(rule_.message(x.agreed(), entries, now), undo, now);
          }
        });
      });
    }
  }

  /// Bytes that left this node so far, where the collective knows nodes.
  [[nodiscard]] std::uint64_t sent_across() {
    return collective_.with([](auto& x) -> std::uint64_t {
      if constexpr (requires { x.sent_across(); }) return x.sent_across().bytes_sent;
      return 0;
    });
  }
  [[nodiscard]] bool rule_must_know() const {
    if constexpr (requires { rule_.must_know(); }) return rule_.must_know();
    return false;
  }
  [[nodiscard]] bool may_freeze() const {
    if constexpr (requires { schedule_.may_freeze_after(step_); }) {
      return schedule_.may_freeze_after(step_);
    }
    return wants_variance_norm();
  }
  [[nodiscard]] bool wants_variance_norm() const {
    if constexpr (Schedule::compresses && !Rule::local_steps) {
      return plan_.average_gradient && schedule_.wants_variance_norm();
    }
    return false;
  }

  /// The host's part of the end of a step. On a deferred backend the outcome is fetched where
  /// something on the host hangs on it: in a few steps of a training, and while the end of the
  /// warm-up is looked for.
  outcome conclude(outcome o, float lr) {
    if (o == outcome::pending && (rule_must_know() || may_freeze())) o = settle();
    const bool alone = !plan_.exchange && !plan_.average_gradient;
    if (o == outcome::skipped && !alone) return o;
    if (rule_must_know()) ++phase_;
    if constexpr (requires { rule_.conclude(plan_, lr); }) rule_.conclude(plan_, lr);
    if constexpr (Schedule::compresses) advance(lr);
    return o;
  }

  /// Tells the schedule that a step was done; ends the warm-up where it says so.
  void advance(float lr) {
    if constexpr (requires { schedule_.observe(step_, lr); }) schedule_.observe(step_, lr);
    double norm = 0;
    if constexpr (!Rule::local_steps) {
      if (wants_variance_norm()) norm = rule_.variance_norm(dense_.local());
    }
    const bool freezes = schedule_.freezes_after(step_, norm);
    if constexpr (requires { schedule_.averages_after(step_); }) {
      if (!schedule_.averages_after(step_)) dense_.release();
    }
    if (!freezes) return;
    ++phase_;
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

  step_plan plan_;
  std::optional<step_meter<counting<T>>> time_;
  bool begun_ = false;
  bool sent_early_ = false;  ///< by `ready`, in this step
  float begun_lr_ = 0, begun_scale_ = 1;
  std::vector<char> waiting_;  ///< tensors whose gradients are not announced
};

}  // namespace onebit
