// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/state.hpp>
#include <onebit/tensor.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// What is checked when an optimizer is built: each rank's own input, then that all ranks agree.
namespace onebit::detail {

/// An all_gather of a few bytes of host memory, also over transports that carry device memory.
template <class T>
void gather_on_host(T& transport, const void* send, void* receive, std::size_t bytes) {
  if constexpr (requires { transport.host_all_gather(send, receive, bytes); }) {
    transport.host_all_gather(send, receive, bytes);
  } else {
    transport.all_gather(send, receive, bytes);
  }
}

/// The tensors of all groups in order, checked.
template <class P, class G>
struct flat_tensors {
  std::vector<std::size_t> sizes;
  std::vector<tensor_entry<P, G>> entries;

  /// Throws invalid_input; `where` names the rank.
  flat_tensors(const std::vector<param_group<P, G>>& groups, const std::string& where) {
    for (std::size_t g = 0; g < groups.size(); ++g) add_group(groups[g], g, where);
    check_overlap([](const auto& e) { return static_cast<const P*>(e.params); }, "params", where);
    check_overlap([](const auto& e) { return static_cast<const float*>(e.master); }, "masters",
                  where);
    if constexpr (!std::is_const_v<G>) {  // they are scratch: shared ones would mix
      check_overlap([](const auto& e) { return static_cast<const G*>(e.grads); }, "grads", where);
    }
  }

 private:
  void add_group(const param_group<P, G>& group, std::size_t g, const std::string& where) {
    if (!std::isfinite(group.lr_factor) || group.lr_factor < 0) {
      throw invalid_input(message("optimizer: group ", g, " has lr_factor ", group.lr_factor,
                                  ", must be finite and not negative", where));
    }
    if (!std::isfinite(group.weight_decay) || group.weight_decay < 0) {
      throw invalid_input(message("optimizer: group ", g, " has weight_decay ", group.weight_decay,
                                  ", must be finite and not negative", where));
    }
    for (std::size_t t = 0; t < group.tensors.size(); ++t) {
      const tensor<P, G>& x = group.tensors[t];
      if (x.params.size() != x.grads.size()) {
        throw invalid_input(message("optimizer: group ", g, " tensor ", t, " has ", x.params.size(),
                                    " params but ", x.grads.size(), " grads", where));
      }
      if (!x.master.empty() && (std::is_same_v<P, float> || x.master.size() != x.params.size())) {
        throw invalid_input(message("optimizer: group ", g, " tensor ", t, " has ", x.params.size(),
                                    " params of ", sizeof(P), " bytes and ", x.master.size(),
                                    " master parameters; give as many, and only ",
                                    "with 2-byte parameters", where));
      }
      sizes.push_back(x.params.size());
      entries.push_back({x.params.data(), x.grads.data(), group.lr_factor, group.weight_decay,
                         x.master.empty() ? nullptr : x.master.data()});
    }
  }
  /// The same parameters twice would be updated twice.
  template <class First>
  void check_overlap(const First& first, const char* what, const std::string& where) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 0 && first(entries[i]) != nullptr) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::less<>{}(first(entries[a]), first(entries[b]));
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const std::size_t a = order[i - 1], b = order[i];
      if (std::less<>{}(first(entries[b]), first(entries[a]) + sizes[a])) {
        throw invalid_input(message("optimizer: tensors ", a, " (", sizes[a], " ", what, ") and ",
                                    b, " (", sizes[b], " ", what,
                                    ") overlap in memory; list shared parameters once", where));
      }
    }
  }
};

/// What a rank says of itself when the optimizer is built.
struct rank_card {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_elements = 0;
  std::uint64_t sizes_digest = 0;
  std::uint64_t parameter_digest = 0;
  std::uint64_t slot_bytes = 0;  ///< of the compressed exchange: tells compressors without a name
  std::uint32_t rejected = 0;    ///< the rank's own input was invalid
  char name[476] = {};           ///< algorithm and options

  friend bool operator==(const rank_card& a, const rank_card& b) {
    return a.n_tensors == b.n_tensors && a.n_elements == b.n_elements &&
           a.sizes_digest == b.sizes_digest && a.parameter_digest == b.parameter_digest &&
           a.slot_bytes == b.slot_bytes && a.rejected == b.rejected &&
           std::strcmp(a.name, b.name) == 0;
  }
};

[[nodiscard]] inline rank_card make_card(std::string name, const std::vector<std::size_t>& sizes,
                                         std::uint64_t parameter_digest, std::size_t slot_bytes) {
  rank_card card;
  digest d;
  for (const std::size_t n : sizes) {
    d.add(static_cast<std::uint64_t>(n));
    card.n_elements += n;
  }
  card.n_tensors = sizes.size();
  card.sizes_digest = d.value();
  card.parameter_digest = parameter_digest;
  card.slot_bytes = slot_bytes;
  if (name.size() >= sizeof card.name) {  // what does not fit must still tell names apart
    digest rest;
    rest.add(name);
    name = name.substr(0, sizeof card.name - 40) + "... digest " + std::to_string(rest.value());
  }
  std::memcpy(card.name, name.data(), std::min(name.size(), sizeof card.name - 1));
  return card;
}

