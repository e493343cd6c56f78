// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/checkpoint.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/transport/wire.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What is checked when an optimizer is built: that all ranks agree.
namespace onebit::inline v0_1::detail {

/// Why a step with these numbers cannot be; empty: it can.
[[nodiscard, gnu::cold]] inline std::string refuse_numbers(std::uint64_t step, float lr,
                                                           float largest_lr_factor,
                                                           float inverse_loss_scale,
                                                           const std::string& where) {
  const bool is_rate = lr == 0 || (lr > 0 && std::isnormal(lr));
  if (!is_rate || !std::isfinite(lr * largest_lr_factor)) {
    return message("optimizer: step ", step, " with lr ", lr, " and lr_factor up to ",
                   largest_lr_factor, "; lr must be 0 or positive, at least 1.2e-38, and finite ",
                   "times each factor", where);
  }
  if (!std::isfinite(inverse_loss_scale) || !(inverse_loss_scale > 0)) {
    return message("optimizer: step ", step, " with inverse loss scale ", inverse_loss_scale,
                   "; must be finite and positive", where);
  }
  return {};
}

/// What a rank says of itself when the optimizer is built.
struct rank_card {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_elements = 0;
  std::uint64_t sizes_digest = 0;
  std::uint64_t parameter_digest = 0;
  std::uint64_t slot_bytes = 0;  ///< of the compressed exchange: tells compressors without a name
  std::uint32_t rejected = 0;    ///< the rank's own input was invalid
  std::uint32_t number = 0;      ///< of the optimizer among those of its process: may differ
  char name[472] = {};           ///< algorithm and options

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

/// Of two descriptions of as many words those of the first that differ, each with the words before
/// it: which options. Empty: they have not as many, or what differs is no number.
[[nodiscard, gnu::cold]] inline std::string differing_words(std::string_view own,
                                                            std::string_view other) {
  const auto count = [](std::string_view text) {
    return std::count(text.begin(), text.end(), ' ');
  };
  if (count(own) != count(other)) return {};
  const auto next = [](std::string_view& rest) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    return word;
  };
  std::string all;
  for (std::string_view first, second; !own.empty();) {
    const std::string_view a = next(own), b = next(other);
    if (a != b) {
      const auto is_number = [](char c) { return c == '-' || (c >= '0' && c <= '9'); };
      if (a.empty() || !is_number(a[0])) return {};
      all += all.empty() ? "" : ", ";
      const bool is_word =
          !first.empty() && std::isalpha(static_cast<unsigned char>(first[0])) != 0;
      if (is_word) all += std::string(first) + " ";
      if (!second.empty()) all += std::string(second) + " ";
      all += a;
    }
    first = std::exchange(second, a);
  }
  return all;
}

/// Of a description what it has that the other one has not, with a word or two around it: which
/// option, not a screenful.
[[nodiscard, gnu::cold]] inline std::string differing_part(std::string_view own,
                                                           std::string_view other) {
  if (std::string words = differing_words(own, other); !words.empty()) return words;
  const std::size_t shorter = std::min(own.size(), other.size());
  std::size_t first = 0, same_end = 0;
  while (first < shorter && own[first] == other[first]) ++first;
  for (int words = 0; first > 0 && words < 3; ++words) {  // back to the word's start, and two more
    if (words > 0) --first;
    while (first > 0 && own[first - 1] != ' ') --first;
  }
  while (same_end < shorter - std::min(first, shorter) &&
         own[own.size() - 1 - same_end] == other[other.size() - 1 - same_end]) {
    ++same_end;
  }
  std::size_t end = own.size() - same_end;
  for (int words = 0; end < own.size() && words < 2; ++words) {  // to the word's end, and one more
    if (words > 0) ++end;
    while (end < own.size() && own[end] != ' ') ++end;
  }
  return std::string(first > 0 ? "... " : "") + std::string(own.substr(first, end - first)) +
         (end < own.size() ? " ..." : "");
}

/// In what `odd` differs from `usual`, in words.
[[nodiscard, gnu::cold]] inline std::string difference(const rank_card& odd, int odd_rank,
                                                       const rank_card& usual, int usual_rank) {
  const auto both = [&](text_part a, text_part b) {
    return join(6, {"rank ", odd_rank, " has ", a, ", rank ", usual_rank, " has ", b});
  };
  if (std::strcmp(odd.name, usual.name) != 0) {
    return both(differing_part(odd.name, usual.name), differing_part(usual.name, odd.name));
  }
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
  return both(
      "other initial parameter values",
      "its own; start all ranks from the same (seed or broadcast them; to resume, build the "
      "optimizer first, then restore the parameters, then load)");
}

/// What must fit before a checkpoint is used. Trivially copyable: part of the format.
struct checkpoint_card {
  rank_card ranks;
  std::uint32_t rank = 0, size = 0;
  std::uint32_t ranks_per_node = 1, unused = 0;
  std::uint64_t step = 0;

