// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/concepts/plan.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Checks that all ranks agree: when an optimizer is built, and later in `verify`.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Fingerprint of one rank, compared by all ranks when the optimizer is built.
struct rank_fingerprint {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_elements = 0;
  std::uint64_t sizes_digest = 0;
  std::uint64_t parameter_digest = 0;
  std::uint64_t slot_bytes = 0;  ///< of the compressed exchange: tells unnamed compressors apart
  std::uint32_t rejected = 0;    ///< 1: this rank's input was invalid; 0: it was valid
  std::uint32_t number = 0;      ///< of the optimizer within its process: not compared
  char name[472] = {};           ///< algorithm and options as text, zero-terminated

  friend bool operator==(const rank_fingerprint& a, const rank_fingerprint& b) {
    return a.n_tensors == b.n_tensors && a.n_elements == b.n_elements &&
           a.sizes_digest == b.sizes_digest && a.parameter_digest == b.parameter_digest &&
           a.slot_bytes == b.slot_bytes && a.rejected == b.rejected &&
           std::strcmp(a.name, b.name) == 0;
  }
};

[[nodiscard, gnu::cold]] inline rank_fingerprint make_fingerprint(
    std::string name, const std::vector<std::size_t>& sizes, std::uint64_t parameter_digest,
    std::size_t slot_bytes) {
  rank_fingerprint fingerprint;
  digest d;
  for (const std::size_t n : sizes) {
    d.add(static_cast<std::uint64_t>(n));
    fingerprint.n_elements += n;
  }
  fingerprint.n_tensors = sizes.size();
  fingerprint.sizes_digest = d.value();
  fingerprint.parameter_digest = parameter_digest;
  fingerprint.slot_bytes = slot_bytes;
  if (name.size() >= sizeof fingerprint.name) {  // cut off: a digest still distinguishes names
    digest rest;
    rest.add(name);
    name = name.substr(0, sizeof fingerprint.name - 60) + ", later options (digest " +
           number_text(rest.value()) + ")";
  }
  std::memcpy(fingerprint.name, name.data(), (std::min)(name.size(), sizeof fingerprint.name - 1));
  return fingerprint;
}

/// Iterator over the items of a description: joined by ", ", the items of a group in brackets.
struct description_items {
  std::string_view left, item{};
  std::size_t n_groups = 0;
  bool in_group = false, ends = false;  ///< current item: is in a group; is the last of its group

  void next() {
    in_group = in_group && !ends;
    item = left.substr(0, left.find(", "));
    left.remove_prefix((std::min)(left.size(), item.size() + 2));
    if (item.starts_with('[')) {
      item.remove_prefix(1);
      in_group = true;
      ++n_groups;
    }
    ends = in_group && item.ends_with(']');
    if (ends) item.remove_suffix(1);
  }
};

/// Returns the first item of `own_text` that differs from the item of `other_text` at the same
/// position, with the number of its group if it belongs to one.
[[nodiscard, gnu::cold]] inline std::string differing_item(std::string_view own_text,
                                                           std::string_view other_text) {
  description_items own{own_text}, other{other_text};
  do {
    own.next();
    other.next();
  } while (!own.item.empty() && own.item == other.item && own.in_group == other.in_group);
  const bool has_ended = !own.in_group || own.n_groups > other.n_groups;
  if (other.in_group && own.n_groups >= other.n_groups && has_ended) {
    return join({"nothing more in group ", other.n_groups - 1});
  }
  if (other.in_group && !own.in_group) return join({"no group ", other.n_groups - 1});
  if (own.item.empty()) return "nothing more";
  return own.in_group ? join({own.item, " in group ", own.n_groups - 1}) : std::string(own.item);
}

/// Describes how `odd` differs from `usual`; empty if only the sizes of their tensors differ.
[[nodiscard, gnu::cold]] inline std::string difference(const rank_fingerprint& odd,
                                                       int mismatched_rank,
                                                       const rank_fingerprint& usual,
                                                       int usual_rank) {
  const auto both = [&](text_part a, text_part b) {
    return join({"rank ", mismatched_rank, " has ", a, ", rank ", usual_rank, " has ", b});
  };
  if (std::strcmp(odd.name, usual.name) != 0) {
    return both(differing_item(odd.name, usual.name), differing_item(usual.name, odd.name));
  }
  if (odd.n_tensors != usual.n_tensors) {
    return both(number_text(odd.n_tensors) + " tensors", number_text(usual.n_tensors));
  }
  if (odd.sizes_digest != usual.sizes_digest) return {};
  if (odd.slot_bytes != usual.slot_bytes) {
    return both("messages of " + number_text(odd.slot_bytes) + " bytes",
                number_text(usual.slot_bytes));
  }
  return both(
      "other initial parameter values or masters",
      "its own; use one seed or broadcast the parameters, and set masters to 0 (to resume: build "
      "the optimizer from equal parameters, then restore them, then call load())");
}

