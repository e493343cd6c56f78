// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/two_phase.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/transport/counting.hpp>
#include <span>
#include <type_traits>
#include <utility>

/// Averages on two levels: full precision inside a node, compressed between nodes.
namespace onebit {

/// The mean over the ranks of a node of what each sent of this rank's share: identity's slots.
struct share_mean {
  slot_format format;
  const std::byte* slots;  ///< one bucket from each local rank
  std::uint32_t first_chunk;
  int n_ranks;
  float inverse;

  template <class L>
  struct reader {
    detail::tile_sum<L, identity> sum;
    float inverse;
    /// base + mean, rounded once
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::fma(sum(k), L::set(inverse), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    slot_format by_rank = format;
    by_rank.slot_bytes = format.slot_bytes * format.chunks_per_bucket;
    return {detail::tile_sum<L, identity>(identity{}, by_rank,
                                          slots + (t.chunk - first_chunk) * format.slot_bytes,
                                          n_ranks, t, index),
            inverse};
  }
};

/// One exchange on two levels. The ranks of a node average their messages exactly, each its share
/// of the flat axis (1 / L of it); the ranks with the same share on all nodes run the two
/// compressed phases on it; the ranks of a node gather the compressed shares. Worker residuals
/// belong to a node and lie with the rank that serves the share.
///
/// Cost per rank: between nodes 2 (N-1)/N n/(8 L) bytes, L times fewer than without the hierarchy;
/// inside a node 4n (L-1)/L bytes and n/8 (L-1)/L; 4 collectives. Memory: two messages of 4 bytes
/// per element of work space, carried values 4/L bytes per element (and 4 for rules that
/// accumulate), the server's residual 4/(L N). Source: 1-bit LAMB (arXiv 2104.06069), section 5.
template <WordCompressor C, bool Accumulates, class T, class B>
class two_level {
  using inner_codec = basic_identity<Accumulates>;

 public:
  /// What rules see: the compressed level, and for those that accumulate the carried sums of this
  /// rank.
  class worker : public worker_phase<C, B> {
   public:
    worker(C codec, B backend, std::span<const std::size_t> sizes, int n_nodes, int n_local)
        : worker_phase<C, B>(std::move(codec), backend, sizes, n_nodes, n_local),
          inner(inner_codec{}, std::move(backend), sizes, n_nodes, n_local) {}
    template <class Produce>
    void accumulate(const Produce& produce, const step_scalars* now) {
      inner.use_mask(this->live());
      inner.accumulate(produce, now);
    }
    worker_phase<inner_codec, B> inner;
  };
  template <class U>
  using buffer = typename worker::template buffer<U>;
  using view = gathered_view<C>;
  /// As two_phase: what the node's level overwrites is saved here, in share_undo_.
  static constexpr bool saves = worker_phase<inner_codec, B>::carries;

  /// Collective.
  two_level(C codec, T& transport, B backend, std::span<const std::size_t> sizes, int n_local)
      : local_(transport.split(transport.rank() / n_local, transport.rank())),
        across_(transport.split(transport.rank() % n_local, transport.rank())),
        worker_(std::move(codec), std::move(backend), sizes, across_.size(), n_local) {}

  void prepare() {
    if (pending_.size() > 0) return;
    const std::size_t bucket = bucket_bytes(worker_.format()), l = n_local();
    const std::size_t exact = bucket_bytes(worker_.inner.format()) * l;
    exact_ = make(exact);
    exact_received_ = make(exact);
    sent_ = make(bucket * l);
    received_ = make(bucket);
    served_ = make(worker_.format().slot_bytes);
    share_ = make(bucket);
    pending_ = make(bucket * l);
    if constexpr (worker::carries) {
      server_ = floats(std::min(worker_.axis().chunk_words(), words_from(own_chunk())));
      share_undo_ = floats(share_words());
    }
  }
  void keep_agreed() {
    prepare();
    if (agreed_.size() == 0) agreed_ = make(pending_.size());
  }

  [[nodiscard]] worker& local() { return worker_; }
  [[nodiscard]] view agreed() { return view_of(agreed_.data()); }
  [[nodiscard]] view pending() { return view_of(pending_.data()); }
  /// What this rank sent to other nodes so far.
  [[nodiscard]] const traffic& sent_across() const { return across_.sent(); }

  /// All goes at once.
  [[nodiscard]] int n_unsent() const { return 0; }
  template <class Produce, class Undo>
  void send_next(const Produce&, const Undo&, step_scalars*) {}

