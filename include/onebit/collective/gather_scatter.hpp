// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

/// The compressed allreduce of the papers: every rank averages one chunk.
namespace onebit::inline v0_2 {

/// One exchange in two phases, all tensors together: all_to_all of the senders' codes, then every
/// rank averages its chunk, encodes the average with a residual of its own, and all_gather.
///
/// With several buckets the phases of one travel while others are encoded, if the transport can;
/// the bits are those of the same buckets one after the other. `send_next` starts a bucket early.
/// Cost: 2 collectives a bucket, 2 (W-1) slots on the wire per rank and bucket. Memory: sender, the
/// agreed message, 4/W bytes of server residual per element, and two messages of work space.
/// Source: 1-bit Adam (arXiv 2102.02888), section 4.2 and figure 3; the padding counts nowhere.
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

  /// All memory that it needs.
  struct space {
    two_sided<B, std::byte> gathered;
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

  /// The mean message of the last exchange that was kept.
  [[nodiscard]] view previous(active_mask active) {
    return {sender_.codec(), sender_.format(), gathered_.current.data(), active,
            tile_room::previous};
  }
  /// That of this step.
  [[nodiscard]] view latest(active_mask active) {
    return {sender_.codec(), sender_.format(), gathered_.next.data(), active, tile_room::latest};
  }

  /// Buckets of this step that are not sent yet, counted from the first: the last go first.
  [[nodiscard]] int n_unsent() const { return phases_.n_unsent(); }
  /// Collective. Encodes the next bucket and starts to send it; waits where the transport cannot do
  /// otherwise. All ranks must do the same between two calls of `all_reduce`.
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce& produce, const exchange_args<Undo>& t) {
    const int b = phases_.next_to_send();
    sender_.encode(produce, t, gathered_.next.data(), b);
    if (!B::deferred) phases_.poke();  // a device needs no host for that, nor may ask
    if (travels())
      phases_.scatter(of_bucket(gathered_.next.data(), b), of_bucket(received_.data(), b));
  }
  /// Collective; waits, unless the backend is deferred. `latest` becomes what the ranks agree on.
  template <class Produce, class Undo>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t) {
    while (n_unsent() > 0) {
      send_next(produce, t);
      if (phases_.serves_now()) serve_next(t);
    }
    while (phases_.serves_now()) serve_next(t);
    for (int i = 0; i < axis().n_buckets(); ++i) phases_.wait_gathered(i);
    sender_.check(phases_.check(t.now, gathered_.next.data(), axis().n_buckets(),
                                phases_.part_of_gathered()));
  }
  /// Ends the step: keeps what was received and both residuals, or takes back what was sent. One
  /// pass over the own chunk.
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    phases_.clear();
    auto residual = server_.finish(sender_, mean(), own_chunk(0), latest({}), t);
    if (!travels()) residual.n = 0;
    for (int b = 1; b < axis().n_buckets() && travels(); ++b) {
      const auto another = server_.finish(sender_, mean(), own_chunk(b), latest({}), t);
      sender_.backend().launch(another.n, another.kernel);
    }
    sender_.finish(t, residual, gathered_.keeping(t.now));
  }

  /// See sender.
  template <class Rescaled, class Undo>
  [[gnu::cold]] void rescale(const Rescaled& rescaled, const exchange_args<Undo>& t) {
    sender_.rescale(rescaled, t, axis().all_tiles());
    for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
      server_.rescale(sender_, sender_.format(), own_chunk(b), rescaled.ratios, t);
    }
  }

  /// What it has still to send, for a job that goes on with other ranks: worker(sender, tiles,
  /// whether every rank has such values), server(sender, tiles, residual, where they lie in it).
  template <class Worker, class Server>
  [[gnu::cold]] void visit_residuals(const Worker& worker, const Server& server) {
    worker(sender_, axis().all_tiles(), true);
    for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
      server(sender_, axis().chunk_tiles(own_chunk(b)), server_.words(), sender_.format());
    }
  }
  /// For inspection: the residual of the chunks that this rank serves, bucket after bucket.
  [[nodiscard]] const auto& server_residual() const { return server_.residual(); }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + server_.state_bytes() + gathered_.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return sender_.work_bytes() + gathered_.next.bytes() + received_.bytes() + served_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const exchange_memory& m) {
    archive_start(*this, a, m, gathered_, received_, served_, server_.residual_place());
    sender_.archive(a);
    server_.archive(a, sender_.backend());
    a.buffer(gathered_.current, sender_.backend());
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(comm_.size()); }
  /// The W slots of a bucket.
  [[nodiscard]] std::byte* of_bucket(std::byte* slots, int b) const {
    return slots + static_cast<std::size_t>(b) * ranks() * slot_bytes();
  }
  /// Of the messages that came.
  [[nodiscard]] mean_view<C> mean() {
    return sender_.mean(sender_.format(), received_.data(), comm_.size());
  }
  /// The chunk that this rank serves in bucket b.
  [[nodiscard]] int own_chunk(int b) const { return b * comm_.size() + comm_.rank(); }
  /// Words of all chunks that this rank serves; only the last bucket's may be shorter.
  [[nodiscard]] std::size_t served_words() const {
    std::size_t words = 0;
    for (int b = 0; b < axis().n_buckets(); ++b) {
      const std::size_t own = axis().words_of_chunk(own_chunk(b));
      if (own > 0) words = static_cast<std::size_t>(b) * axis().chunk_words() + own;
    }
    return words;
  }
  /// Waits for the next bucket that was sent, averages this rank's chunk of it and sends it to all.
  /// A rank that is at another step, or saw a bad value, is seen by all in the second phase too.
  template <class Undo>
  [[gnu::cold]] void serve_next(const exchange_args<Undo>& t) {
    const int b = phases_.next_to_serve();
    const auto part = static_cast<std::uint32_t>(b);
    std::byte* const slot = served_.data() + part * slot_bytes();
    const auto received = phases_.check(t.now, of_bucket(received_.data(), b), 1, part);
    const auto status = sender_.write_status(slot, 1, message_tag::from_server + part, t.now);
    server_.average_chunk(
        sender_, mean(), own_chunk(b), t, served_.data(),
        [&](const auto& scales) { sender_.check_then_write_status(scales, received, status); });
    phases_.gather(slot, of_bucket(gathered_.next.data(), b));
  }

  server<C, B> server_;
  /// W slots a bucket. Next: first what is sent, then what is gathered. Current: what was agreed,
  /// the momentum in the form in which it arrived.
  two_sided<B, std::byte> gathered_;
  byte_buffer received_;  ///< W slots a bucket: my chunk from every rank
  byte_buffer served_;    ///< one slot a bucket: my chunk's average
  two_phases phases_;     // last: what is under way ends before its buffers
};

