// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <memory>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
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

enum class phase : std::uint8_t {
  dense,      ///< exact averages: a baseline, or the warm-up of a compressed algorithm
  compressed  ///< compressed exchange
};

[[nodiscard]] constexpr std::string_view to_string(phase p) {
  return p == phase::dense ? "dense" : "compressed";
}

/// What one step did, on this rank.
struct report {
  std::uint64_t step = 0;  ///< its number, from 0; a skipped step's number is used again
  onebit::phase phase = phase::dense;
  bool skipped = false;  ///< a rank saw a non-finite gradient; no rank changed anything
  std::uint64_t bytes_sent = 0;
  std::uint32_t collectives = 0;
  double encode_seconds = 0;
  double communicate_seconds = 0;  ///< includes the wait for slower ranks
  double update_seconds = 0;
};

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
      : name_(std::move(name)),
        transport_(std::make_unique<counting<T>>(std::move(transport))),
        backend_(std::move(backend)),
        tensors_(detail::attend(*transport_,
                                [&] { return detail::flat_tensors<P, G>(groups, where()); })),
        rule_(std::move(rule)),
        schedule_(std::move(schedule)),
        dense_(sum, *transport_, backend_, tensors_.sizes),
        collective_(collective, *transport_, backend_, tensors_.sizes),
        entries_(to_buffer(backend_, tensors_.entries)) {
    detail::roll_call(*transport_, detail::make_card(name_, tensors_.sizes, parameter_digest()));
    rule_.prepare(dense_.local().axis());
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
    if constexpr (Schedule::compresses) {
      if (schedule_.plan(step_, lr).exchange) return compressed_step(lr);
    }
    return dense_step(lr);
  }

  /// Writes all that this rank needs to go on, residuals included; not the parameters, which are
  /// the trainer's. Not collective. Throws checkpoint_error when the stream fails.
  void save(std::ostream& out) {
    const std::uint64_t parameters = parameter_digest();
    detail::write_checkpoint(out, [&](auto& a) {
      checkpoint_card card = own_card(parameters);
      a.scalar(card);
      archive(a);
    });
  }

  /// Reads what `save` wrote on this rank. Restore the parameters first: their digest is compared.
  /// Collective: when one rank fails, all throw, and nothing has changed. Throws checkpoint_error.
  void load(std::istream& in) {
    std::optional<detail::memory_reader> payload;
    checkpoint_card card = own_card(parameter_digest());
    std::string failure;
    try {
      payload = detail::read_checkpoint(in);
      checkpoint_card found;
      payload->scalar(found);
      failure = found.difference(card);
      card.step = found.step;
    } catch (const checkpoint_error& e) {
      failure = e.what();
    }
    const std::uint64_t mine = failure.empty() ? card.step : ~std::uint64_t{0};
    std::vector<std::uint64_t> steps(static_cast<std::size_t>(size()));
    transport_->all_gather(&mine, steps.data(), sizeof mine);
    if (!failure.empty()) throw checkpoint_error(failure + where());
    for (std::size_t r = 0; r < steps.size(); ++r) {
      if (steps[r] == ~std::uint64_t{0}) {
        throw checkpoint_error(detail::message("load: rank ", r,
                                               " could not read its checkpoint; "
                                               "nothing was loaded on any rank",
                                               where()));
      }
      if (steps[r] != mine) {
        throw checkpoint_error(detail::message("load: rank ", r, " has a checkpoint of step ",
                                               steps[r], ", this rank one of step ", mine,
                                               "; nothing was loaded on any rank", where()));
      }
    }
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

  /// For inspection and tests: the rule, and the exchange in use (f gets a two_phase or one_phase).
  [[nodiscard]] const Rule& rule() const { return rule_; }
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
  using bound = typename Collective::template bound<counting<T>, B>;
  template <class U>
  using buffer = decltype(std::declval<B&>().template make_buffer<U>(0));

  /// What must fit before a checkpoint is used. Trivially copyable: part of the format.
  struct checkpoint_card {
    detail::rank_card ranks;
    std::uint32_t rank = 0, size = 0;
    std::uint64_t step = 0;

    [[nodiscard]] std::string difference(const checkpoint_card& here) const {
      const auto differ = [](const auto& what, const auto& a, const auto& b) {
        return detail::message("checkpoint: it has ", what, a, ", this optimizer ", b);
      };
      if (std::strncmp(ranks.name, here.ranks.name, sizeof ranks.name) != 0) {
        return differ("", std::string(ranks.name, strnlen(ranks.name, sizeof ranks.name)),
                      here.ranks.name);
      }
      if (size != here.size) return differ("world size ", size, here.size);
      if (rank != here.rank) return differ("rank ", rank, here.rank);
      if (ranks.n_tensors != here.ranks.n_tensors) {
        return differ("tensors: ", ranks.n_tensors, here.ranks.n_tensors);
      }
      if (ranks.n_elements != here.ranks.n_elements) {
        return differ("parameters: ", ranks.n_elements, here.ranks.n_elements);
      }
      if (ranks.sizes_digest != here.ranks.sizes_digest) {
        return detail::message("checkpoint: its tensors have other sizes or another order");
      }
      if (ranks.parameter_digest != here.ranks.parameter_digest) {
        return detail::message("checkpoint: the parameters in memory are not those of step ", step,
                               " at which it was saved; restore the parameters before load()");
      }
      return {};
    }
  };
  [[nodiscard]] checkpoint_card own_card(std::uint64_t parameters) const {
    return {detail::make_card(name_, tensors_.sizes, parameters),
            static_cast<std::uint32_t>(rank()), static_cast<std::uint32_t>(size()), step_};
  }

  report dense_step(float lr) {
    const traffic before = transport_->sent();
    const auto start = clock::now();
    const auto* entries = entries_.data();
    const outcome o = dense_.agree(rule_.gradient(entries), step_);
    const auto agreed = clock::now();
    if (o == outcome::agreed) {
      rule_.refresh(dense_.pending(), dense_.local(), entries, lr, step_);
      if constexpr (Schedule::compresses) {
        const double norm =
            schedule_.wants_variance_norm() ? rule_.variance_norm(dense_.local()) : 0;
        if (schedule_.freezes_after(step_, norm)) freeze_now();
      }
    }
    return finish(phase::dense, o, before, start, agreed);
  }

  /// The end of the warm-up: v becomes constant, m goes over to the collective.
  void freeze_now() {
    dense_.release();
    collective_.with([&](auto& exchange) {
      auto live = backend_.template make_buffer<std::uint32_t>(dense_.local().axis().n_words());
      auto given = rule_.freeze(live.data(), dense_.local(), step_);
      exchange.local().set_live(std::move(live));
      exchange.adopt(std::move(given));
    });
  }

  report compressed_step(float lr) {
    if constexpr (std::is_const_v<G>) {
      if (undo_.size() == 0) {
        undo_ =
            backend_.template make_buffer<float>(dense_.local().axis().n_words() * word_elements);
      }
      return compressed_step(lr, undo_in_buffer{undo_.data()});
    } else {
      return compressed_step(lr, undo_in_gradients<P, G>{entries_.data()});
    }
  }

  template <class Undo>
  report compressed_step(float lr, const Undo& undo) {
    const traffic before = transport_->sent();
    const auto start = clock::now();
    const auto* entries = entries_.data();
    return collective_.with([&](auto& exchange) {
      outcome o = outcome::skipped;
      try {
        o = exchange.agree(rule_.message(exchange.agreed(), entries, lr), undo, step_);
      } catch (...) {
        exchange.rollback(undo);
        throw;
      }
      const auto agreed = clock::now();
      if (o == outcome::agreed) {
        rule_.apply(exchange.pending(), exchange.agreed(), exchange.local(), entries, lr);
        exchange.commit();
      } else {
        exchange.rollback(undo);
      }
      return finish(phase::compressed, o, before, start, agreed);
    });
  }

  report finish(onebit::phase p, outcome o, const traffic& before, clock::time_point start,
                clock::time_point agreed) {
    const auto seconds = [](auto d) { return std::chrono::duration<double>(d).count(); };
    const traffic sent = transport_->sent() - before;
    report r;
    r.step = step_;
    r.phase = p;
    r.skipped = o == outcome::skipped;
    r.bytes_sent = sent.bytes_sent;
    r.collectives = sent.collectives;
    r.communicate_seconds = sent.seconds;
    r.encode_seconds = seconds(agreed - start) - sent.seconds;
    r.update_seconds = seconds(clock::now() - agreed);
    if (!r.skipped) ++step_;
    return r;
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
  buffer<float> undo_;  ///< only where the gradients must not be written
  std::uint64_t step_ = 0;
};

}  // namespace onebit
