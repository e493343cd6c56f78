// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <onebit/checkpoint.hpp>
#include <onebit/error.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/wire.hpp>
#include <string>
#include <type_traits>
#include <vector>

/// What is checked when an optimizer is built: each rank's own input, then that all ranks agree.
namespace onebit::detail {

/// A range of the trainer's memory: the i-th tensor's parameters, gradients or masters.
struct memory_range {
  const char* first;
  const char* end;
  std::size_t tensor, n;
};

/// Throws invalid_input when two ranges overlap. The same parameters twice would be updated twice.
[[gnu::cold]] inline void check_overlap(std::vector<memory_range> ranges, const char* what,
                                        const std::string& where) {
  const auto by_address = [](const void* a, const void* b) {
    const auto first = [](const void* p) { return static_cast<const memory_range*>(p)->first; };
    return first(a) < first(b) ? -1 : first(a) > first(b) ? 1 : 0;
  };
  if (!ranges.empty()) {
    std::qsort(ranges.data(), ranges.size(), sizeof ranges[0], by_address);
  }
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const memory_range &a = ranges[i - 1], &b = ranges[i];
    if (b.first >= a.end) continue;
    throw invalid_input(message("optimizer: tensors ", a.tensor, " (", a.n, " ", what, ") and ",
                                b.tensor, " (", b.n, " ", what,
                                ") overlap in memory; list shared parameters once", where));
  }
}

/// Throws invalid_input unless a group's options and a tensor's sizes can be used.
[[gnu::cold]] inline void check_group(std::size_t g, float lr_factor, float weight_decay,
                                      const std::string& where) {
  if (!std::isfinite(lr_factor) || lr_factor < 0) {
    throw invalid_input(message("optimizer: group ", g, " has lr_factor ", lr_factor,
                                ", must be finite and not negative", where));
  }
  if (!std::isfinite(weight_decay) || weight_decay < 0) {
    throw invalid_input(message("optimizer: group ", g, " has weight_decay ", weight_decay,
                                ", must be finite and not negative", where));
  }
}
struct tensor_sizes {
  std::size_t group, tensor, params, grads, masters, bytes_each;
  bool may_have_masters;
};
[[gnu::cold]] inline void check_tensor(const tensor_sizes& s, const std::string& where) {
  if (s.params != s.grads) {
    throw invalid_input(message("optimizer: group ", s.group, " tensor ", s.tensor, " has ",
                                s.params, " params but ", s.grads, " grads", where));
  }
  if (s.masters != 0 && (!s.may_have_masters || s.masters != s.params)) {
    throw invalid_input(message("optimizer: group ", s.group, " tensor ", s.tensor, " has ",
                                s.params, " params of ", s.bytes_each, " bytes and ", s.masters,
                                " master parameters; give as many, and only ",
                                "with 2-byte parameters", where));
  }
}

/// The tensors of all groups in order, checked.
template <class P, class G>
struct flat_tensors {
  std::vector<std::size_t> sizes;
  std::vector<tensor_entry<P, G>> entries;
  std::vector<std::size_t> group_ends;  ///< by group: the tensors up to its last

  /// Throws invalid_input; `where` names the rank.
  [[gnu::cold]] flat_tensors(const std::vector<param_group<P, G>>& groups,
                             const std::string& where) {
    std::vector<memory_range> params, grads, masters;
    const auto add = [&](std::vector<memory_range>& ranges, const auto& values) {
      const auto* first = reinterpret_cast<const char*>(values.data());
      if (!values.empty() && first != nullptr) {
        ranges.push_back({first, first + values.size_bytes(), sizes.size(), values.size()});
      }
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const param_group<P, G>& group = groups[g];
      check_group(g, group.lr_factor, group.weight_decay, where);
      for (std::size_t t = 0; t < group.tensors.size(); ++t) {
        const tensor<P, G>& x = group.tensors[t];
        check_tensor({g, t, x.params.size(), x.grads.size(), x.master.size(), sizeof(P),
                      !std::is_same_v<P, float>},
                     where);
        add(params, x.params);
        add(masters, x.master);
        if constexpr (!std::is_const_v<G>) add(grads, x.grads);  // they are scratch
        sizes.push_back(x.params.size());
        entries.push_back({x.params.data(), x.grads.data(), group.lr_factor, group.weight_decay,
                           x.master.empty() ? nullptr : x.master.data()});
      }
      group_ends.push_back(sizes.size());
    }
    check_overlap(std::move(params), "params", where);
    check_overlap(std::move(masters), "masters", where);
    check_overlap(std::move(grads), "grads", where);
  }
};

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

[[nodiscard, gnu::cold]] inline rank_card make_card(std::string name,
                                                    const std::vector<std::size_t>& sizes,
                                                    std::uint64_t parameter_digest,
                                                    std::size_t slot_bytes) {
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
[[nodiscard, gnu::cold]] inline std::string difference(const rank_card& odd, int odd_rank,
                                                       const rank_card& usual, int usual_rank) {
  const auto both = [&](text_part a, text_part b) {
    return join(6, {"rank ", odd_rank, " has ", a, ", rank ", usual_rank, " has ", b});
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

  [[nodiscard, gnu::cold]] std::string difference(const checkpoint_card& here) const {
    const auto differ = [](const char* what, text_part a, text_part b) {
      return join(6, {"onebit::checkpoint: it has ", what, a, ", this optimizer ", b});
    };
    if (std::strncmp(ranks.name, here.ranks.name, sizeof ranks.name) != 0) {
      return differ("", std::string_view(ranks.name, strnlen(ranks.name, sizeof ranks.name)),
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

/// Collective.
[[nodiscard, gnu::cold]] inline std::vector<rank_card> gather_cards(wire& comm,
                                                                    const rank_card& mine) {
  std::vector<rank_card> cards(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, cards.data(), sizeof mine);
  return cards;
}

/// Collective: compares the cards of all ranks. All throw rank_mismatch when one differs, naming
/// the rank that is in the minority.
[[gnu::cold]] inline void roll_call(wire& comm, const rank_card& mine) {
  const std::vector<rank_card> cards = gather_cards(comm, mine);
  const std::size_t size = cards.size();
  const std::string where = comm.where();
  for (std::size_t r = 0; r < size; ++r) {
    if (cards[r].rejected == 0) continue;
    throw rank_mismatch(
        message("optimizer: rank ", r, " rejected its input; its own error says why", where));
  }
  const auto sharers = [&](std::size_t r) {
    int n = 0;
    for (const rank_card& other : cards) n += other == cards[r] ? 1 : 0;
    return n;
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
[[gnu::cold]] inline void tell_rejection(wire& comm) {
  rank_card card;
  card.rejected = 1;
  (void)gather_cards(comm, card);
}
template <class F>
[[gnu::cold]] auto attend(wire& comm, const F& f) {
  try {
    return f();
  } catch (...) {
    tell_rejection(comm);
    throw;
  }
}

/// Collective, at a load: all throw checkpoint_error when a rank has a failure to tell or another
/// step than the others.
[[gnu::cold]] inline void agree_on_checkpoint(wire& comm, const std::string& failure,
                                              std::uint64_t step) {
  const std::string where = comm.where();
  constexpr auto failed = ~std::uint64_t{0};
  const std::uint64_t mine = failure.empty() ? step : failed;
  std::vector<std::uint64_t> steps(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, steps.data(), sizeof mine);
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