/// In what `odd` differs from `usual`, in words.
[[nodiscard]] inline std::string difference(const rank_card& odd, int odd_rank,
                                            const rank_card& usual, int usual_rank) {
  const auto both = [&](const auto& a, const auto& b) {
    std::ostringstream out;
    out << "rank " << odd_rank << " has " << a << ", rank " << usual_rank << " has " << b;
    return out.str();
  };
  if (std::strcmp(odd.name, usual.name) != 0) return both(odd.name, usual.name);
  if (odd.n_tensors != usual.n_tensors) {
    return both(std::to_string(odd.n_tensors) + " tensors", std::to_string(usual.n_tensors));
  }
  if (odd.n_elements != usual.n_elements) {
    return both(std::to_string(odd.n_elements) + " parameters", std::to_string(usual.n_elements));
  }
  if (odd.sizes_digest != usual.sizes_digest) {
    return both("tensors of other sizes or in another order", "as many parameters in all");
  }
  if (odd.slot_bytes != usual.slot_bytes) {
    return both("messages of " + std::to_string(odd.slot_bytes) + " bytes",
                std::to_string(usual.slot_bytes));
  }
  return both("other initial parameter values",
              "its own; start all ranks from the same (seed or broadcast them)");
}

/// What must fit before a checkpoint is used. Trivially copyable: part of the format.
struct checkpoint_card {
  rank_card ranks;
  std::uint32_t rank = 0, size = 0;
  std::uint64_t step = 0;

  [[nodiscard]] std::string difference(const checkpoint_card& here) const {
    const auto differ = [](const auto& what, const auto& a, const auto& b) {
      return message("checkpoint: it has ", what, a, ", this optimizer ", b);
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
      return message("checkpoint: its tensors have other sizes or another order");
    }
    if (ranks.slot_bytes != here.ranks.slot_bytes) {
      return differ("messages of bytes: ", ranks.slot_bytes, here.ranks.slot_bytes);
    }
    if (ranks.parameter_digest != here.ranks.parameter_digest) {
      return message("checkpoint: the parameters in memory are not those of step ", step,
                     " at which it was saved; restore the parameters before load()");
    }
    return {};
  }
};

/// Collective: compares the cards of all ranks. All throw rank_mismatch when one differs, naming
/// the rank that is in the minority.
template <class T>
void roll_call(T& transport, const rank_card& mine) {
  const auto size = static_cast<std::size_t>(transport.size());
  std::vector<rank_card> cards(size);
  gather_on_host(transport, &mine, cards.data(), sizeof mine);
  const std::string where = rank_suffix(transport.rank(), transport.size());
  for (std::size_t r = 0; r < size; ++r) {
    if (cards[r].rejected == 0) continue;
    throw rank_mismatch(
        message("optimizer: rank ", r, " rejected its input; its own error says why", where));
  }
  const auto sharers = [&](std::size_t r) {
    return std::count(cards.begin(), cards.end(), cards[r]);
  };
  std::size_t usual = 0;
  for (std::size_t r = 1; r < size; ++r) {
    if (sharers(r) > sharers(usual)) usual = r;
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (cards[r] == cards[usual]) continue;
    throw rank_mismatch(message(
        "optimizer: the ranks disagree: ",
        difference(cards[r], static_cast<int>(r), cards[usual], static_cast<int>(usual)), where));
  }
}

/// Runs f, which checks this rank's input. When it throws, tells the other ranks, which wait in
/// their roll call, before the exception goes on.
template <class T, class F>
auto attend(T& transport, const F& f) {
  try {
    return f();
  } catch (...) {
    rank_card card;
    card.rejected = 1;
    std::vector<rank_card> cards(static_cast<std::size_t>(transport.size()));
    gather_on_host(transport, &card, cards.data(), sizeof card);
    throw;
  }
}

/// Collective, at a load: all throw checkpoint_error when a rank has a failure to tell or another
/// step than the others.
template <class T>
void agree_on_checkpoint(T& transport, const std::string& failure, std::uint64_t step) {
  const std::string where = rank_suffix(transport.rank(), transport.size());
  constexpr auto failed = ~std::uint64_t{0};
  const std::uint64_t mine = failure.empty() ? step : failed;
  std::vector<std::uint64_t> steps(static_cast<std::size_t>(transport.size()));
  gather_on_host(transport, &mine, steps.data(), sizeof mine);
  if (!failure.empty()) throw checkpoint_error(failure + where);
  for (std::size_t r = 0; r < steps.size(); ++r) {
    if (steps[r] == failed) {
      throw checkpoint_error(message("load: rank ", r,
                                     " could not read its checkpoint; nothing was ",
                                     "loaded on any rank", where));
    }
    if (steps[r] != mine) {
      throw checkpoint_error(message("load: rank ", r, " has a checkpoint of step ", steps[r],
                                     ", this rank one of step ", mine,
                                     "; nothing was loaded on any rank", where));
    }
  }
}

}  // namespace onebit::detail
