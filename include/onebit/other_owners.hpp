// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <istream>
#include <memory>
#include <onebit/checkpoint.hpp>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/reduce_scatter.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/moving_state.hpp>
#include <onebit/now.hpp>
#include <onebit/own_card.hpp>
#include <onebit/own_part.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/running.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/wire.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// State that is shared out, for a job of other ranks: they own other pieces.
namespace onebit::inline v0_1::detail {

/// A piece where its owner's optimizer has it.
struct placed_piece {
  owned_piece piece;
  std::size_t word;  ///< of that optimizer's axis
};

/// Words that two owners of different jobs have in common.
struct common_words {
  std::size_t old_word, word, n;   ///< on the axes of their optimizers
  std::size_t old_served, served;  ///< among all words that each owns
  std::size_t old_place, place;    ///< of the tensors that they are of
  std::size_t elements;
};

/// Pieces in the order of the tensors, each on words of its own: as an optimizer of them lays them.
[[nodiscard, gnu::cold]] inline std::vector<placed_piece> placed(
    const std::vector<owned_piece>& pieces) {
  std::vector<placed_piece> all;
  std::size_t word = 0;
  for (const owned_piece& p : pieces) {
    all.push_back({p, word});
    word += (p.n + word_elements - 1) / word_elements;
  }
  return all;
}

/// What two owners have in common, in order.
[[nodiscard, gnu::cold]] inline std::vector<common_words> common_to(
    const std::vector<owned_piece>& old_pieces, const std::vector<owned_piece>& pieces) {
  const auto was = placed(old_pieces), now = placed(pieces);
  std::vector<common_words> all;
  for (std::size_t k = 0, i = 0; k < was.size() && i < now.size();) {
    const owned_piece &a = was[k].piece, &b = now[i].piece;
    const std::size_t first = std::max(a.first, b.first);
    const std::size_t a_end = a.first + a.n, b_end = b.first + b.n, end = std::min(a_end, b_end);
    if (a.tensor == b.tensor && first < end) {
      const std::size_t in_a = (first - a.first) / word_elements;
      const std::size_t in_b = (first - b.first) / word_elements;
      all.push_back({was[k].word + in_a, now[i].word + in_b,
                     (end - first + word_elements - 1) / word_elements, a.word + in_a,
                     b.word + in_b, k, i, end - first});
    }
    const bool a_is_first = a.tensor != b.tensor ? a.tensor < b.tensor : a_end < b_end;
    a_is_first ? ++k : ++i;
  }
  return all;
}

/// The state of a job of other ranks, file by file, for what this rank owns of a sharded optimizer
/// (`Parts`): a rank reads the files of those who owned something of it, and of each takes that.
///
/// Memory: this rank's state twice, and, while a file is read, its rank's state three times.
template <class Parts>
class other_owners {
  using E = typename Parts::engine_type;
  using B = typename Parts::B;
  using R = decltype(E::rule);
  using S = decltype(E::schedule);

 public:
  /// Not collective; allocates. Throws checkpoint_error for no ranks.
  [[gnu::cold]] other_owners(Parts& parts, std::size_t n_ranks)
      : parts_(&parts),
        e_(&within::engine_of(parts.inner)),
        n_ranks_(n_ranks),
        here_(parts.card()),
        axis_(parts.tensors.sizes, ranks_of(n_ranks), granularity::vector(),
              parts.exchange.axis().n_buckets()),
        rule_(e_->rule.options(), e_->backend()),
        numbers_(e_->tensors.size()),
        live_(e_->live.size()),
        masters_(parts.part.masters.floats.size()),
        low_(parts.part.masters.low.size()),
        new_masters_(parts.backend(), 0, {}) {
    rule_.prepare(e_->average.axis());
    e_->backend().copy_out(numbers_.data(), e_->tensors.numbers.data(), numbers_.size());
  }

