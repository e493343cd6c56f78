// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <onebit/checkpoint.hpp>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/reduce_scatter.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/flat_tensors.hpp>
#include <onebit/now.hpp>
#include <onebit/own_part.hpp>
#include <onebit/rebind.hpp>
#include <onebit/report.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/running.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tensor_table.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/wire.hpp>
#include <onebit/verify.hpp>
#include <onebit/vocabulary.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace onebit::inline v0_1 {

namespace detail {

/// What a sharded optimizer is made of, and one step of it.
template <class O, class P, class G>
struct sharded_parts {
  using B = typename O::rule_type::backend_type;
  using params_type = P;
  using grads_type = G;
  using engine_type = std::remove_reference_t<decltype(within::engine_of(std::declval<O&>()))>;
  using exchange_type = reduce_scatter<B, P, G>;
  using clock = std::chrono::steady_clock;

  template <class Make>
  [[gnu::cold]] sharded_parts(const std::vector<param_group<P, G>>& groups,
                              const std::string& groups_text, wire w, B backend, const Make& make,
                              const sharding& how)
      : comm(std::move(w)),
        tensors(attend(comm,
                       [&] {
                         validate(how, groups, comm.where());
                         return flat_tensors<P, G>(groups, comm.where());
                       }),
                backend),
        exchange(attend(comm,
                        [&] {
                          return exchange_type(resolved<G>(how.sum), comm, backend, tensors.sizes,
                                               n_buckets(tensors.sizes, how.bucket_elements));
                        })),
        part(attend(comm, [&] { return own_part<B, P, G>(exchange, tensors, how); })),
        scalars(to_buffer(exchange.backend(), std::vector<step_scalars>(1))),
        announced(tensors.size(), 0),
        inner(attend(comm, [&] { return make(part.groups(tensors), alone{}, backend); })) {
    attend(comm, [&] {
      for (std::size_t g = 0; g < tensors.options.size(); ++g) {
        tensors.set_group(g, tensors.options[g], inner.rule(), comm.where());
      }
    });
    tensors.built = true;
    const std::string& inner_name = inner.description();  // it counts the tensors of its part
    name = "sharded_" + inner_name.substr(0, inner_name.find(" [")) +
           to_string(resolved<G>(how.sum)) +
           (how.masters      ? ", masters"
            : how.master_low ? ", low halves"
                             : "") +
           ", buckets " + std::to_string(exchange.axis().n_buckets()) + groups_text;
    rank_card mine = card().ranks;
    mine.number = next_number();
    step_scalars s;
    s.optimizer = roll_call(comm, mine) % slot_place::n_optimizers;
    s.rank = static_cast<std::uint32_t>(comm.rank());
    exchange.backend().copy_in(now(), &s, 1);
    check_slots(checks);
    inner.join_shards(comm, 0, now());
  }

  [[nodiscard]] B& backend() { return exchange.backend(); }
  [[nodiscard]] step_scalars* now() { return scalars.data(); }
  /// Throws invalid_input between begin() and step().
  [[nodiscard]] sharded_parts& between_steps() {
    if (begun) {
      throw invalid_input(message("optimizer: step ", inner.steps(),
                                  " has begun; call this before begin() or after step()",
                                  comm.where()));
    }
    return *this;
  }
  [[nodiscard, gnu::cold]] checkpoint_card card() {
    return {make_card(name, tensors.sizes, parameter_digest(*this), exchange.own_words()),
            static_cast<std::uint32_t>(comm.rank()),
            static_cast<std::uint32_t>(comm.size()),
            1,
            0,
            inner.steps()};
  }
  void check_slots(checked which) { exchange.check_slots(checks = which); }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return inner.state_bytes() + part.masters.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return inner.work_bytes() + exchange.work_bytes() + tensors.bytes() + part.means.bytes();
  }

