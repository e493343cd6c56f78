// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/core/words.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <string>
#include <utility>

/// Two-level averages: full precision inside a node, compressed between nodes.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Mean over a node's ranks of their messages for this rank's share, in slots of `identity`.
struct share_mean {
  slot_format format;
  const std::byte* slots;  ///< one bucket from each local rank
  std::uint32_t first_chunk;
  int n_ranks;
  float inverse;

  template <class L>
  using reader = mean_view<identity>::reader<L>;
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    slot_format by_rank = format;
    by_rank.slot_bytes = format.slot_bytes * format.chunks_per_bucket;
    return {detail::tile_sum<L, identity>(identity{}, by_rank,
                                          slots + (t.chunk - first_chunk) * format.slot_bytes,
                                          n_ranks, t, index),
            inverse,
            {},
            t.word};
  }
};

/// Exchange on two levels, over N nodes of L ranks. The ranks of a node average their messages
/// exactly, each rank for its share of the flat axis (1/L of it, a bucket). The ranks with the same
/// share on all nodes run the two compressed phases on it. The ranks of a node then gather the
/// compressed shares. A worker residual belongs to a node; the rank that serves the share holds it.
/// With one rank per node the bits are those of gather_scatter's exchange.
///
/// Cost per rank: between nodes 2 (N-1)/N n/(8 L) bytes, L times fewer than without the hierarchy;
/// inside a node 4n (L-1)/L bytes and n/8 (L-1)/L; 4 collectives. Memory in bytes per element: work
/// space of 8 (two fp32 messages), compensated values and a copy of 4/L each (and 4 if the rule
/// accumulates), server residual of 4/(L N). Source: 1-bit LAMB (arXiv 2104.06069), section 5.
template <WordCompressor C, class B>
class hierarchical_exchange : public flat_exchange<C, B> {
  using base = flat_exchange<C, B>;
  using base::make, base::sender_, base::comm_;  // between the nodes

 public:
  using base::axis, base::slot_bytes;
  using typename base::byte_buffer, typename base::float_buffer, typename base::sender_type;
  using exact_type = onebit::sender<identity, B>;
  using view = gathered_view<C>;
  static constexpr bool own_messages = false;

  hierarchical_exchange(C codec, const communicator& w, B backend,
                        std::span<const std::size_t> sizes, int n_local)
      : base(std::move(codec), w.split(w.rank() % n_local, w.rank()), backend, sizes,
             w.size() / n_local, n_local),
        local_(w.split(w.rank() / n_local, w.rank())),
        exact_(identity{}, std::move(backend), sizes, comm_.size(), n_local) {
    exact_.send_all();  // the sender between the nodes carries what is not active
  }

  /// This and the following members are as in gather_scatter_exchange.
  [[nodiscard]] bool needs_undo(const exchange_memory& m) const { return flat() || m.accumulates; }
  /// Sender inside the node. Carries the sum of this rank's local steps, if there are any.
  [[nodiscard]] exact_type& exact() { return exact_; }

  struct space {
    double_buffer<B, std::byte> gathered;            ///< all shares
    byte_buffer exact_sent, exact_received;          ///< inside the node: one bucket per local rank
    byte_buffer sent, received, from_server, share;  ///< between nodes
    float_buffer undo, residual, compensated,
        sums;  ///< the last three: of server_, sender_, exact_
  };
  [[nodiscard, gnu::cold]] space allocate(const exchange_memory& m) {
    space s;
    const std::size_t bucket = bucket_bytes(sender_.format()), all = bucket * shares();
    s.gathered = {m.previous ? make(all) : byte_buffer{}, make(all)};
    s.received = make(bucket);
    s.from_server = make(slot_bytes());
    s.residual = sender_.make_compensated(axis().words_of_chunk(own_chunk()));
    if (!flat()) {
      const std::size_t exact = bucket_bytes(exact_.format()) * shares();
      for (auto* sent : {&s.exact_sent, &s.exact_received}) *sent = make(exact);
      s.sent = make(all);
      s.share = make(bucket);
      if (m.accumulates) s.sums = sender_.make_compensated(axis().n_words());
      s.undo = sender_.make_compensated(share_words());
    }
    if (m.compensated || !flat()) s.compensated = sender_.make_compensated(share_words());
    return s;
  }
  /// Starts from a momentum that is the same on all nodes; each rank keeps its share of it.
  [[gnu::cold]] void start(space&& s, initial_momentum<float_buffer>&& given) {
    held_ = std::move(s);
    server_.start(std::move(held_.residual));
    exact_.start_from(std::move(held_.sums));
    if (given.momentum.size() > 0) {
      scale_given(sender_, given);
      if (flat()) {
        held_.compensated = std::move(given.momentum);
      } else {
        const std::size_t first = (std::min)(share_first(), axis().n_words());
        const detail::copy_kernel copy{given.momentum.data() + first * word_elements,
                                       held_.compensated.data(), share_words() * word_elements};
        sender_.backend().launch(copy.launches(), copy);
      }
    }
    sender_.start_from(std::move(held_.compensated), share_first());
  }
  [[nodiscard]] bool started() const { return held_.gathered.next.size() > 0; }