  /// Whether rank r of the old job has something that this rank needs: who needs nothing of any
  /// reads one all the same, to know what all know.
  [[nodiscard, gnu::cold]] bool needs(std::size_t r) const {
    return r == static_cast<std::size_t>(parts_->comm.rank()) % n_ranks_ ||
           !common_to(pieces_of(axis_, r), parts_->part.pieces).empty();
  }
  /// Reads what rank r of the old job saved. Throws checkpoint_error.
  [[gnu::cold]] void read(std::istream& in, std::size_t r, resume_with with) {
    B& backend = e_->backend();
    own_part<B, typename Parts::params_type, typename Parts::grads_type> old(
        backend, pieces_of(axis_, r), words_of_owner(axis_),
        sharding{.masters = !masters_.empty(), .master_low = !low_.empty()});
    std::unique_ptr<E> engine;  // outlives the reader, which takes back what it read
    checkpoint_card found, wanted = here_;
    {
      payload_reader record(in);
      record.local(found);
      wanted.rank = static_cast<std::uint32_t>(r);
      wanted.size = static_cast<std::uint32_t>(n_ranks_);
      wanted.ranks.slot_bytes = words_of_owner(axis_);
      require(found.difference(wanted, with));
      old.masters.archive(record, backend);
      record.finish();
      record.keep();
    }
    engine = std::make_unique<E>(old.groups(parts_->tensors), wire(alone{}),
                                 R(e_->rule.options(), backend), e_->schedule, e_->policy,
                                 dense_sum::rank_order);
    payload_reader payload(in);
    payload.local(found);
    wanted = own_card({}, *engine);
    std::memcpy(wanted.ranks.name, found.ranks.name, sizeof found.ranks.name);  // the first told it
    require(found.difference(wanted, with));
    engine->prepare(0);
    engine->archive(payload);
    payload.finish();
    payload.keep();
    engine->adopt();
    if (engine->step != found.step) require(message("resume: rank ", r, " saved two steps"));
    take(*engine, old, payload.scalars());
    first_ = first_ ? first_ : r + 1;
  }
  /// When all are read: what may fail.
  [[gnu::cold]] void prepare() {
    B& backend = e_->backend();
    new_masters_.floats = to_buffer(backend, masters_);
    new_masters_.low = to_buffer(backend, low_);
    new_numbers_ = to_buffer(backend, numbers_);
    new_live_ = to_buffer(backend, live_);
  }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t scalars() const { return scalars_; }

  /// The masters that were read, in place of this rank's, and back.
  void swap_masters() { std::swap(parts_->part.masters, new_masters_); }
  /// Takes the rest over: only launches.
  [[gnu::cold]] void adopt() {
    E& e = *e_;
    e.step = step_;
    e.last_lr = last_lr_;
    std::destroy_at(&e.schedule);  // a function of the trainer's need not be assignable
    std::construct_at(&e.schedule, std::move(*schedule_));
    e.rule = std::move(rule_);
    if (new_live_.size() > 0) e.live.set_current(std::move(new_live_));
    step_scalars now;
    e.backend().copy_out(&now, e.now(), 1);
    was_.optimizer = now.optimizer;
    was_.rank = now.rank;
    was_.n_skipped = now.n_skipped;
    e.backend().copy_in(e.now(), &was_, 1);
    e.tensors.numbers = std::move(new_numbers_);
    e.tensors.changed = true;  // the options are this job's
    e.tensors.take_terms(e.backend());
    e.adopt();
  }

