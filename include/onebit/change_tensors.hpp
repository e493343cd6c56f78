// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <onebit/checkpoint.hpp>
#include <onebit/concepts.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/moving_state.hpp>
#include <onebit/now.hpp>
#include <onebit/numbers.hpp>
#include <onebit/owed.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <onebit/transport/wire.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Tensors come and go in a job that runs. What elements that sleep remember is dropped.
namespace onebit::inline v0_1 {

namespace detail {

template <class P, class G>
[[nodiscard, gnu::cold]] std::vector<std::size_t> sizes_of(
    const std::vector<param_group<P, G>>& groups) {
  std::vector<std::size_t> sizes;
  for (const auto& g : groups) {
    for (const auto& t : g.tensors) sizes.push_back(t.params.size());
  }
  return sizes;
}

/// Throws invalid_input unless tensors of these sizes can be those, or new.
[[gnu::cold]] inline void check_moves(const std::vector<std::size_t>& sizes,
                                      const std::vector<std::size_t>& old_sizes,
                                      const std::vector<std::size_t>& from,
                                      const std::string& where) {
  if (from.size() != sizes.size()) {
    throw invalid_input(message("change_tensors: ", from.size(), " places for ", sizes.size(),
                                " tensors; give each the place that it had, or new_tensor", where));
  }
  std::vector<std::size_t> taken(old_sizes.size(), new_tensor);
  for (std::size_t t = 0; t < from.size(); ++t) {
    const std::size_t old = from[t];
    if (old == new_tensor) continue;
    if (old >= old_sizes.size()) {
      throw invalid_input(message("change_tensors: tensor ", t, " was tensor ", old, " of ",
                                  old_sizes.size(), where));
    }
    if (old_sizes[old] != sizes[t]) {
      throw invalid_input(message("change_tensors: tensor ", t, " of ", sizes[t],
                                  " parameters was tensor ", old, " of ", old_sizes[old], where));
    }
    if (taken[old] != new_tensor) {
      throw invalid_input(message("change_tensors: tensors ", taken[old], " and ", t,
                                  " both were tensor ", old, where));
    }
    taken[old] = t;
  }
}

/// n floats, the sum over all ranks in their order. Collective.
/// `all`: sum_space(n, W) floats.
[[nodiscard]] inline std::size_t sum_space(std::size_t n, int n_ranks) {
  return std::min(n, std::size_t{1} << 18U) * static_cast<std::size_t>(n_ranks);
}
[[gnu::cold]] inline void sum_on_hosts(wire& comm, std::vector<float>& values,
                                       std::vector<float>& all) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t piece = all.size() / ranks;
  for (std::size_t at = 0; at < values.size(); at += piece) {
    const std::size_t n = std::min(piece, values.size() - at);
    comm.host_all_gather(values.data() + at, all.data(), n * sizeof(float));
    std::copy_n(all.data(), n, values.data() + at);
    for (std::size_t r = 1; r < ranks; ++r) {
      for (std::size_t i = 0; i < n; ++i) values[at + i] += all[r * n + i];
    }
  }
}

/// All throw when one has a failure to tell: invalid_input there, rank_mismatch on the others.
[[gnu::cold]] inline void agree_on_change(wire& comm, const std::string& failure) {
  const char mine = failure.empty() ? 0 : 1;
  std::vector<char> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), 1);
  if (mine != 0) throw invalid_input(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == 0) continue;
    throw rank_mismatch(
        message("change_tensors: rank ", r, " failed; its own error says why", comm.where()));
  }
}

/// What an engine has, on the host, for one of other tensors.
template <class E>
class tensor_change {
  using R = decltype(E::rule);
  using B = typename E::backend_type;
  static constexpr bool carries = E::carries;
  /// Whether elements take part that have variance; else all do.
  static constexpr bool by_variance = FreezingRule<R> || WakingRule<R>;

