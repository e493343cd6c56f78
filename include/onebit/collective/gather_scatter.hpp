// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

/// Compressed allreduce of the papers: every rank averages one chunk.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Exchange in two phases, all tensors together: an all_to_all of the workers' messages, after
/// which each rank averages one chunk; an all_gather of the averages, which servers encode with
/// residuals of their own.
///
/// With several buckets, one bucket travels while others are encoded, if the transport can; the
/// bits are those of the same buckets one after the other. `send_next` starts a bucket early.
///
/// Cost: 2 collectives per bucket; each rank sends 2 (W-1) slots per bucket. Memory: the sender,
/// the previous message, 4/W bytes of server residual per element, and two messages of work space.
/// Source: 1-bit Adam (arXiv 2102.02888), section 4.2, fig. 3. Padding enters no scale or residual.
template <Compressor C, class B>
class gather_scatter_exchange : public flat_exchange<C, B> {
  using base = flat_exchange<C, B>;
  using base::make, base::sender_, base::comm_;

 public:
  using base::axis, base::slot_bytes, base::travels;
  using typename base::byte_buffer, typename base::float_buffer, typename base::sender_type;
  using view = gathered_view<C>;
  static constexpr bool own_messages = true;

  gather_scatter_exchange(C codec, const communicator& w, B backend,
                          std::span<const std::size_t> sizes, int n_buckets = 1)
      : base(std::move(codec), w, std::move(backend), sizes, w.size(), n_buckets),
        phases_(w, axis().n_buckets(), slot_bytes()) {}

  /// All memory of a started exchange.
  struct space {
    double_buffer<B, std::byte> gathered;
    byte_buffer received, from_server;
    float_buffer residual, compensated;
  };
  [[nodiscard, gnu::cold]] space allocate(const exchange_memory& m) {
    space s;
    const std::size_t mine = slot_bytes() * sender_.n_buckets(), all = mine * ranks();
    s.gathered = {make(m.previous ? all : 0), make(all)};
    if (travels()) {
      s.received = make(all);
      s.from_server = make(mine);
      s.residual = sender_.make_compensated(served_words());
    }
    s.compensated = sender_.make_compensated(m.compensated ? axis().n_words() : 0);
    return s;
  }
  [[gnu::cold]] void start(space&& s, initial_momentum<float_buffer>&& given) {
    gathered_ = std::move(s.gathered);
    received_ = std::move(s.received);
    served_ = std::move(s.from_server);
    server_.start(std::move(s.residual));
    start_sender(sender_, std::move(s.compensated), std::move(given));
  }
  [[nodiscard]] bool started() const { return gathered_.next.size() > 0; }

  /// Mean message of the last exchange that was kept.
  [[nodiscard]] view previous(active_mask active) {
    return {sender_.codec(), sender_.format(), gathered_.current.data(), active,
            tile_buffer::previous};
  }
  /// Mean message of this step.
  [[nodiscard]] view latest(active_mask active) {
    return {sender_.codec(), sender_.format(), gathered_.next.data(), active, tile_buffer::latest};
  }

