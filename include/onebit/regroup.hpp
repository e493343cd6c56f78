// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <onebit/checkpoint.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/now.hpp>
#include <onebit/restore.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/transport/wire.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Ranks leave a job that runs, and others join it.
namespace onebit::inline v0_1 {

/// What a rank has for the others when they regroup.
enum class brings : std::uint8_t { state, nothing };

namespace detail {

/// n bytes of rank `from`, `mine` there, on all ranks: `take(data, n)` in pieces. Collective.
template <class Take>
[[gnu::cold]] void broadcast(wire& comm, std::size_t from, const char* mine, std::uint64_t n,
                             const Take& take) {
  constexpr std::uint64_t most = std::uint64_t{1} << 20U;
  const std::uint64_t piece = std::min(n, most);
  std::vector<char> own(piece), all(piece * static_cast<std::size_t>(comm.size()));
  for (std::uint64_t at = 0; at < n; at += piece) {
    const std::uint64_t now = std::min(piece, n - at);
    if (mine != nullptr) std::memcpy(own.data(), mine + at, now);
    comm.host_all_gather(own.data(), all.data(), now);
    take(all.data() + from * now, now);
  }
}

/// n elements of rank `from`'s memory into that of the ranks that `need` them. Collective.
template <class B, class T>
[[gnu::cold]] void broadcast_elements(wire& comm, B& backend, std::size_t from, bool need, T* data,
                                      std::size_t n) {
  std::vector<T> here(n);
  if (!need) backend.copy_out(here.data(), data, n);
  auto* const bytes = reinterpret_cast<char*>(here.data());
  std::size_t at = 0;
  broadcast(comm, from, bytes, n * sizeof(T), [&](const char* p, std::size_t m) {
    if (need) std::memcpy(bytes + at, p, m);
    at += m;
  });
  if (need) backend.copy_in(data, here.data(), n);
}

struct member_news {
  std::uint64_t failed, present, rank, size, bytes, numbers;
};

/// What no description tells: masters, and what was set since an engine was built.
template <class E>
[[nodiscard, gnu::cold]] std::uint64_t digest_of_numbers(const E& e) {
  digest d;
  for (const auto& t : e.tensors.entries) {
    d.add(t.master != nullptr);
    d.add(t.master_low != nullptr);
    d.add(t.lr_factor);
    d.add(t.weight_decay);
  }
  for (const auto& t : e.tensors.terms) {
    d.add(t.of.beta1);
    d.add(t.of.beta2);
    d.add(t.of.eps);
  }
  for (const auto& o : e.tensors.options) d.add(o.rests);
  d.add(e.verify_every);
  d.add(static_cast<int>(e.checks));
  return d.value();
}

}  // namespace detail

/// `fresh`, which was bound to another wire and has done nothing yet, takes over what the ranks of
/// that wire bring: each its `old` engine's state. `card(engine)` is its card. Collective; see
/// optimizer::regroup.
template <class E, class Card>
[[gnu::cold]] void regroup_engines(E& fresh, E& old, brings what, std::string failure,
                                   const Card& card) {
  using detail::member_news;
  wire& comm = fresh.comm;
  {
    detail::rank_card mine = card(fresh).ranks;
    mine.parameter_digest = 0;  // they may differ
    mine.number = detail::next_number();
    fresh.checks = old.checks;
    const std::uint32_t number = detail::roll_call(comm, mine);
    try {
      fresh.prepare(number);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  const bool present = what == brings::state;
  std::string state;
  try {
    if (present && failure.empty()) {
      std::ostringstream out;
      const detail::checkpoint_card own = card(old);
      detail::write_checkpoint(out, [&](detail::payload_writer& a) {
        a.local(own);
        old.archive(a);
      });
      state = std::move(out).str();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto size = static_cast<std::uint64_t>(old.comm.size());
  std::vector<member_news> all(static_cast<std::size_t>(comm.size()));
  const member_news mine{failure.empty() ? 0U : 1U,
                         present ? 1U : 0U,
                         static_cast<std::uint64_t>(old.comm.rank()),
                         size,
                         state.size(),
                         detail::digest_of_numbers(old)};
  comm.host_all_gather(&mine, all.data(), sizeof mine);
  if (!failure.empty()) throw checkpoint_error(failure + comm.where());

  old_ranks ranks{0, {}, 0};
  std::vector<std::size_t> holder;  // of a present old rank: its rank now
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failed != 0) {
      throw checkpoint_error(
          detail::message("regroup: rank ", r, " failed; its own error says why", comm.where()));
    }
    if (all[r].numbers != all[0].numbers) {
      throw rank_mismatch(detail::message(
          "regroup: rank ", r, " has other masters, rates or decays of groups, verify_every or ",
          "check_messages than rank 0", comm.where()));
    }
    if (all[r].present == 0) continue;
    ranks.n = ranks.n == 0 ? all[r].size : ranks.n;
    const bool is_twice = r > 0 && all[r].rank < holder.size() && holder[all[r].rank] != all.size();
    if (all[r].size != ranks.n || all[r].rank >= ranks.n || is_twice) {
      throw rank_mismatch(detail::message("regroup: rank ", r, " was rank ", all[r].rank, " of ",
                                          all[r].size, ": not of the same job of ", ranks.n,
                                          " as the others, or twice", comm.where()));
    }
    holder.resize(ranks.n, all.size());
    holder[all[r].rank] = r;
  }
  for (std::size_t r = 0; r < holder.size(); ++r) {
    if (holder[r] != all.size()) ranks.present.push_back(r);
  }
  if (ranks.present.empty()) {
    throw rank_mismatch(detail::message("regroup: no rank brings a state", comm.where()));
  }
  const std::size_t first = ranks.present[0];
  ranks.source = present ? mine.rank : first;
  if (ranks.present.size() < all.size()) {
    for (std::size_t t = 0; t < fresh.tensors.sizes.size(); ++t) {
      const auto& x = fresh.tensors.entries[t];
      const auto bring = [&](auto* p) {
        detail::broadcast_elements(comm, fresh.backend(), holder[first], !present, p,
                                   fresh.tensors.sizes[t]);
      };
      with_type(x.params, bring);
      if (x.master != nullptr) bring(x.master);
      if (x.master_low != nullptr) bring(x.master_low);
    }
  }
  std::unique_ptr<old_job<E>> job;
  for (const std::size_t r : ranks.present) {
    std::string bytes;
    const std::size_t from = holder[r];
    const bool is_mine = from == static_cast<std::size_t>(comm.rank());
    detail::broadcast(comm, from, is_mine ? state.data() : nullptr, all[from].bytes,
                      [&](const char* p, std::size_t n) { bytes.append(p, n); });
    try {
      if (!failure.empty()) continue;  // the others still listen
      if (!job) job = std::make_unique<old_job<E>>(fresh, ranks);
      std::istringstream in(std::move(bytes));
      job->read(in, card(fresh), resume_with::same_options);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  try {
    if (failure.empty()) job->prepare();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  detail::agree_on_checkpoint(comm, failure, job ? job->step() : 0, job ? job->scalars() : 0);
  job->adopt();
  fresh.others = std::move(old.others);
  fresh.warn = old.warn;
  fresh.verify_every = old.verify_every;
  fresh.generation += old.generation + 1;  // what was recorded of its steps is not of these
  step_scalars now, was;
  fresh.backend().copy_out(&now, fresh.now(), 1);
  old.backend().copy_out(&was, old.now(), 1);
  now.n_skipped = was.n_skipped;
  fresh.backend().copy_in(fresh.now(), &now, 1);
}

}  // namespace onebit::inline v0_1