 private:
  [[nodiscard]] static int ranks_of(std::size_t n) {
    constexpr std::size_t most = std::size_t{1} << 24U;
    if (n > 0 && n <= most) return static_cast<int>(n);
    throw checkpoint_error(message("load_old_job: ", n, " ranks to load"));
  }
  [[gnu::cold]] static void require(const std::string& text) {
    if (!text.empty()) throw checkpoint_error(text);
  }
  /// What is this rank's of an old one's state.
  template <class Old>
  [[gnu::cold]] void take(E& old, Old& part, std::uint64_t scalars) {
    B& backend = e_->backend();
    if (first_ == 0) {
      step_ = old.step;
      scalars_ = scalars;
      last_lr_ = old.last_lr;
      schedule_.emplace(old.schedule);
      backend.copy_out(&was_, old.now(), 1);
    }
    if (step_ != old.step || scalars_ != scalars) {
      require(message("resume: ranks ", first_ - 1,
                      " and another of the old job tell other states,", " of steps ", step_,
                      " and ", old.step));
    }
    std::vector<std::size_t> from(numbers_.size(), new_tensor);
    std::vector<moved_words::run> runs;
    const auto common = common_to(part.pieces, parts_->part.pieces);
    for (const common_words& c : common) {
      from[c.place] = c.old_place;
      runs.push_back({c.old_word, c.word, c.n});
    }
    const moved_words words(std::move(runs), from, old.tensors.size(), old.average.axis().n_words(),
                            e_->average.axis().n_words());
    moving_writer state;
    old.rule.archive(state);
    moving_reader reader(state, words, first_ != 0);
    rule_.archive(reader);
    std::vector<tensor_numbers> numbers(old.tensors.size());
    backend.copy_out(numbers.data(), old.tensors.numbers.data(), numbers.size());
    for (std::size_t t = 0; t < from.size(); ++t) {
      if (from[t] != new_tensor) numbers_[t] = numbers[from[t]];
    }
    std::vector<std::uint32_t> live(old.live.size());
    backend.copy_out(live.data(), old.live.current(), live.size());
    if (!live.empty() && !live_.empty()) words.move(live.data(), live_.data(), 1);
    const auto bring = [&](const auto& were, auto& to) {
      if (to.empty()) return;
      std::vector there(were.size(), to[0]);
      backend.copy_out(there.data(), were.data(), there.size());
      for (const common_words& c : common) {
        std::copy_n(there.data() + c.old_served * word_elements, c.elements,
                    to.data() + c.served * word_elements);
      }
    };
    bring(part.masters.floats, masters_);
    bring(part.masters.low, low_);
  }

  Parts* parts_;
  E* e_;
  std::size_t n_ranks_, first_ = 0;  ///< the rank that was read first, from 1
  checkpoint_card here_;
  layout axis_;  ///< as the old job had cut it
  R rule_;
  std::optional<S> schedule_;
  step_scalars was_{};
  float last_lr_ = 1;
  std::uint64_t step_ = 0, scalars_ = 0;
  std::vector<tensor_numbers> numbers_;
  std::vector<std::uint32_t> live_;
  std::vector<float> masters_;
  std::vector<low_half> low_;
  own_masters<B> new_masters_;
  buffer_of<B, tensor_numbers> new_numbers_{};
  buffer_of<B, std::uint32_t> new_live_{};
};

/// As sharded::load_old_job, which says more: into `parts`.
template <class Parts, class Open>
[[gnu::cold]] void load_old_owners(Parts& parts, std::size_t n_ranks, const Open& open,
                                   resume_with with) {
  std::string failure;
  std::optional<other_owners<Parts>> old;
  bool swapped = false;
  const auto rebind = [&] { parts.inner.rebind(parts.part.groups(parts.tensors)); };
  try {
    if (parts.begun) failure = message("sharded: load_old_job() between begin() and step()");
    if (failure.empty()) {
      old.emplace(parts, n_ranks);
      for (std::size_t r = 0; r < n_ranks; ++r) {
        if (old->needs(r)) old->read(*open(r), r, with);
      }
      old->prepare();
      old->swap_masters();
      swapped = true;
      rebind();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  try {
    agree_on_checkpoint(parts.comm, failure, old ? old->step() : 0, old ? old->scalars() : 0);
  } catch (...) {
    if (swapped) old->swap_masters();
    if (swapped) rebind();
    throw;
  }
  old->adopt();
  parts.torn = false;
}

}  // namespace onebit::inline v0_1::detail