/// Returns the number of the next optimizer of this process, counted from 0.
[[nodiscard, gnu::cold]] inline std::uint32_t next_number() {
  static std::atomic<std::uint32_t> n{0};
  return n.fetch_add(1);
}

/// Returns the scalars of an object before its first step. `number`: rank 0's number of the object.
[[nodiscard, gnu::cold]] inline step_scalars first_scalars(const communicator& comm,
                                                           std::uint32_t number) {
  step_scalars s;
  s.given.optimizer = number % message_tag::n_optimizers;
  s.given.rank = static_cast<std::uint32_t>(comm.rank());
  s.given.marks = comm.echoes() ? 0 : 1;
  return s;
}

/// Gathers the fingerprints of all ranks. Collective. Throws transport_error if they do not come in
/// the order of ranks.
[[nodiscard, gnu::cold]] inline std::vector<rank_fingerprint> gather_fingerprints(
    communicator& comm, const rank_fingerprint& mine) {
  struct sent {
    rank_fingerprint fingerprint;
    std::uint64_t rank;
  };
  const sent own{mine, static_cast<std::uint64_t>(comm.rank())};
  std::vector<sent> all(static_cast<std::size_t>(comm.size()), own);
  comm.host_all_gather(&own, all.data(), sizeof own);
  std::vector<rank_fingerprint> fingerprints;
  for (sent& one : all) {
    if (one.rank != fingerprints.size() && !comm.echoes()) {
      throw transport_error(error_text("all_gather of this transport put the bytes of rank ",
                                       one.rank, " into the slot of rank ", fingerprints.size(),
                                       "; slots must be in the order of ranks", comm.where()));
    }
    one.fingerprint.name[sizeof one.fingerprint.name - 1] =
        '\0';  // received text may lack the terminator
    fingerprints.push_back(one.fingerprint);
  }
  return fingerprints;
}

/// Result of `majority_of`.
struct majority {
  std::size_t first;    ///< lowest rank with the most frequent value
  std::ptrdiff_t size;  ///< number of ranks with this value
};
/// Finds the most frequent of the values of all ranks. In a tie the value of the lowest rank wins.
template <class T>
[[nodiscard, gnu::cold]] majority majority_of(const std::vector<T>& said) {
  majority found{0, 0};
  for (std::size_t r = 0; r < said.size(); ++r) {
    const auto n = std::count(said.begin(), said.end(), said[r]);
    if (n > found.size) found = {r, n};
  }
  return found;
}

/// @{
/// Names of the numbers of a plan, whose values have names.
inline constexpr char update_of_plan[] = "what the step is made of";
inline constexpr char average_of_plan[] = "what is averaged for v";
/// @}

