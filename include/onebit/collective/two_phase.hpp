// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/fields.hpp>
#include <onebit/collective/in_flight.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/collective/worker.hpp>
#include <onebit/concepts.hpp>
#include <span>
#include <type_traits>
#include <utility>

/// The compressed allreduce of the papers.
namespace onebit {

/// One exchange in two phases, all tensors together: all_to_all of the workers' codes, then every
/// rank averages its chunk, encodes the average with a residual of its own, and all_gather.
///
/// With several buckets the phases of one travel while others are encoded, if the transport can;
/// the bits are those of the same buckets one after the other. `send_next` starts a bucket early.
/// Nothing that lasts changes before `commit`: when a rank saw a non-finite value, or a transport
/// threw, `rollback` leaves the bits of before. With one rank and a compressor that carries
/// nothing, nothing travels. Cost: 2 collectives a bucket, 2 (W-1) slots on the wire per rank and
/// bucket. Memory: worker_phase, the agreed message, 4/W bytes of server residual per element, and
/// two messages of work space. Source: 1-bit Adam (arXiv 2102.02888), section 4.2 and figure 3; the
/// padding counts nowhere.
template <Compressor C, class T, class B>
class two_phase {
 public:
  using worker = worker_phase<C, B>;
  template <class U>
  using buffer = typename worker::template buffer<U>;
  using view = gathered_view<C>;
  /// Whether its encode pass overwrites carried values, and saves them where it is told.
  static constexpr bool saves = worker::carries;

  two_phase(C codec, T& transport, B backend, std::span<const std::size_t> sizes, int n_buckets = 1)
      : transport_(&transport),
        worker_(std::move(codec), std::move(backend), sizes, transport.size(), n_buckets) {}

  /// Allocates what `pending` reads; before that it costs nothing per element.
  void prepare_pending() {
    if (pending_.size() == 0) pending_ = make(slot_bytes() * n_buckets() * n_ranks());
  }
  /// Allocates what the exchange needs.
  void prepare() {
    if (pending_.size() > 0) return;
    const std::size_t slots = slot_bytes() * n_buckets();
    const std::size_t w = n_ranks();
    prepare_pending();
    scattered_.reserve(n_buckets());
    gathered_.reserve(n_buckets());
    if (w > 1) {
      received_ = make(slots * w);
      served_ = make(slots);
    }
    if constexpr (worker::carries) {
      if (w == 1) return;
      server_ = worker_.backend().template make_buffer<float>(own_words() * word_elements);
    }
  }
  /// Keeps what was agreed for the next step, starting from zero.
  void keep_agreed() {
    prepare();
    if (agreed_.size() == 0) agreed_ = make(pending_.size());
  }
  /// Gives the memory back.
  void release() {
    for (auto* b : {&pending_, &received_, &served_, &agreed_}) *b = buffer<std::byte>{};
  }

  [[nodiscard]] worker& local() { return worker_; }
  /// What was agreed in the last committed exchange.
  [[nodiscard]] view agreed() { return view_of(agreed_.data()); }
  /// What was agreed in the exchange that is not committed yet.
  [[nodiscard]] view pending() { return view_of(pending_.data()); }

  /// Buckets of this step that are not sent yet, counted from the first: the last go first, as a
  /// backward pass produces gradients.
  [[nodiscard]] int n_unsent() const { return worker_.axis().n_buckets() - n_sent_; }

  /// Collective. Encodes the next bucket and starts to send it; waits where the transport cannot do
  /// otherwise. All ranks must do the same between two calls of `agree`.
  template <class Produce, class Undo>
  void send_next(const Produce& produce, const Undo& undo, step_scalars* now) {
    if (n_unsent() == 0) return;
    const int b = worker_.axis().n_buckets() - 1 - n_sent_;
    ++n_sent_;
    worker_.encode(produce, undo, now, pending_.data(), b);
    if constexpr (!B::deferred) scattered_.poke();  // a device needs no host for that, nor may ask
    if (n_ranks() == 1) return;
    const std::size_t at = slots_of(b);
    scattered_.start(*transport_, pending_.data() + at, received_.data() + at, slot_bytes(),
                     n_buckets() > 1);
  }