  [[gnu::cold]] void set_group(std::size_t g, const group_options& o) {
    (void)between_steps();
    tensors.set_group(g, o, inner.rule(), comm.where());
    inner.set_group(g, o);
  }
  [[gnu::cold]] void set_group(std::size_t g, float lr_factor, float weight_decay) {
    (void)between_steps();
    tensors.set_group(g, lr_factor, weight_decay, inner.rule(), comm.where());
    inner.set_group(g, lr_factor, weight_decay);
  }
  [[gnu::cold]] void join_shards(wire all, int stage) {
    (void)between_steps();
    if (all.size() < comm.size()) {
      throw invalid_input(message("sharded: join_shards of ", all.size(), " ranks, but ",
                                  comm.size(), " hold parts of this shard alone", comm.where()));
    }
    inner.join_shards(std::move(all), stage, now());
  }
  [[gnu::cold]] std::size_t rebind(const std::vector<param_group<P, G>>& groups) {
    (void)between_steps();
    const std::size_t n = detail::rebind(tensors, groups, comm.where());
    if (n > 0) inner.rebind(part.groups(tensors));
    return n;
  }

  // -- a step -------------------------------------------------------------------------------------

  [[gnu::cold]] void begin(float lr, float inverse_loss_scale) {
    (void)between_steps();
    if (torn) throw transport_error(torn_text());
    lr += 0.0F;  // -0 is 0
    std::string refused = refuse_numbers(inner.steps(), lr, tensors.largest_lr_factor(),
                                         inverse_loss_scale, comm.where());
    const bool bad = !refused.empty();
    if (bad && comm.size() == 1) throw invalid_input(refused);
    resting = tensors.resting;
    tensors.take_terms(backend());
    backend().launch(1, begin_step_kernel{now(),
                                          {},
                                          bad ? 1.0F : lr,
                                          bad ? 1.0F : inverse_loss_scale,
                                          static_cast<std::uint32_t>(inner.steps() % status_steps),
                                          bad ? ~0U : terms(lr, inverse_loss_scale),
                                          bad});
    for (std::size_t t = 0; t < tensors.size(); ++t) announced[t] = tensors.entries[t].rests;
    refusal = std::move(refused);
    begun.emplace(step_numbers{lr, inverse_loss_scale, comm.sent(), {}});
  }
  [[gnu::cold]] void require(float lr, float inverse_loss_scale) const {
    const auto same = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; };  // NaN
    if (same(lr + 0.0F, begun->lr) && same(inverse_loss_scale, begun->scale)) return;
    throw invalid_input(message("optimizer: step ", inner.steps(), " with lr ", lr, " and scale ",
                                inverse_loss_scale, ", but begin() was told ", begun->lr, " and ",
                                begun->scale, comm.where()));
  }
  [[gnu::cold]] void ready(std::size_t tensor) {
    if (!begun) {
      throw invalid_input(message("optimizer: ready(", tensor, ") without begin()", comm.where()));
    }
    if (tensor >= announced.size()) {
      throw invalid_input(message("optimizer: ready(", tensor, ") of ", announced.size(),
                                  " tensors", comm.where()));
    }
    announced[tensor] = 1;
    const auto start = clock::now();
    const taken_back guard{*this};
    while (exchange.n_unsent() > 0 &&
           exchange.axis().bucket_is_known(exchange.n_unsent() - 1, announced)) {
      exchange.send_next(gradient(), now(), destination());
    }
    begun->before += clock::now() - start;
    guard.done = true;
  }
  /// The rest of the step, after begin(); `enqueue`: see optimizer::step_with.
  [[nodiscard, gnu::cold]] report run(step_runner enqueue) {
    const auto start = clock::now();
    const taken_back guard{*this};
    // before it: afterwards all have what the owners say
    if (verify_every > 0 && inner.steps() % verify_every == 0) verify_parameters();
    exchange.agree(gradient(), now(), destination());
    const auto agreed = clock::now();
    const double sending = (comm.sent() - begun->sent).seconds;
    report r = inner_step(enqueue);
    if (comm.size() > 1 && (r.pending || !r.skipped)) {
      torn = true;
      exchange.publish(tensors.table.data(), now());
      torn = false;
    }
    guard.done = true;
    const step_numbers numbers = *begun;
    begun.reset();
    if (!B::deferred || !refusal.empty()) tell();
    const auto seconds = [](auto d) { return std::chrono::duration<double>(d).count(); };
    const traffic sent = comm.sent() - numbers.sent;
    r.bytes_sent = sent.bytes_sent;
    r.collectives = sent.collectives;
    r.communicate_seconds = sent.seconds;
    r.encode_seconds = seconds(numbers.before + (agreed - start)) - sending;
    r.update_seconds = seconds(clock::now() - agreed) - (sent.seconds - sending);
    return r;
  }
  [[gnu::cold]] outcome settle() {
    comm.wait();
    tell();
    return inner.settle();
  }

  // -- checkpoints --------------------------------------------------------------------------------

  [[gnu::cold]] void save(std::ostream& out) {
    (void)between_steps();
    if (torn) throw checkpoint_error(torn_text());
    write_checkpoint(out, [&](payload_writer& a) {
      a.local(card());
      part.masters.archive(a, backend());
    });
    inner.save(out);
  }
  [[gnu::cold]] void load(std::istream& in, resume_with with) {
    std::string failure = begun ? message("sharded: load() between begin() and step()") : "";
    std::optional<payload_reader> record;
    try {
      if (failure.empty()) {
        checkpoint_card found;
        record.emplace(in);
        record->local(found);
        failure = found.difference(card(), with);
      }
      if (failure.empty()) {
        part.masters.archive(*record, backend());
        record->finish();
        inner.rebind(part.groups(tensors));
      }
    } catch (const std::exception& error) {
      failure = error.what();
    }
    try {
      inner.load(in, with, {&comm, failure});
    } catch (...) {
      record.reset();  // puts the masters back
      inner.rebind(part.groups(tensors));
      throw;
    }
    record->keep();
    torn = false;
  }

  wire comm;
  tensor_table<B, P, G> tensors;
  exchange_type exchange;
  own_part<B, P, G> part;  ///< that this rank owns
  buffer_of<B, step_scalars> scalars;
  std::vector<char> announced, resting;  ///< by tensor, in this step
  O inner;                               ///< the optimizer of the pieces: it skips and counts
  std::string name;

  /// A step that has begun.
  struct step_numbers {
    float lr, scale;
    traffic sent;            ///< before it
    clock::duration before;  ///< in `ready`
  };
  std::optional<step_numbers> begun;
  std::string refusal;  ///< of these numbers
  checked checks = checked_at_first<B>;
  std::uint64_t verify_every = 0;
  bool torn = false;  ///< some ranks may have made a step that others have not

 private:
  /// A step that throws is over; what was under way is waited for.
  struct taken_back {
    sharded_parts& p;
    mutable bool done = false;
    ~taken_back() {
      if (done) return;
      p.exchange.clear();
      p.begun.reset();
      p.refusal.clear();
      // the next step has not that rank
      if (step_scalars* const now = host_view<B>(p.now())) now->odd_rank = 0;
    }
  };

  [[nodiscard]] gradient_message<P, G> gradient() const {
    return {tensors.table.data(), scalars.data()};
  }
  [[nodiscard]] typename exchange_type::destination destination() {
    return exchange_type::destination::from(tensors.table.data(), part.means.data());
  }
  [[nodiscard, gnu::cold]] std::string torn_text() const {
    return message("sharded: the transport failed while parameters were taken over, after step ",
                   inner.steps(), ": ranks may have other ones; load a checkpoint on all",
                   comm.where());
  }
  /// What the ranks must be told alike.
  [[nodiscard, gnu::cold]] std::uint32_t terms(float lr, float inverse_loss_scale) const {
    digest d;
    d.add(lr);
    d.add(inverse_loss_scale);
    d.add(static_cast<int>(checks));
    tensors.add_to(d);
    return static_cast<std::uint32_t>(d.value() ^ d.value() >> 32U);
  }
  [[nodiscard]] report inner_step(step_runner enqueue) {
    part.for_each(tensors, [&](std::size_t place, std::size_t tensor) {
      if (resting[tensor] != 0) inner.rest(place);
    });
    return inner.step_with(enqueue, refusal.empty() ? begun->lr : 1.0F);
  }
  /// Throws what this rank was told, or rank_mismatch when another is out of step: all have skipped
  /// it.
  [[gnu::cold]] void tell() {
    if (!refusal.empty() && !begun) {
      (void)take_odd(backend(), now());
      throw invalid_input(std::exchange(refusal, {}));
    }
    (void)onebit::settle(backend(), now(), comm.rank(), comm.size());
  }
  /// Collective: throws rank_mismatch on all when one differs.
  [[gnu::cold]] void verify_parameters() {
    compare_digests(comm, inner.steps(), {parameter_digest(*this), 0, 0});
  }
};

}  // namespace detail
}  // namespace onebit::inline v0_1