  /// Collective; waits, unless the backend is deferred.
  template <class Produce, class Undo>
  outcome agree(const Produce& produce, const Undo& undo, step_scalars* now) {
    B& backend = worker_.backend();
    const slot_format& f = worker_.format();
    const slot_format& exact = worker_.inner.format();
    const auto l = static_cast<std::uint32_t>(n_local()), n = exact.chunks_per_bucket;
    const auto me = static_cast<std::uint32_t>(local_.rank());
    const auto node = static_cast<std::uint32_t>(across_.rank());
    encoded_ = true;
    worker_.inner.use_mask(worker_.live());
    for (int b = local_.size() - 1; b >= 0; --b) {
      worker_.inner.encode(produce, undo, now, exact_.data(), b);
    }
    local_.all_to_all(exact_.data(), exact_received_.data(), bucket_bytes(exact));
    backend.launch(
        1, check_kernel{now, exact_received_.data(), exact, l * n, l, n, node * l, 1, true});

    const share_mean mean{exact, exact_received_.data(), me * n, local_.size(),
                          1.0F / static_cast<float>(l)};
    share_encoded_ = true;
    worker_.encode(mean, share_undo(), now, sent_.data(), local_.rank());
    across_.all_to_all(sent_.data() + share_at(), received_.data(), f.slot_bytes);
    backend.launch(1, check_kernel{now, received_.data(), f, n, n, 1, me, l, true});
    serve(now);
    across_.all_gather(served_.data(), share_.data(), f.slot_bytes);
    local_.all_gather(share_.data(), pending_.data(), bucket_bytes(f));
    backend.launch(1, check_kernel{now, pending_.data(), f, l * n, n, 1, 0, l, false, n});
    return outcome_so_far(backend, now, static_cast<int>(node * l + me), static_cast<int>(l * n));
  }

  void commit(const step_scalars* now) {
    if constexpr (worker::carries) {
      const tile_range own = worker_.axis().chunk_tiles(own_chunk());
      launch_commit(worker_.backend(), now, own.end - own.begin,
                    server_residual_kernel<mean_view<C>, view>{mean(), pending(), worker_.live(),
                                                               worker_.tiles(), own.begin,
                                                               own_format(), server_.data()});
    }
    worker_.commit(now);
    worker_.inner.commit(now);
    if (agreed_.size() > 0) {
      if constexpr (B::deferred) {
        commit_copy(worker_.backend(), now, pending_, agreed_);
      } else {
        std::swap(agreed_, pending_);
      }
    }
    encoded_ = share_encoded_ = false;
  }
  template <class Undo>
  void rollback(const Undo& undo, const step_scalars* now, bool if_skipped) {
    for (int b = 0; b < local_.size() && encoded_; ++b) {
      worker_.inner.rollback(undo, now, b, if_skipped);
    }
    if (share_encoded_) worker_.rollback(share_undo(), now, local_.rank(), if_skipped);
    encoded_ = share_encoded_ = false;
  }

  void start_empty() {
    prepare();
    worker_.inner.carry_nothing();
    if constexpr (worker::carries) worker_.carry(floats(share_words()), share_first());
  }
  void clear_residuals() {
    start_empty();
    worker_.hold_residual();
    worker_.inner.hold_residual();
    if constexpr (worker::carries) server_ = floats(server_.size() / word_elements);
  }
  /// As two_phase::adopt: every node holds the same momentum, each rank its share of it.
  void adopt(handover<buffer<float>>&& given) {
    keep_agreed();
    B& backend = worker_.backend();
    const std::size_t n_tiles = worker_.axis().tiles().size();
    const float decay = worker::carries ? given.decay : 1.0F;
    backend.launch(n_tiles, detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                          given.factors, decay});
    if constexpr (worker::carries) {
      auto share = floats(share_words());
      const std::size_t first = std::min(share_first(), worker_.axis().n_words());
      const copy_kernel copy{given.momentum.data() + first * word_elements, share.data(),
                             share_words() * word_elements};
      backend.launch(copy.launches(), copy);
      worker_.carry(std::move(share), share_first());
    } else {
      backend.launch(
          n_tiles, detail::store_field_kernel<detail::flat_field>{
                       {given.momentum.data()}, worker_.tiles(), worker_.format(), agreed_.data()});
    }
  }