  /// Collective; waits, unless the backend is deferred. Pending becomes what the ranks agree on,
  /// unless skipped.
  template <class Produce, class Undo>
  outcome agree(const Produce& produce, const Undo& undo, step_scalars* now) {
    std::size_t n_served = 0;
    const auto first_send = static_cast<std::size_t>(n_sent_);
    while (n_unsent() > 0) {
      send_next(produce, undo, now);
      // one bucket travels while the next is encoded; the one before it is served
      if (static_cast<std::size_t>(n_sent_) > first_send + 1) {
        if (n_ranks() > 1) serve(n_served++, now);
      }
    }
    if (n_ranks() == 1) return check(pending_.data(), n_buckets(), now);
    if (n_buckets() == 1) {
      if (check(received_.data(), 1, now) == outcome::skipped) return outcome::skipped;
    }
    while (n_served < n_buckets()) serve(n_served++, now);
    for (std::size_t i = 0; i < n_buckets(); ++i) gathered_.wait(i);
    return check(pending_.data(), n_buckets(), now);
  }

  /// Makes pending the agreed, and the residuals those of this exchange. One pass over the own
  /// chunk.
  void commit(const step_scalars* now) {
    if constexpr (worker::carries) {
      if (n_ranks() > 1) commit_server(now);
    }
    worker_.commit(now);
    if (agreed_.size() > 0) {
      if constexpr (B::deferred) {
        commit_copy(worker_.backend(), now, pending_, agreed_);
      } else {
        std::swap(agreed_, pending_);
      }
    }
    finish();
  }
  /// Takes back what was sent in this step. `if_skipped`: on a deferred backend, if it was called
  /// off, and otherwise not.
  template <class Undo>
  void rollback(const Undo& undo, const step_scalars* now, bool if_skipped) {
    for (int b = n_unsent(); b < worker_.axis().n_buckets(); ++b) {
      worker_.rollback(undo, now, b, if_skipped);
    }
    finish();
  }
  /// The exchange is over: for those that carry nothing and need neither commit nor rollback.
  void finish() {
    n_sent_ = 0;
    scattered_.clear();
    gathered_.clear();
  }