  [[nodiscard]] view previous(active_mask active) {
    return view_of(held_.gathered.current.data(), active);
  }
  [[nodiscard]] view latest(active_mask active) {
    return view_of(held_.gathered.next.data(), active);
  }

  /// The whole message is sent at once, by `all_reduce`.
  [[nodiscard]] int n_unsent() const { return 0; }
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce&, const exchange_args<Undo>&) {}

  /// Collective; blocks, unless the backend is deferred.
  template <class Produce, class Undo>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t) {
    const slot_format& f = sender_.format();
    const auto l = static_cast<std::uint32_t>(shares()), n = f.chunks_per_bucket;
    const auto me = static_cast<std::uint32_t>(local_.rank());
    std::byte* const sent = flat() ? held_.gathered.next.data() : held_.sent.data();
    std::byte* const share = flat() ? held_.gathered.next.data() : held_.share.data();
    if (flat()) {
      sender_.encode(produce, t, sent, 0);
    } else {
      sender_.encode(average_in_node(produce, t), share_args(t), sent, local_.rank());
    }
    comm_.all_to_all(sent + me * bucket_bytes(f), held_.received.data(), f.slot_bytes);
    sender_.run_check({.now = t.now,
                       .slots = held_.received.data(),
                       .n = n,
                       .part = me,
                       .propagate = true,
                       .ranks = {.n = n, .first = me, .stride = l}});
    const auto scales =
        server_.average_chunk(sender_, mean(), own_chunk(), t, held_.from_server.data());
    sender_.then_write_status(scales, sender_.write_status(held_.from_server.data(), 1,
                                                           message_tag::from_server + me, t.now));
    comm_.all_gather(held_.from_server.data(), share, f.slot_bytes);
    if (!flat()) local_.all_gather(share, held_.gathered.next.data(), bucket_bytes(f));
    sender_.run_check(
        {.now = t.now,
         .slots = held_.gathered.next.data(),
         .n = l * n,
         .part = message_tag::from_server,
         .ranks = {.n = n, .stride = l, .slots_per_shift = n, .slots_per_bucket = n}});
  }
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const exchange_args<Undo>& t) {
    if (flat()) return sender_.fold_in(produce, t, axis().all_tiles());
    auto all = t;
    all.active = {};
    exact_.fold_in(produce, all, exact_.axis().all_tiles());
  }
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    const auto residual = server_.residual_pass(sender_, mean(), own_chunk(), latest({}), t);
    if (flat()) return sender_.finish(t, residual, held_.gathered.commit(t.now));
    sender_.finish(share_args(t), residual, held_.gathered.commit(t.now));
    if (sums_local_steps()) exact_.finish(t);
  }

  template <class Produce, class Undo>
  [[gnu::cold]] void fold_in(const Produce& produce, const exchange_args<Undo>& t) {
    sender_.fold_in(produce, t, compensated_tiles());
  }
  [[nodiscard]] tile_range compensated_tiles() const {
    return axis().bucket_at(local_.rank()).tiles;
  }
  template <class Worker, class Server>
  [[gnu::cold]] void visit_residuals(const Worker& worker, const Server& server) {
    worker(sender_, compensated_tiles(), false);
    server(sender_, axis().chunk_tiles(own_chunk()), server_.words(), mean().format);
    if (sums_local_steps()) worker(exact_, exact_.axis().all_tiles(), true);
  }
  /// Residual of this rank's chunk of its share.
  [[nodiscard]] const float_buffer& server_residual() const { return server_.residual(); }
  [[nodiscard]] std::uint64_t bytes_between_nodes() const { return comm_.sent().bytes_sent; }
  [[nodiscard]] int ranks_per_node() const { return local_.size(); }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + exact_.state_bytes() + server_.state_bytes() +
           held_.gathered.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    std::size_t n = sender_.work_bytes() + exact_.work_bytes() + held_.undo.bytes() +
                    held_.gathered.next.bytes();
    for (const auto* b : {&held_.exact_sent, &held_.exact_received, &held_.sent, &held_.received,
                          &held_.from_server, &held_.share}) {
      n += b->bytes();
    }
    return n;
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const exchange_memory& m) {
    if (Archive::reading) exact_.back_up(a);
    archive_start(*this, a, m, held_, server_.mutable_residual());
    sender_.archive(a);
    exact_.archive(a);
    server_.archive(a, sender_.backend());
    a.buffer(held_.gathered.current, sender_.backend());
  }

 private:
  /// Averages the messages of the node's ranks exactly; returns the mean for this rank's share.
  template <class Produce, class Undo>
  detail::share_mean average_in_node(const Produce& produce, const exchange_args<Undo>& t) {
    const slot_format& f = exact_.format();
    const auto l = static_cast<std::uint32_t>(shares()), n = f.chunks_per_bucket;
    const auto me = static_cast<std::uint32_t>(local_.rank());
    std::byte* const sent = held_.exact_sent.data();
    auto all = t;
    all.active = {};
    for (int b = local_.size() - 1; b >= 0; --b) {
      sums_local_steps() ? exact_.encode(produce, all, sent, b)
                         : exact_.encode_bucket(produce, detail::no_feedback{}, all, sent, b);
    }
    local_.all_to_all(sent, held_.exact_received.data(), bucket_bytes(f));
    const auto node = static_cast<std::uint32_t>(comm_.rank());
    exact_.run_check({.now = t.now,
                      .slots = held_.exact_received.data(),
                      .n = l * n,
                      .part = me,
                      .propagate = true,
                      .ranks = {.n = l, .slots_each = n, .first = node * l}});
    return {f, held_.exact_received.data(), me * n, local_.size(), 1.0F / static_cast<float>(l)};
  }
  [[nodiscard]] std::size_t shares() const { return static_cast<std::size_t>(local_.size()); }
  [[nodiscard]] bool flat() const { return local_.size() == 1; }  // no inner level
  [[nodiscard]] bool sums_local_steps() const { return exact_.carries(); }
  [[nodiscard]] static std::size_t bucket_bytes(const slot_format& f) {
    return f.slot_bytes * f.chunks_per_bucket;
  }
  [[nodiscard]] int own_chunk() const { return local_.rank() * comm_.size() + comm_.rank(); }
  [[nodiscard]] std::size_t share_first() const {
    return static_cast<std::size_t>(local_.rank() * comm_.size()) * axis().chunk_words();
  }
  [[nodiscard]] std::size_t share_words() const {
    const std::size_t left = axis().n_words() - (std::min)(share_first(), axis().n_words());
    return (std::min)(static_cast<std::size_t>(comm_.size()) * axis().chunk_words(), left);
  }
  /// Arguments to encode the share: a mean, which cannot be made again, so `undo` saves old values.
  template <class Undo>
  [[nodiscard]] exchange_args<store_at_encode> share_args(const exchange_args<Undo>& t) {
    return {t.now, t.active, {held_.undo.data(), share_first()}, t.bound};
  }
  [[nodiscard]] view view_of(const std::byte* slots, active_mask active) const {
    return {sender_.codec(), sender_.format(), slots, active};
  }
  /// Mean of the messages between nodes; its format has one bucket, the bucket served here.
  [[nodiscard]] mean_view<C> mean() const {
    slot_format f = sender_.format();
    f.chunks_per_bucket = static_cast<std::uint32_t>(axis().n_slots());
    return sender_.mean(f, held_.received.data(), comm_.size());
  }

  communicator local_;
  exact_type exact_;
  server<C, B> server_;
  space held_;
};

}  // namespace detail