  [[nodiscard]] std::span<const float> server_residual() const {
    return {server_.data(), server_.size()};
  }
  [[nodiscard]] std::size_t state_bytes() const {
    return worker_.state_bytes() + worker_.inner.state_bytes() + server_.bytes() + agreed_.bytes();
  }
  [[nodiscard]] std::size_t work_bytes() const {
    std::size_t n = worker_.work_bytes() + worker_.inner.work_bytes() + share_undo_.bytes();
    for (const auto* b :
         {&exact_, &exact_received_, &sent_, &received_, &served_, &share_, &pending_}) {
      n += b->bytes();
    }
    return n;
  }
  template <class Archive>
  void archive(Archive& a) {
    std::uint8_t holds = agreed_.size() > 0 ? 2 : pending_.size() > 0 ? 1 : 0;
    a.scalar(holds);
    if constexpr (Archive::reading) {
      for (auto* b : {&pending_, &agreed_}) *b = buffer<std::byte>{};
      if (holds > 0) prepare();
      if (holds > 1) keep_agreed();
      worker_.carry({}, share_first());
    }
    worker_.archive(a);
    worker_.inner.archive(a);
    a.buffer(server_, worker_.backend());
    a.buffer(agreed_, worker_.backend());
  }

 private:
  [[nodiscard]] buffer<std::byte> make(std::size_t n) {
    return worker_.backend().template make_buffer<std::byte>(n);
  }
  [[nodiscard]] buffer<float> floats(std::size_t n_words) {
    return worker_.backend().template make_buffer<float>(n_words * word_elements);
  }
  [[nodiscard]] std::size_t n_local() const { return static_cast<std::size_t>(local_.size()); }
  [[nodiscard]] static std::size_t bucket_bytes(const slot_format& f) {
    return f.slot_bytes * f.chunks_per_bucket;
  }
  [[nodiscard]] std::size_t share_at() const {
    return static_cast<std::size_t>(local_.rank()) * bucket_bytes(worker_.format());
  }
  [[nodiscard]] int own_chunk() const { return local_.rank() * across_.size() + across_.rank(); }
  [[nodiscard]] std::size_t words_from(int chunk) const {
    const std::size_t first = static_cast<std::size_t>(chunk) * worker_.axis().chunk_words();
    return first >= worker_.axis().n_words() ? 0 : worker_.axis().n_words() - first;
  }
  [[nodiscard]] std::size_t share_first() const {
    return static_cast<std::size_t>(local_.rank() * across_.size()) * worker_.axis().chunk_words();
  }
  [[nodiscard]] std::size_t share_words() const {
    return std::min(static_cast<std::size_t>(across_.size()) * worker_.axis().chunk_words(),
                    words_from(local_.rank() * across_.size()));
  }
  [[nodiscard]] undo_in_buffer share_undo() { return {share_undo_.data(), share_first()}; }
  /// The server's residual holds one chunk: the only bucket that this rank serves.
  [[nodiscard]] slot_format own_format() const {
    slot_format f = worker_.format();
    f.chunks_per_bucket = static_cast<std::uint32_t>(worker_.axis().n_slots());
    return f;
  }
  [[nodiscard]] view view_of(const std::byte* slots) {
    return {worker_.codec(), worker_.format(), slots, worker_.live()};
  }
  [[nodiscard]] mean_view<C> mean() {
    return {worker_.codec(),
            own_format(),
            received_.data(),
            across_.size(),
            1.0F / static_cast<float>(across_.size()),
            live_mask{}};
  }
  void serve(step_scalars* now) {
    B& backend = worker_.backend();
    const tile_range own = worker_.axis().chunk_tiles(own_chunk());
    const tile_range segments = worker_.axis().chunk_segments(own_chunk());
    const auto run = [&](const auto& carry) {
      using carry_type = std::remove_cvref_t<decltype(carry)>;
      backend.launch(
          own.end - own.begin,
          encode_kernel<C, mean_view<C>, carry_type>{
              worker_.codec(), mean(), carry, worker_.live(), worker_.tiles(), own.begin,
              worker_.format(), served_.data(), own_format().chunks_per_bucket, worker_.sums()});
    };
    if constexpr (worker::carries) {
      run(read_carry{server_.data(), own_format()});
    } else {
      run(no_carry{});
    }
    backend.launch(
        segments.end - segments.begin,
        scale_kernel<C>{worker_.codec(), worker_.segments() + segments.begin, worker_.sums(),
                        nullptr, worker::has_scales() ? served_.data() : nullptr,
                        worker_.format().scales_at, now});
    worker_.seal(served_.data(), 1, now);
  }

  T local_, across_;
  worker worker_;
  buffer<std::byte> exact_, exact_received_;  ///< inside the node: a bucket for each local rank
  buffer<std::byte> sent_, received_, served_, share_;  ///< between nodes
  buffer<std::byte> agreed_, pending_;                  ///< all shares
  buffer<float> server_;                                ///< my chunk's residual
  buffer<float> share_undo_;
  bool encoded_ = false, share_encoded_ = false;  ///< in this step
};

}  // namespace onebit