 public:
  /// Not collective. Reads the old engine.
  [[gnu::cold]] tensor_change(E& old, const std::vector<std::size_t>& sizes,
                              const std::vector<std::size_t>& from)
      : words(sizes, old.tensors.sizes, from), owed(old.average.axis().n_words() * word_elements) {
    old.rule.archive(rule);
    live.resize(old.live.size());
    old.backend().copy_out(live.data(), old.live.current(), live.size());
    if (!old.compressed.started()) return;
    sums.resize(sum_space(owed.size(), old.comm.size()));
    if constexpr (E::keeps_agreed) agreed = floats_of(old, old.compressed.agreed(old.mask()));
    auto flat = old.backend().template make_buffer<float>(owed.size());
    const auto ranks = static_cast<std::size_t>(old.comm.size());
    old_ranks all{ranks, std::vector<std::size_t>(ranks), 0};
    for (std::size_t r = 0; r < ranks; ++r) all.present[r] = r;
    add_owed(old, static_cast<std::size_t>(old.comm.rank()), all,
             static_cast<std::size_t>(old.compressed.ranks_per_node()), flat.data());
    old.backend().copy_out(owed.data(), flat.data(), owed.size());
  }
  /// Into an engine that has done nothing: all that may fail. Not collective.
  [[gnu::cold]] void prepare(E& e, E& old) {
    if constexpr (R::local_steps) {  // new tensors start from the parameters that there are
      if (e.compressed.travels()) e.rule.resume(e.compressed.agreed(e.mask()), e.at(e.mask()));
    }
    moving_reader reader(rule, words);
    e.rule.archive(reader);
    std::vector<tensor_numbers> numbers(e.tensors.size()), before(old.tensors.size());
    e.backend().copy_out(numbers.data(), e.tensors.numbers.data(), numbers.size());
    old.backend().copy_out(before.data(), old.tensors.numbers.data(), before.size());
    for (std::size_t t = 0; t < numbers.size(); ++t) {
      if (words.from[t] != new_tensor) numbers[t] = before[words.from[t]];
    }
    e.backend().copy_in(e.tensors.numbers.data(), numbers.data(), numbers.size());
    e.tensors.changed = true;  // options are those of the new groups
    e.tensors.take_terms(e.backend());
    for (std::size_t t = 0; t < numbers.size(); ++t) {
      if (words.from[t] != new_tensor) e.tensors.resting[t] = old.tensors.resting[words.from[t]];
    }
    const bool started = old.compressed.started();
    std::vector<std::uint32_t> bits(e.average.axis().n_words());
    if (by_variance && !live.empty()) words.move(live.data(), bits.data(), 1);
    if (by_variance ? started || !live.empty() : carries && started)
      mask_ = to_buffer(e.backend(), bits);
    if (by_variance && mask_.size() > 0) e.live.set_current(std::move(mask_));
    if (!started) return;
    owed_now_ = moved(e, owed);
    if constexpr (!R::local_steps) {
      if constexpr (E::keeps_agreed) {
        agreed_ = moved(e, agreed);
        given_ = e.rule.resume(flat_field{agreed_.data()}, e.at_average(e.mask()));
      }
      space_ = e.compressed.allocate(E::keeps_agreed, !E::keeps_agreed);
      e.allocate_undo();
    }
  }
  /// Only launches.
  [[gnu::cold]] void adopt(E& e, E& old) {
    e.step = old.step;
    e.last_lr = old.last_lr;
    e.warn = old.warn;
    e.verify_every = old.verify_every;
    e.generation += old.generation + 1;  // what was recorded of its steps is not of these
    step_scalars now, was;
    e.backend().copy_out(&now, e.now(), 1);
    old.backend().copy_out(&was, old.now(), 1);
    was.optimizer = now.optimizer;
    was.rank = now.rank;
    e.backend().copy_in(e.now(), &was, 1);
    if (old.compressed.started()) {
      if (!R::local_steps) e.compressed.start(std::move(space_), std::move(given_));
      if constexpr (carries && !by_variance) e.all_take_part(std::move(mask_));
      carry_on(e, owed_now_.data());
    }
    e.adopt();
    e.told = old.told;
    e.others = std::move(old.others);
  }