// The compressed allreduce of the papers, as a policy: every rank averages one chunk.

/// Collective policy: gather-scatter with error feedback on both sides.
///
/// `bucket_elements` cuts the flat axis into buckets of about as many elements, each an exchange of
/// its own with its own scales. On a transport that can start collectives one bucket travels while
/// others are encoded, and gradients announced by optimizer::ready travel before the last of them
/// is known. 0: one bucket. The dense averages of the warm-up use the same buckets, or
/// some of 2^22 elements.
template <class C>
struct gather_scatter : collective_defaults {
  static_assert((check_compressor<C>(), true));
  C codec{};                        ///< the compressor
  std::size_t bucket_elements = 0;  ///< 0: one bucket

  gather_scatter() = default;
  /// @{
  /// See Collective.
  explicit(false) gather_scatter(C c, std::size_t elements = 0)
      : codec(std::move(c)), bucket_elements(elements) {}

  [[nodiscard, gnu::cold]] std::string name() const {
    return "gather_scatter of " + policy_name(codec) +
           (bucket_elements == 0 ? "" : " in buckets of " + std::to_string(bucket_elements));
  }
  template <class B>
  using exchange = gather_scatter_exchange<compressor_or_identity<C>, B>;
  template <class B>
  [[nodiscard, gnu::cold]] exchange<B> bind(const communicator& w, const B& backend,
                                            std::span<const std::size_t> sizes) const {
    return {checked_compressor(codec), w, backend, sizes, n_buckets(sizes, bucket_elements)};
  }
  /// @}
};

static_assert(Collective<gather_scatter<identity>>);

namespace detail {

/// C, or one that always works where C is no Collective: that is said elsewhere, once.
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

}  // namespace onebit::inline v0_2
