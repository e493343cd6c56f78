// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <istream>
#include <memory>
#include <onebit/checkpoint.hpp>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/passes.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/now.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/wire.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// A job goes on: with the same ranks, bit for bit, or with other ones.
namespace onebit {

/// Reads what this rank saved over the state of engine E, whose card `card()` gives; `refusal`: why
/// this rank must not load now, or empty. Collective: throws checkpoint_error on all ranks when one
/// fails; then nothing has changed.
template <class E, class Card>
[[gnu::cold]] void load_checkpoint(E& e, std::istream& in, const Card& card,
                                   const std::string& refusal) {
  detail::checkpoint_card found;
  std::optional<detail::payload_reader> payload;
  std::string failure = refusal;
  try {
    if (failure.empty()) {
      payload.emplace(in);
      payload->local(found);
      failure = found.difference(card());
    }
    if (failure.empty()) {
      e.archive(*payload);
      payload->finish();
      if (e.step != found.step) failure = detail::message("checkpoint: of two steps");
    }
  } catch (const std::exception& error) {  // a stream may throw too; the other ranks wait
    failure = error.what();
  }
  detail::agree_on_checkpoint(e.comm, failure, found.step, payload ? payload->scalars() : 0);
  payload->keep();
  e.adopt();
}

// -- with other ranks -----------------------------------------------------------------------------

namespace detail {

/// A rank of a job that is no more, as far as reading its checkpoint needs one: the others say what
/// it says.
class rank_of_old {
 public:
  rank_of_old(int rank, int size) : rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  void all_to_all(const void*, void*, std::size_t) { refuse(); }
  void all_reduce_sum(float*, std::size_t) { refuse(); }
  void all_gather(const void* send, void* receive, std::size_t n) {
    for (int r = 0; r < size_ && n > 0; ++r) {
      std::memcpy(static_cast<char*>(receive) + static_cast<std::size_t>(r) * n, send, n);
    }
  }

 private:
  [[noreturn]] static void refuse() {
    throw transport_error(message("load_old_job: a rank of an old job takes no steps"));
  }
  int rank_, size_;
};

/// part += weight * field, on the flat axis.
template <class Field>
struct add_field_kernel {
  static constexpr bool rare = true;
  Field field;
  const tile* tiles;
  flat_part part;
  float weight;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = field.template at<L>(t, i);
    float* const first = part.at(t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* const at = first + k * 32;
      L::store(at, L::fma(value(k), L::set(weight), L::load(at)));
    }
  }
};

/// A server's residual, where the chunk's tiles lie on the flat axis.
struct served_field {
  const float* residual;
  slot_format format;

  template <class L>
  ONEBIT_HD flat_field::reader<L> at(const tile& t, std::size_t) const {
    return {residual + format.served_word(t) * 32};
  }
};

}  // namespace detail

/// The state of a job of other ranks, rank by rank, for an engine E of this one.
///
/// Moments, parameters' anchors and masks are the same on all ranks, or of one of them: rank r
/// takes the place of rank r mod the old number. What exchanges owe is kept on average: every new
/// rank carries the mean of the old ranks' residuals, and what their servers still meant to say; so
/// the sum of what is sent from now on is what it would have been.
template <class E>
class old_job {
  using B = typename E::backend_type;
  using R = decltype(E::rule);

 public:
  /// Not collective; allocates.
  [[gnu::cold]] old_job(E& e, std::size_t n_ranks)
      : e_(&e),
        n_ranks_(n_ranks),
        source_rank_(static_cast<std::size_t>(e.comm.rank()) % n_ranks),
        owed_(e.backend().template make_buffer<float>(e.average.axis().n_words() * word_elements)) {
  }

  /// Reads the next rank's checkpoint. `fits(card, rank, slot_bytes, is_source)` throws when it
  /// is another optimizer's. Throws checkpoint_error.
  template <class Fits>
  [[gnu::cold]] void read(std::istream& in, const Fits& fits) {
    const std::size_t r = n_read_++;
    std::unique_ptr<E> old;  // outlives the reader, which takes back what it read
    detail::payload_reader payload(in);
    detail::checkpoint_card card;
    payload.local(card);
    if (card.ranks_per_node != 1 || e_->compressed.ranks_per_node() != 1) {
      throw checkpoint_error(detail::message(
          "load_old_job: exchanges on two levels (", card.ranks_per_node, " ranks per node, here ",
          e_->compressed.ranks_per_node(), ") go on with the same ranks and nodes only"));
    }
    old = std::make_unique<E>(
        detail::groups_of(e_->tensors),
        wire(detail::rank_of_old(static_cast<int>(r), static_cast<int>(n_ranks_))),
        R(e_->rule.options(), e_->rule.backend()), e_->schedule, e_->policy, dense_sum::rank_order);
    fits(card, r, old->compressed.slot_bytes(), r == source_rank_);
    old->prepare(0);
    old->archive(payload);
    payload.finish();
    payload.keep();
    old->adopt();
    add(*old, r);
    scalars_ = r == 0 ? payload.scalars() : scalars_;
    if (r == 0) step_ = old->step;
    if (payload.scalars() != scalars_ || old->step != step_) {
      throw checkpoint_error(detail::message("load_old_job: ranks 0 and ", r,
                                             " tell other states, of steps ", step_, " and ",
                                             old->step));
    }
    if (r == source_rank_) source_ = std::move(old);
  }
  /// When all are read: allocates what `adopt` needs.
  [[gnu::cold]] void prepare() {
    E& old = *source_;
    const bool travels = e_->compressed.travels();
    if constexpr (R::local_steps) {
      if (travels) space_ = e_->compressed.allocate(false, true);
      if (travels) e_->allocate_undo();
    } else if (old.compressed.started()) {
      if (!travels) return old.thaw();  // one rank alone never compresses
      given_ = old.rule.resume(old.compressed.agreed(old.mask()), old.at(old.mask()));
      space_ = e_->compressed.allocate(true, false);
      e_->allocate_undo();
    }
  }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t scalars() const { return scalars_; }