  moved_words words;
  std::vector<float> owed;  ///< by this rank; then by all, on average
  std::vector<float> sums;  ///< space

 private:
  template <class Field>
  [[nodiscard]] static std::vector<float> floats_of(E& e, const Field& field) {
    const auto flat = e.compressed.sender().flatten(field);
    std::vector<float> values(flat.size());
    e.backend().copy_out(values.data(), flat.data(), values.size());
    return values;
  }
  [[nodiscard]] buffer_of<B, float> moved(E& e, const std::vector<float>& old) const {
    std::vector<float> now(e.average.axis().n_words() * word_elements);
    words.move(old.data(), now.data(), word_elements);
    return to_buffer(e.backend(), now);
  }

  moving_writer rule;
  std::vector<float> agreed;
  std::vector<std::uint32_t> live;
  buffer_of<B, float> agreed_{}, owed_now_{};
  buffer_of<B, std::uint32_t> mask_{};
  typename E::exchange_type::space space_{};
  handover<buffer_of<B, float>> given_{};
};

}  // namespace detail

/// A digest of the tensors that are new: those all ranks must have alike.
template <class E>
[[nodiscard, gnu::cold]] std::uint64_t digest_of_new(E& e, const std::vector<std::size_t>& from) {
  digest d;
  const auto add = [&](const auto* p, std::size_t n) { d.add(p, n * sizeof *p); };
  for (std::size_t t = 0; t < from.size(); ++t) {
    if (from[t] != new_tensor) continue;
    const auto& x = e.tensors.entries[t];
    const std::size_t n = e.tensors.sizes[t];
    with_type(x.params, [&](const auto* p) { detail::read_on_host(e.backend(), p, n, add); });
    if (x.master != nullptr) {
      detail::read_on_host(e.backend(), std::as_const(x.master), n, add);
    }
    if (x.master_low != nullptr) {
      detail::read_on_host(e.backend(), std::as_const(x.master_low), n, add);
    }
  }
  return d.value();
}

/// `fresh`, of other tensors and which has done nothing yet, takes over what `old` has of those
/// that were there: see optimizer::change_tensors. `card(engine)` is its card. Collective.
template <class E, class Card>
[[gnu::cold]] void change_tensors_of(E& fresh, E& old, const std::vector<std::size_t>& from,
                                     const Card& card) {
  wire& comm = fresh.comm;
  detail::rank_card mine = card(fresh).ranks;
  digest places;
  for (const std::size_t t : from) places.add(static_cast<std::uint64_t>(t));
  mine.sizes_digest ^= places.value();
  if constexpr (decltype(E::rule)::local_steps) {
    if (old.rule.moved()) mine.parameter_digest = digest_of_new(fresh, from);  // the others differ
  }
  mine.number = detail::next_number();
  fresh.checks = old.checks;
  const std::uint32_t number = detail::roll_call(comm, mine);

  std::string failure;
  std::optional<detail::tensor_change<E>> change;
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    detail::agree_on_change(comm, failure);
  };
  attempt([&] {
    fresh.prepare(number);
    for (std::size_t t = 0; t < from.size(); ++t) {
      if (from[t] == new_tensor) continue;
      const double eps = fresh.tensors.terms[t].of.eps, was = old.tensors.terms[from[t]].of.eps;
      if (eps == was) continue;
      throw invalid_input(detail::message("change_tensors: tensor ", t, " gets eps ", eps,
                                          ", but had ", was, ", which a frozen v holds",
                                          comm.where()));
    }
    change.emplace(old, fresh.tensors.sizes, from);
  });
  if (old.compressed.started()) detail::sum_on_hosts(comm, change->owed, change->sums);
  attempt([&] { change->prepare(fresh, old); });
  change->adopt(fresh, old);
}

}  // namespace onebit::inline v0_1