/// Describes the first number of `mine` that differs between ranks, the value of the minority
/// first: "lr: 0.02 on rank 1, 0.01 on rank 0 (2 of 3 ranks are alike)". Empty if all numbers are
/// equal, if ranks have different counts of numbers, or if a rank has left. Collective: all ranks
/// must have found that they differ.
[[nodiscard, gnu::cold]] inline std::string differing_number_text(
    communicator& comm, const std::vector<double>& mine,
    function_ref<std::string(std::size_t)> name) {
  const auto size = static_cast<std::size_t>(comm.size());
  const std::uint64_t n = mine.size();
  std::vector<std::uint64_t> lengths(size), all(size * mine.size()), said(size);
  try {
    comm.host_all_gather(&n, lengths.data(), sizeof n);
    if (n == 0 || majority_of(lengths).size != comm.size()) return {};
    comm.host_all_gather(mine.data(), all.data(), n * sizeof(double));
  } catch (const error&) {
    return {};  // a rank has left: the caller reports less detail
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t r = 0; r < size; ++r) said[r] = all[r * n + i];
    const majority most = majority_of(said);
    if (most.size == comm.size()) continue;
    std::size_t odd = 0;
    while (said[odd] == said[most.first]) ++odd;
    std::string ranks;
    for (std::size_t r = odd; r < size; ++r) {
      if (said[r] == said[odd]) ranks += (ranks.empty() ? "" : ", ") + number_text(r);
    }
    const std::string what = name(i);
    const std::string most_say =
        most.size > 1 ? join({" (", most.size, " of ", size, " ranks are alike)"}) : "";
    if (what.starts_with("earlier") || what.starts_with("start_from"))
      return join({what, ", on rank ", ranks, most_say});
    // most are floats on their way as doubles: as floats their texts are shorter
    const auto number = [&](std::size_t rank) { return std::bit_cast<double>(said[rank]); };
    const auto is_float = [](double x) {
      return !std::isfinite(x) ||
             (std::fabs(x) < 3e38 && static_cast<double>(static_cast<float>(x)) == x);
    };
    const bool floats = is_float(number(odd)) && is_float(number(most.first));
    const auto value = [&](std::size_t rank) {
      const double x = number(rank);
      if (what.starts_with("tensor written") && x < 0) return std::string("none");
      if (what.starts_with("whether")) return std::string(x != 0 ? "yes" : "no");
      if (what == update_of_plan) {
        return std::string(to_string(static_cast<update_from>(static_cast<int>(x))));
      }
      if (what == average_of_plan) {
        return std::string(to_string(static_cast<averages>(static_cast<int>(x))));
      }
      if (x == std::trunc(x) && std::fabs(x) >= 1 && std::fabs(x) < 1e15) {
        return number_text(static_cast<long long>(x));
      }
      return floats ? number_text(static_cast<float>(x)) : number_text(x);
    };
    return join({what, ": ", value(odd), " on rank ", ranks, ", ", value(most.first), " on rank ",
                 most.first, most_say});
  }
  return {};
}

/// Compares the fingerprints of all ranks; `sizes` are those of the tensors of this rank. Returns
/// the number that rank 0 gave its optimizer. Collective: throws rank_mismatch on all ranks if one
/// differs, naming a rank of the minority.
[[gnu::cold]] inline std::uint32_t compare_fingerprints(communicator& comm,
                                                        const rank_fingerprint& mine,
                                                        const std::vector<std::size_t>& sizes) {
  const std::vector<rank_fingerprint> fingerprints = gather_fingerprints(comm, mine);
  const std::size_t size = fingerprints.size();
  const std::string where = comm.where();
  const std::string_view name(mine.name);
  const std::string_view who = name.substr(0, name.find(','));
  for (std::size_t r = 0; r < size; ++r) {
    if (fingerprints[r].rejected == 0) continue;
    throw rank_mismatch(
        error_text(who, ": rank ", r, " rejected its input; its own error says why", where));
  }
  const auto [usual, n_usual] = majority_of(fingerprints);
  for (std::size_t r = 0; r < size; ++r) {
    if (fingerprints[r] == fingerprints[usual]) continue;
    std::string text = difference(fingerprints[r], static_cast<int>(r), fingerprints[usual],
                                  static_cast<int>(usual));
    if (text.empty()) {
      text = differing_number_text(comm, std::vector<double>(sizes.begin(), sizes.end()),
                                   [](std::size_t t) {
                                     return join({"elements of tensor ", t});
                                   });
    }
    if (text.empty()) {  // a rank has left, or has other tensors
      text = join({"rank ", r, " has tensors of other sizes than rank ", usual});
    }
    throw rank_mismatch(error_text(who, ": the ranks disagree: ", text, where));
  }
  return fingerprints[0].number;
}

/// Tells the other ranks, which wait in `gather_fingerprints`, of invalid input here. Collective.
[[gnu::cold]] inline void report_rejection(communicator& comm) {
  rank_fingerprint fingerprint;
  fingerprint.rejected = 1;
  (void)gather_fingerprints(comm, fingerprint);
}
/// Runs f, which checks this rank's input. If f throws, tells the other ranks, then rethrows.
template <class F>
[[gnu::cold]] auto collective_try(communicator& comm, const F& f) {
  try {
    return f();
  } catch (...) {
    report_rejection(comm);
    throw;
  }
}

/// Throws invalid_input if transport and backend work on different streams: nothing would then
/// order a collective after the pass that writes its send buffer.
template <class B>
[[gnu::cold]] void check_streams([[maybe_unused]] const communicator& comm,
                                 [[maybe_unused]] const B& backend) {
  if constexpr (requires { backend.stream(); }) {
    const auto own = reinterpret_cast<std::uintptr_t>(backend.stream());
    const auto its = comm.stream();
    const auto legacy = [](std::uintptr_t s) { return s == 1 ? 0 : s; };  // cudaStreamLegacy
    if (!its || legacy(*its) == legacy(own)) return;
    throw invalid_input(
        error_text("optimizer: the backend works on stream ", own, ", the transport on stream ",
                   *its, ": nothing here orders them; give both the same stream", comm.where()));
  }
}