  /// Takes the state over: only launches.
  [[gnu::cold]] void adopt() {
    E &e = *e_, &old = *source_;
    const bool starts = (R::local_steps || old.compressed.started()) && e.compressed.travels();
    e.step = old.step;
    e.last_lr = old.last_lr;
    std::destroy_at(&e.schedule);  // a function of the trainer's need not be assignable
    std::construct_at(&e.schedule, std::move(old.schedule));
    e.rule = std::move(old.rule);
    e.live = std::move(old.live);
    step_scalars now, was;
    e.backend().copy_out(&now, e.now(), 1);
    e.backend().copy_out(&was, old.now(), 1);
    was.optimizer = now.optimizer;
    was.n_skipped = now.n_skipped;
    e.backend().copy_in(e.now(), &was, 1);
    if (starts) {
      e.compressed.start(std::move(space_), std::move(given_));
      auto& s = e.compressed.sender();
      if constexpr (std::remove_reference_t<decltype(s)>::carries) {
        s.backend().launch(
            s.axis().tiles().size(),
            detail::add_field_kernel<flat_field>{{owed_.data()}, s.tiles(), s.carried(), 1.0F});
      }
    } else if (e.compressed.started()) {
      e.compressed.start({}, {});
    }
    if constexpr (R::local_steps) {
      if (n_ranks_ == 1) e.rule.resume(e.compressed.agreed(e.mask()), e.at(e.mask()));
    }
    e.adopt();
  }

 private:
  [[gnu::cold]] void add(E& old, std::size_t r) {
    auto& x = old.compressed;
    auto& s = x.sender();
    if constexpr (std::remove_reference_t<decltype(s)>::carries) {
      if (!x.started()) return;
      const auto residual = s.residual(old.mask());
      s.backend().launch(
          s.axis().tiles().size(),
          detail::add_field_kernel<std::remove_const_t<decltype(residual)>>{
              residual, s.tiles(), {owed_.data(), 0}, 1.0F / static_cast<float>(n_ranks_)});
      if (x.server_residual().size() == 0) return;
      for (int b = 0; b < s.axis().n_buckets(); ++b) {
        const tile_range own =
            s.axis().chunk_tiles(b * static_cast<int>(n_ranks_) + static_cast<int>(r));
        s.backend().launch(own.end - own.begin, detail::add_field_kernel<detail::served_field>{
                                                    {x.server_residual().data(), s.format()},
                                                    s.tiles() + own.begin,
                                                    {owed_.data(), 0},
                                                    1.0F});
      }
    }
  }

  E* e_;
  std::size_t n_ranks_, source_rank_, n_read_ = 0;
  buffer_of<B, float> owed_;  ///< on the flat axis
  std::unique_ptr<E> source_;
  std::uint64_t step_ = 0, scalars_ = 0;
  typename E::exchange_type::space space_{};
  handover<buffer_of<B, float>> given_{};
};

/// Reads the checkpoints of the `n_ranks` ranks that `open(r)` opens, as streams, and takes their
/// state over; `card` and `refusal` as load_checkpoint. Collective: throws checkpoint_error on all
/// ranks when one fails; then nothing has changed.
template <class E, class Open, class Card>
[[gnu::cold]] void load_old_job(E& e, std::size_t n_ranks, const Open& open, const Card& card,
                                const std::string& refusal) {
  std::string failure = refusal;
  std::unique_ptr<old_job<E>> old;
  try {
    if (n_ranks == 0) throw checkpoint_error(detail::message("load_old_job: no ranks to load"));
    const detail::checkpoint_card here = card();
    const auto fits = [&](const detail::checkpoint_card& found, std::size_t r,
                          std::size_t slot_bytes, bool is_source) {
      detail::checkpoint_card wanted = here;
      wanted.rank = static_cast<std::uint32_t>(r);
      wanted.size = static_cast<std::uint32_t>(n_ranks);
      wanted.ranks.slot_bytes = slot_bytes;
      if (!is_source) wanted.ranks.parameter_digest = found.ranks.parameter_digest;
      if (const auto text = found.difference(wanted); !text.empty()) throw checkpoint_error(text);
    };
    if (failure.empty()) {
      old = std::make_unique<old_job<E>>(e, n_ranks);
      for (std::size_t r = 0; r < n_ranks; ++r) {
        const auto in = open(r);
        old->read(*in, fits);
      }
      old->prepare();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  detail::agree_on_checkpoint(e.comm, failure, old ? old->step() : 0, old ? old->scalars() : 0);
  old->adopt();
}

}  // namespace onebit