  [[nodiscard, gnu::cold]] std::string difference(const checkpoint_card& here,
                                                  resume_with with) const {
    const auto differ = [](const char* what, text_part a, text_part b) {
      return join(6, {"onebit::checkpoint: it has ", what, a, ", this optimizer ", b});
    };
    const std::string_view its(ranks.name, strnlen(ranks.name, sizeof ranks.name));
    const std::string_view own(here.ranks.name);
    const auto compared = [&](std::string_view name) {
      return with == resume_with::same_options ? name : name.substr(0, name.find(' '));
    };
    if (compared(its) != compared(own)) {
      return differ("", differing_part(its, own), differing_part(own, its));
    }
    if (size != here.size) return differ("world size ", size, here.size);
    if (ranks_per_node != here.ranks_per_node) {
      return differ("ranks per node: ", ranks_per_node, here.ranks_per_node);
    }
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

/// Counts the optimizers of this process.
[[nodiscard, gnu::cold]] inline std::uint32_t next_number() {
  static std::atomic<std::uint32_t> n{0};
  return n.fetch_add(1);
}

/// Collective.
[[nodiscard, gnu::cold]] inline std::vector<rank_card> gather_cards(wire& comm,
                                                                    const rank_card& mine) {
  std::vector<rank_card> cards(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, cards.data(), sizeof mine);
  for (rank_card& card : cards)
    card.name[sizeof card.name - 1] = '\0';  // another rank's may not end
  return cards;
}

/// Collective: compares the cards of all ranks. All throw rank_mismatch when one differs, naming
/// the rank that is in the minority. The number that rank 0 gave.
[[gnu::cold]] inline std::uint32_t roll_call(wire& comm, const rank_card& mine) {
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
  return cards[0].number;
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

/// Collective, at a load: all throw checkpoint_error when a rank has a failure to tell, another
/// step than the others, or other scalars (a digest).
[[gnu::cold]] inline void agree_on_checkpoint(wire& comm, const std::string& failure,
                                              std::uint64_t step, std::uint64_t scalars) {
  struct news {
    std::uint64_t failed, step, scalars;
  };
  const std::string where = comm.where();
  const news mine{failure.empty() ? 0U : 1U, step, scalars};
  std::vector<news> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), sizeof mine);
  if (!failure.empty()) throw checkpoint_error(failure + where);
  constexpr const char* nothing = "; nothing was loaded on any rank";
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failed != 0) {
      throw checkpoint_error(
          message("load: rank ", r, " could not read its checkpoint", nothing, where));
    }
    if (all[r].step != mine.step) {
      throw checkpoint_error(message("load: rank ", r, " has a checkpoint of step ", all[r].step,
                                     ", this rank one of step ", mine.step, nothing, where));
    }
    if (all[r].scalars != mine.scalars) {
      throw checkpoint_error(message("load: the checkpoint of rank ", r, " tells another state of ",
                                     "the schedule or the rule than this rank's, at one step",
                                     nothing, where));
    }
  }
}

}  // namespace onebit::inline v0_1::detail