  /// Starts with nothing agreed and nothing carried, for rules that accumulate.
  void start_empty() {
    prepare();
    worker_.carry_nothing();
  }
  /// Forgets both residuals.
  void clear_residuals() {
    worker_.carry_nothing();
    worker_.hold_residual();
    server_ = {};
    release();
    prepare();
  }
  /// Starts from a momentum that was agreed without compression. A carrying compressor holds what
  /// the next message takes of it as the residual of a zero message: the same bits as that momentum
  /// and no residual, since messages start from the residual.
  void adopt(handover<buffer<float>>&& given) {
    keep_agreed();
    B& backend = worker_.backend();
    if constexpr (worker::carries) {
      backend.launch(worker_.axis().tiles().size(),
                     detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                   given.factors, given.decay});
      worker_.carry(std::move(given.momentum));
    } else {
      backend.launch(worker_.axis().tiles().size(),
                     detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                   given.factors, 1.0F});
      backend.launch(
          worker_.axis().tiles().size(),
          detail::store_field_kernel<detail::flat_field>{
              {given.momentum.data()}, worker_.tiles(), worker_.format(), agreed_.data()});
    }
  }

  /// The residual of the chunks that this rank serves, bucket after bucket, by element.
  [[nodiscard]] std::span<const float> server_residual() const {
    return {server_.data(), server_.size()};
  }
  /// Takes over `values` as my chunk's residual, after `prepare`.
  void carry_server(buffer<float>&& values) { server_ = std::move(values); }
  /// W slots, as `pending` reads them.
  [[nodiscard]] std::byte* pending_slots() { return pending_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return worker_.state_bytes() + server_.bytes() + agreed_.bytes();
  }
  [[nodiscard]] std::size_t work_bytes() const {
    return worker_.work_bytes() + pending_.bytes() + received_.bytes() + served_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    std::uint8_t holds = agreed_.size() > 0 ? 2 : pending_.size() > 0 ? 1 : 0;
    a.scalar(holds);
    if constexpr (Archive::reading) {
      release();
      if (holds > 0) prepare();
      if (holds > 1) keep_agreed();
    }
    worker_.archive(a);
    a.buffer(server_, worker_.backend());
    a.buffer(agreed_, worker_.backend());
  }

 private:
  [[nodiscard]] buffer<std::byte> make(std::size_t n) {
    return worker_.backend().template make_buffer<std::byte>(n);
  }
  [[nodiscard]] view view_of(const std::byte* slots) {
    return {worker_.codec(), worker_.format(), slots, worker_.live()};
  }
  [[nodiscard]] mean_view<C> mean() {
    const int w = transport_->size();
    return {worker_.codec(), worker_.format(), received_.data(), w, 1.0F / static_cast<float>(w),
            live_mask{}};
  }
  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(transport_->size()); }
  [[nodiscard]] std::size_t n_buckets() const {
    return static_cast<std::size_t>(worker_.axis().n_buckets());
  }
  [[nodiscard]] std::size_t slot_bytes() const { return worker_.format().slot_bytes; }
  /// Where the slots of bucket b start.
  [[nodiscard]] std::size_t slots_of(int b) const {
    return static_cast<std::size_t>(b) * n_ranks() * slot_bytes();
  }
  /// Reads the status words of the first `buckets` buckets.
  [[nodiscard]] outcome check(const std::byte* slots, std::size_t buckets, step_scalars* now) {
    worker_.backend().launch(1, check_kernel{now, slots, worker_.format(),
                                             static_cast<std::uint32_t>(n_ranks() * buckets),
                                             static_cast<std::uint32_t>(n_ranks())});
    return outcome_so_far(worker_.backend(), now, transport_->rank(), transport_->size());
  }
  /// The chunk that this rank serves in bucket b.
  [[nodiscard]] int own_chunk(int b) const { return b * transport_->size() + transport_->rank(); }
  /// Words of all chunks that this rank serves; only the last bucket's may be shorter.
  [[nodiscard]] std::size_t own_words() const {
    const std::size_t n = worker_.axis().n_words();
    const std::size_t chunk = worker_.axis().chunk_words();
    std::size_t words = 0;
    for (int b = 0; b < worker_.axis().n_buckets(); ++b) {
      const std::size_t first = static_cast<std::size_t>(own_chunk(b)) * chunk;
      if (first < n) words = static_cast<std::size_t>(b) * chunk + std::min(chunk, n - first);
    }
    return words;
  }
  void commit_server(const step_scalars* now) {
    for (int b = 0; b < worker_.axis().n_buckets(); ++b) {
      const tile_range own = worker_.axis().chunk_tiles(own_chunk(b));
      launch_commit(worker_.backend(), now, own.end - own.begin,
                    server_residual_kernel<mean_view<C>, view>{mean(), pending(), worker_.live(),
                                                               worker_.tiles(), own.begin,
                                                               worker_.format(), server_.data()});
    }
  }
  /// Waits for the i-th bucket that was sent, averages this rank's chunk of it and sends it to all.
  void serve(std::size_t i, step_scalars* now) {
    const int b = worker_.axis().n_buckets() - 1 - static_cast<int>(i);
    scattered_.wait(i);
    std::byte* slot = served_.data() + static_cast<std::size_t>(b) * slot_bytes();
    encode_chunk(worker_.axis().chunk_tiles(own_chunk(b)));
    const tile_range segments = worker_.axis().chunk_segments(own_chunk(b));
    worker_.backend().launch(
        segments.end - segments.begin,
        scale_kernel<C>{worker_.codec(), worker_.segments() + segments.begin, worker_.sums(),
                        nullptr, worker::has_scales() ? slot : nullptr, worker_.format().scales_at,
                        now});
    // a rank that is at another step, or saw a bad value, is seen by all in the second phase too
    const check_kernel heard{now, received_.data() + slots_of(b), worker_.format(),
                             static_cast<std::uint32_t>(n_ranks()),
                             static_cast<std::uint32_t>(n_ranks())};
    if (n_buckets() > 1) worker_.backend().launch(1, heard);
    worker_.seal(slot, 1, now);
    gathered_.start(*transport_, slot, pending_.data() + slots_of(b), slot_bytes(),
                    n_buckets() > 1);
  }
  void encode_chunk(tile_range own) {
    const auto run = [&](const auto& carry) {
      using carry_type = std::remove_cvref_t<decltype(carry)>;
      worker_.backend().launch(own.end - own.begin,
                               encode_kernel<C, mean_view<C>, carry_type>{
                                   worker_.codec(), mean(), carry, worker_.live(), worker_.tiles(),
                                   own.begin, worker_.format(), served_.data(),
                                   worker_.format().chunks_per_bucket, worker_.sums()});
    };
    if constexpr (worker::carries) {
      run(read_carry{server_.data(), worker_.format()});
    } else {
      run(no_carry{});
    }
  }

  T* transport_;
  worker worker_;
  buffer<std::byte> agreed_;    ///< W slots a bucket: the momentum, in the form in which it arrived
  buffer<std::byte> pending_;   ///< W slots: first what is sent, then what is gathered
  buffer<std::byte> received_;  ///< W slots: my chunk from every rank
  buffer<std::byte> served_;    ///< one slot: my chunk's average
  buffer<float> server_;        ///< my chunks' residual
  in_flight<T, false> scattered_;
  in_flight<T, true> gathered_;
  int n_sent_ = 0;  ///< buckets, in this step
};

}  // namespace onebit