/// Throws rank_mismatch on all ranks if some have a veto and others have none. Collective.
[[gnu::cold]] inline void compare_vetoes(communicator& comm, bool given) {
  std::vector<std::uint32_t> all(static_cast<std::size_t>(comm.size()));
  const std::uint32_t mine = given ? 1 : 0;
  comm.host_all_gather(&mine, all.data(), sizeof mine);
  const auto with = std::find(all.begin(), all.end(), 1U) - all.begin();
  const auto without = std::find(all.begin(), all.end(), 0U) - all.begin();
  if (with == comm.size() || without == comm.size()) return;
  throw rank_mismatch(error_text("veto_with: rank ", with, " gives a veto, rank ", without,
                                 " none; all must give one, or none may", comm.where()));
}

// Verification during training of the state that must be equal on all ranks.

/// Digest of the parameters and of the master values that steps start from.
template <class E>
[[nodiscard, gnu::cold]] std::uint64_t parameter_digest(E& e) {
  digest d;
  const auto add = [&](const auto* p, std::size_t n) { d.add(p, n * sizeof *p); };
  for (std::size_t i = 0; i < e.tensors.sizes.size(); ++i) {
    const auto& t = e.tensors.entries[i];
    with_type(t.params, [&](const auto* p) {
      using type = std::remove_cvref_t<decltype(*p)>;
      read_on_host(e.backend(), p, e.tensors.sizes[i], add);
      if (t.master == nullptr) return;
      const float* master = t.master;
      read_on_host(e.backend(), p, e.tensors.sizes[i], [&](const type* x, std::size_t n) {
        read_on_host(e.backend(), master, n, [&](const float* of, std::size_t) {
          for (std::size_t j = 0; j < n; ++j) d.add(unrounded<type>(of[j], to_float(x[j])));
        });
        master += n;
      });
    });
  }
  return d.value();
}

/// Digests of the state that must be equal on all ranks.
struct common_digests {
  std::uint64_t parameters = 0;
  std::uint64_t state = 0;     ///< of the rule
  std::uint64_t previous = 0;  ///< of the mean message of the last exchange
  friend bool operator==(const common_digests&, const common_digests&) = default;
};

/// Throws rank_mismatch on all ranks if digests after `step` differ from the majority. Collective.
[[gnu::cold]] inline void compare_digests(communicator& comm, std::uint64_t step,
                                          const common_digests& mine) {
  std::vector<common_digests> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), sizeof mine, "verify");
  const auto [usual, n_usual] = majority_of(all);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[usual]) continue;
    const char* what = all[r].parameters != all[usual].parameters ? "parameters"
                       : all[r].state != all[usual].state         ? "moments"
                                                                  : "previous means";
    throw rank_mismatch(error_text(
        "verify: after step ", step, " rank ", r, " has other ", what, " than rank ", usual, " (",
        n_usual, " of ", all.size(), " ranks are alike): memory that failed, a trainer ",
        "that changed them on one rank, or a policy that does something else "
        "there; restart from a checkpoint before",
        comm.where()));
  }
}

/// Implements optimizer::verify. Throws rank_mismatch on all ranks if one differs. Collective.
template <class E>
[[gnu::cold]] void verify(E& e) {
  if (!e.ranks_alike()) {
    throw invalid_input(
        error_text("verify: after ", e.step,
                   " steps the ranks are between two exchanges, where a local step "
                   "makes their parameters differ; call it after a step whose phase "
                   "is compressed",
                   e.comm.where()));
  }
  e.wait();
  common_digests mine;
  mine.parameters = parameter_digest(e);
  digest state;
  payload_writer writer([&](const void* data, std::size_t n) { state.add(data, n); });
  e.rule.archive(writer);
  mine.state = state.value();
  if (e.exchange.started() && E::from_nothing.previous) {
    const auto flat = e.exchange.sender().flatten(e.exchange.previous());
    digest previous;
    read_on_host(e.backend(), flat.data(), flat.size(),
                 [&](const float* p, std::size_t n) { previous.add(p, n * sizeof *p); });
    mine.previous = previous.value();
  }
  compare_digests(e.comm, e.step, mine);
}

}}}  // namespace onebit::detail