  /// Number of buckets not sent yet in this step: the buckets [0, n_unsent()). The last goes first.
  [[nodiscard]] int n_unsent() const { return phases_.n_unsent(); }
  /// Collective. Encodes the next bucket and starts to send it; blocks if the transport cannot
  /// start collectives. All ranks must make the same calls between two calls of `all_reduce`.
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce& produce, const exchange_args<Undo>& t) {
    const int b = phases_.next_to_send();
    sender_.encode(produce, t, gathered_.next.data(), b);
    if (!B::deferred) phases_.poke();  // a device needs no polling, and allows none
    if (travels())
      phases_.scatter(of_bucket(gathered_.next.data(), b), of_bucket(received_.data(), b));
  }
  /// Collective; blocks, unless the backend is deferred. Computes the mean message, `latest`.
  template <class Produce, class Undo>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t) {
    while (n_unsent() > 0) {
      send_next(produce, t);
      if (phases_.serves_now()) serve_next(t);
    }
    while (phases_.serves_now()) serve_next(t);
    for (int i = 0; i < axis().n_buckets(); ++i) phases_.wait_gathered(i);
    sender_.run_check(phases_.check_of(t.now, gathered_.next.data(), axis().n_buckets(),
                                       phases_.part_of_gathered()));
  }
  /// Ends the step: keeps the received message and both residuals, or, if the step was called off,
  /// the old ones. One pass over the chunks that this rank serves.
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    phases_.clear();
    auto residual = server_.residual_pass(sender_, mean(), own_chunk(0), latest({}), t);
    if (!travels()) residual.n = 0;
    for (int b = 1; b < axis().n_buckets() && travels(); ++b) {
      const auto another = server_.residual_pass(sender_, mean(), own_chunk(b), latest({}), t);
      sender_.backend().launch(another.n, another.kernel);
    }
    sender_.finish(t, residual, gathered_.commit(t.now));
  }

  /// Visits the residuals, for a job that goes on with other ranks: calls worker(sender, tiles,
  /// true if every rank has residuals of these tiles) and server(sender, tiles, residual, format).
  template <class Worker, class Server>
  [[gnu::cold]] void visit_residuals(const Worker& worker, const Server& server) {
    worker(sender_, axis().all_tiles(), true);
    for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
      server(sender_, axis().chunk_tiles(own_chunk(b)), server_.words(), sender_.format());
    }
  }
  /// Residual of the chunks that this rank serves, bucket after bucket; for inspection.
  [[nodiscard]] const auto& server_residual() const { return server_.residual(); }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + server_.state_bytes() + gathered_.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return sender_.work_bytes() + gathered_.next.bytes() + received_.bytes() + served_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const exchange_memory& m) {
    archive_start(*this, a, m, gathered_, received_, served_, server_.mutable_residual());
    sender_.archive(a);
    server_.archive(a, sender_.backend());
    a.buffer(gathered_.current, sender_.backend());
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(comm_.size()); }
  /// W slots of a bucket.
  [[nodiscard]] std::byte* of_bucket(std::byte* slots, int b) const {
    return slots + static_cast<std::size_t>(b) * ranks() * slot_bytes();
  }
  /// Mean of the received messages.
  [[nodiscard]] mean_view<C> mean() {
    return sender_.mean(sender_.format(), received_.data(), comm_.size());
  }
  /// Chunk that this rank serves in bucket b.
  [[nodiscard]] int own_chunk(int b) const { return b * comm_.size() + comm_.rank(); }
  /// Words of all chunks that this rank serves; only the chunk of the last bucket may be shorter.
  [[nodiscard]] std::size_t served_words() const {
    std::size_t words = 0;
    for (int b = 0; b < axis().n_buckets(); ++b) {
      const std::size_t own = axis().words_of_chunk(own_chunk(b));
      if (own > 0) words = static_cast<std::size_t>(b) * axis().chunk_words() + own;
    }
    return words;
  }
  /// Waits for the next bucket, averages this rank's chunk of it and sends the average to all. The
  /// second phase, too, tells all ranks of a rank at another step or with a bad value.
  template <class Undo>
  [[gnu::cold]] void serve_next(const exchange_args<Undo>& t) {
    const int b = phases_.next_to_serve();
    const auto part = static_cast<std::uint32_t>(b);
    std::byte* const slot = served_.data() + part * slot_bytes();
    const auto received = phases_.check_of(t.now, of_bucket(received_.data(), b), 1, part);
    const auto status = sender_.write_status(slot, 1, message_tag::from_server + part, t.now);
    const auto scales = server_.average_chunk(sender_, mean(), own_chunk(b), t, served_.data());
    sender_.check_then_write_status(scales, received, status);
    phases_.gather(slot, of_bucket(gathered_.next.data(), b));
  }

  server<C, B> server_;
  /// W slots per bucket. `next` holds the messages to send, then the gathered mean message.
  /// `current` is the previous mean message, in wire format.
  double_buffer<B, std::byte> gathered_;
  byte_buffer received_;       ///< W slots per bucket: this rank's chunk, from every rank
  byte_buffer served_;         ///< one slot per bucket: the average of this rank's chunk
  detail::two_phases phases_;  // last: pending requests end before their buffers do
};

}  // namespace detail

/// Collective policy: gather-scatter with error feedback on both sides.
///
/// `bucket_elements` cuts the flat axis into buckets of about that many elements. Each bucket is an
/// exchange of its own, with its own scales. If the transport can start collectives, one bucket
/// travels while others are encoded, and gradients announced by optimizer::ready travel before the
/// last gradient is known. 0: one bucket. The dense averages of the warm-up use the same buckets,
/// or buckets of 2^22 elements.
template <class C>
struct gather_scatter : collective_defaults {
  static_assert((check_compressor<C>(), true));
  C codec{};                        ///< the compressor
  std::size_t bucket_elements = 0;  ///< 0: one bucket

  gather_scatter() = default;
  /// @{
  /// Members required by Collective.
  explicit(false) gather_scatter(C c, std::size_t elements = 0)
      : codec(std::move(c)), bucket_elements(elements) {}

  [[nodiscard, gnu::cold]] std::string name() const {
    return "gather_scatter of " + policy_name(codec) +
           (bucket_elements == 0 ? "" : " in buckets of " + detail::number_text(bucket_elements));
  }
  template <class B>
  using exchange = detail::gather_scatter_exchange<detail::compressor_or_identity<C>, B>;
  template <class B>
  [[nodiscard, gnu::cold]] exchange<B> bind(const communicator& w, const B& backend,
                                            std::span<const std::size_t> sizes) const {
    return {detail::checked_compressor(codec), w, backend, sizes,
            detail::n_buckets(sizes, bucket_elements)};
  }
  /// @}
};

static_assert(Collective<gather_scatter<identity>>);

namespace detail {

/// C if it is a Collective, else gather_scatter<identity>: the error is reported elsewhere, once.
template <class C>
using collective_for = std::conditional_t<Collective<C>, C, gather_scatter<identity>>;
template <class C>
[[nodiscard]] collective_for<C> checked_collective(const C& collective) {
  if constexpr (Collective<C>) {
    return collective;
  } else {
    return {};
  }
}

}  // namespace detail

}}  // namespace onebit