/// Collective policy: exact averages inside nodes of `ranks_per_node` ranks with consecutive
/// numbers, gather-scatter with error feedback between nodes. 0: the transport tells how many ranks
/// share a node, if it can.
template <class C>
struct hierarchical : collective_defaults {
  static_assert((check_compressor<C>(), true));
  static_assert(detail::WordCompressor<C>, "onebit: hierarchical takes WordCompressors");
  static constexpr bool splits = true;  ///< needs a SplittingTransport
  C codec{};                            ///< the compressor
  int ranks_per_node = 0;               ///< 0: as the transport says

  hierarchical() = default;
  hierarchical(C c, int n) : codec(std::move(c)), ranks_per_node(n) {}  ///< n ranks per node

  [[nodiscard, gnu::cold]] std::string name() const {  ///< see Collective
    return "hierarchical of " + policy_name(codec);
  }
  [[nodiscard]] std::string agreement() const {  ///< compared by ranks, not by checkpoints
    return "hierarchical, " + detail::number_text(ranks_per_node) + " ranks per node";
  }
  template <class B>  ///< result of `bind`
  using exchange = detail::hierarchical_exchange<detail::compressor_or_identity<C>, B>;
  /// Collective. Throws invalid_input if the ranks do not divide into such nodes.
  template <class B>
  [[nodiscard, gnu::cold]] exchange<B> bind(const communicator& w, const B& backend,
                                            std::span<const std::size_t> sizes) const {
    const int n = ranks_per_node == 0 ? w.ranks_per_node() : ranks_per_node;
    if (n < 1 || w.size() % n != 0) {
      throw invalid_input(detail::error_text(
          "hierarchical: ", w.size(), " ranks in nodes of ", n,
          "; give the number of ranks on each node, the same on all", w.where()));
    }
    return {detail::checked_compressor(codec), w, backend, sizes, n};
  }
};

static_assert(Collective<hierarchical<identity>>);

}}  // namespace onebit
