// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/sender.hpp>
#include <onebit/collective/server.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/collective/starting.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/policy_checks.hpp>
#include <onebit/transport/wire.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

/// The compressed allreduce of the papers: every rank averages one chunk.
namespace onebit::inline v0_1 {

/// One exchange in two phases, all tensors together: all_to_all of the senders' codes, then every
/// rank averages its chunk, encodes the average with a residual of its own, and all_gather.
///
/// With several buckets the phases of one travel while others are encoded, if the transport can;
/// the bits are those of the same buckets one after the other. `send_next` starts a bucket early.
/// Cost: 2 collectives a bucket, 2 (W-1) slots on the wire per rank and bucket. Memory: sender, the
/// agreed message, 4/W bytes of server residual per element, and two messages of work space.
/// Source: 1-bit Adam (arXiv 2102.02888), section 4.2 and figure 3; the padding counts nowhere.
template <Compressor C, class B>
class gather_scatter_exchange {
 public:
  using backend_type = B;
  using sender_type = onebit::sender<C, B>;
  using float_buffer = buffer_of<B, float>;
  using byte_buffer = buffer_of<B, std::byte>;
  using view = gathered_view<C>;
  static constexpr bool carries = sender_type::carries;
  static constexpr bool own_messages = true;  ///< what it encodes, all of it, is this rank's own

  gather_scatter_exchange(C codec, wire w, B backend, std::span<const std::size_t> sizes,
                          int n_buckets = 1)
      : wire_(std::move(w)),
        sender_(std::move(codec), std::move(backend), sizes, wire_.size(), n_buckets) {
    scattered_.reserve(buckets());
    gathering_.reserve(buckets());
  }

  /// With one rank nothing would travel.
  [[nodiscard]] bool travels() const { return wire_.size() > 1; }
  /// Whether its encode pass overwrites what must be saved.
  [[nodiscard]] bool needs_undo() const { return carries; }
  [[nodiscard]] const layout& axis() const { return sender_.axis(); }
  [[nodiscard]] std::size_t slot_bytes() const { return sender_.format().slot_bytes; }
  /// The half that encodes: for inspection, and for who adds up by other means.
  [[nodiscard]] sender_type& sender() { return sender_; }

  /// All memory that it needs.
  struct space {
    two_sided<B, std::byte> gathered;
    byte_buffer received, served;
    typename sender_type::carried_buffer residual, carried;
  };
  /// Allocates it; `keeps_agreed`: also for what was agreed; `from_nothing`: also carried values.
  [[nodiscard, gnu::cold]] space allocate(bool keeps_agreed, bool from_nothing) {
    space s = allocate_heard();
    const std::size_t slots = slot_bytes() * buckets();
    if (keeps_agreed) s.gathered.set_current(make(slots * ranks()));
    if (travels()) {
      s.received = make(slots * ranks());
      s.served = make(slots);
      s.residual = server<C, B>::make_residual(sender_, served_words());
    }
    s.carried = sender_.room(from_nothing);
    return s;
  }
  /// Only what `heard` reads, for who adds up by other means.
  [[nodiscard, gnu::cold]] space allocate_heard() {
    space s;
    s.gathered.set_next(make(slot_bytes() * buckets() * ranks()));
    return s;
  }
  /// Starts from a momentum that was agreed without compression, or from nothing. A carrying
  /// compressor holds what the next message takes of the momentum as the residual of a zero
  /// message: the same bits as that momentum and no residual, since messages start from the
  /// residual.
  [[gnu::cold]] void start(space&& s, handover<float_buffer>&& given) {
    hold(s);
    if (given.momentum.size() == 0) {
      if constexpr (carries) sender_.carry(std::move(s.carried));
      return;
    }
    take_over(sender_, given);
    if constexpr (carries) {
      sender_.carry_flat(std::move(given.momentum), std::move(s.carried));
    } else {
      store_flat(sender_, given.momentum.data(), gathered_.current());
    }
  }
  /// Takes the memory over, where nothing is carried.
  void hold(space& s) {
    gathered_ = std::move(s.gathered);
    received_ = std::move(s.received);
    served_ = std::move(s.served);
    server_.start(std::move(s.residual));
  }
  [[nodiscard]] bool started() const { return gathered_.next_size() > 0; }
  /// Gives the memory back.
  void release() noexcept {
    gathered_ = {};
    received_ = {};
    served_ = {};
  }
  void count_live(live_mask live) { sender_.count_live(live); }
  /// Where nothing travels nothing is checked.
  void check_slots(checked which) { sender_.check_slots(travels() ? which : checked::nothing); }

  /// What was agreed in the last exchange that was kept.
  [[nodiscard]] view agreed(live_mask live) {
    return view_of(gathered_.current(), live, tile_room::agreed);
  }
  /// What was agreed in this step.
  [[nodiscard]] view heard(live_mask live) {
    return view_of(gathered_.next(), live, tile_room::heard);
  }
  /// The slots behind it.
  [[nodiscard]] std::byte* heard_slots() { return gathered_.next(); }

  /// Buckets of this step that are not sent yet, counted from the first: the last go first, as a
  /// backward pass produces gradients.
  [[nodiscard]] int n_unsent() const { return axis().n_buckets() - n_sent_; }

  /// Collective. Encodes the next bucket and starts to send it; waits where the transport cannot do
  /// otherwise. All ranks must do the same between two calls of `agree`.
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce& produce, const turn<Undo>& t) {
    const int b = axis().n_buckets() - 1 - n_sent_;
    ++n_sent_;
    sender_.encode(produce, t, gathered_.next(), b);
    if constexpr (!B::deferred) scattered_.poke();  // a device needs no host for that, nor may ask
    if (!travels()) return;
    const std::size_t at = slots_of(b);
    if (buckets() > 1) {
      scattered_.add(
          wire_.start_all_to_all(gathered_.next() + at, received_.data() + at, slot_bytes()));
    } else {
      wire_.all_to_all(gathered_.next() + at, received_.data() + at, slot_bytes());
    }
  }

  /// Collective; waits, unless the backend is deferred. `heard` becomes what the ranks agree on.
  template <class Produce, class Undo>
  [[gnu::cold]] void agree(const Produce& produce, const turn<Undo>& t) {
    std::size_t n_served = 0;
    const int first_send = n_sent_;
    while (n_unsent() > 0) {
      send_next(produce, t);
      // one bucket travels while the next is encoded; the one before it is served
      if (travels() && n_sent_ > first_send + 1) serve(n_served++, t);
    }
    while (travels() && n_served < buckets()) serve(n_served++, t);
    for (std::size_t i = 0; i < buckets(); ++i) gathering_.wait(i);
    sender_.check(check(gathered_.next(), buckets(), travels() ? slot_place::served : 0, t.now));
  }
  /// Before `finish`, with undo_by_repeating: carries what was sent, if the step is kept.
  template <class Produce, class Undo>
  [[gnu::cold]] void repeat(const Produce& produce, const turn<Undo>& t) {
    sender_.repeat(produce, t);
  }
  /// Adds a message to what is sent later. One pass.
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const turn<Undo>& t) {
    sender_.accumulate(produce, t);
  }
  /// Ends the step: keeps what was heard and both residuals, or takes back what was sent. One pass
  /// over the own chunk.
  template <class Undo>
  [[gnu::cold]] void finish(const turn<Undo>& t) {
    scattered_.clear();
    gathering_.clear();
    n_sent_ = 0;
    if constexpr (carries) {
      auto residual = server_.finish(sender_, mean(), own_chunk(0), heard({}), t);
      if (!travels()) residual.n = 0;
      for (int b = 1; b < axis().n_buckets() && travels(); ++b) {
        const auto another = server_.finish(sender_, mean(), own_chunk(b), heard({}), t);
        sender_.backend().launch(another.n, another.kernel);
      }
      sender_.finish_with(t, residual, gathered_.keeping(t.now));
    } else {
      sender_.finish_with(t, gathered_.keeping(t.now));
    }
  }

  /// The tiles whose values its sender carries.
  [[nodiscard]] tile_range carried_tiles() const { return axis().all_tiles(); }
  /// What it has still to send, for a job that goes on with other ranks: worker(sender, tiles,
  /// whether every rank has such values), server(sender, tiles, residual, where they lie in it).
  template <class Worker, class Server>
  [[gnu::cold]] void visit_owed(const Worker& worker, const Server& server) {
    if constexpr (carries) {
      worker(sender_, carried_tiles(), true);
      for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
        server(sender_, axis().chunk_tiles(own_chunk(b)), server_.words(), sender_.format());
      }
    }
  }
  /// For inspection: the residual of the chunks that this rank serves, bucket after bucket.
  [[nodiscard]] const auto& server_residual() const { return server_.residual(); }
  /// Bytes sent to other nodes so far, where it knows of nodes.
  [[nodiscard]] std::uint64_t sent_across() const { return 0; }
  [[nodiscard]] int ranks_per_node() const { return 1; }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + server_.state_bytes() + gathered_.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return sender_.work_bytes() + gathered_.next_bytes() + received_.bytes() + served_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, bool keeps_agreed) {
    archive_start(*this, a, keeps_agreed, gathered_, received_, served_, server_.residual_place());
    sender_.archive(a);
    server_.archive(a, sender_.backend());
    gathered_.archive(a, sender_.backend());
  }

 private:
  [[nodiscard]] byte_buffer make(std::size_t n) {
    return sender_.backend().template make_buffer<std::byte>(n);
  }
  [[nodiscard]] view view_of(const std::byte* slots, live_mask live, tile_room room) const {
    return {sender_.codec(), sender_.format(), slots, live, room};
  }
  [[nodiscard]] mean_view<C> mean() const {
    return server<C, B>::mean(sender_.codec(), sender_.format(), received_.data(), wire_.size());
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(wire_.size()); }
  [[nodiscard]] std::size_t buckets() const { return sender_.n_buckets(); }
  /// Where the slots of bucket b start.
  [[nodiscard]] std::size_t slots_of(int b) const {
    return static_cast<std::size_t>(b) * ranks() * slot_bytes();
  }
  /// Reads the status of n buckets.
  [[nodiscard]] check_kernel check(std::byte* slots, std::size_t n, std::uint32_t part,
                                   step_scalars* now) const {
    const auto w = static_cast<std::uint32_t>(ranks());
    return {.now = now,
            .slots = slots,
            .n = static_cast<std::uint32_t>(n) * w,
            .n_ranks = w,
            .part = part,
            .slots_per_bucket = w};
  }
  /// The chunk that this rank serves in bucket b.
  [[nodiscard]] int own_chunk(int b) const { return b * wire_.size() + wire_.rank(); }
  /// Words of all chunks that this rank serves; only the last bucket's may be shorter.
  [[nodiscard]] std::size_t served_words() const {
    std::size_t words = 0;
    for (int b = 0; b < axis().n_buckets(); ++b) {
      const std::size_t own = axis().words_of_chunk(own_chunk(b));
      if (own > 0) words = static_cast<std::size_t>(b) * axis().chunk_words() + own;
    }
    return words;
  }
  /// Waits for the i-th bucket that was sent, averages this rank's chunk of it and sends it to all.
  template <class Undo>
  [[gnu::cold]] void serve(std::size_t i, const turn<Undo>& t) {
    const int b = axis().n_buckets() - 1 - static_cast<int>(i);
    scattered_.wait(i);
    const auto part = static_cast<std::uint32_t>(b);
    std::byte* slot = served_.data() + static_cast<std::size_t>(b) * slot_bytes();
    // a rank that is at another step, or saw a bad value, is seen by all in the second phase too
    server_.serve(sender_, mean(), own_chunk(b), t, served_.data(), [&](const auto& scales) {
      sender_.check_and_seal(scales, check(received_.data() + slots_of(b), 1, part, t.now),
                             sender_.seal(slot, 1, slot_place::served + part, t.now));
    });
    if (buckets() > 1) {
      gathering_.add(wire_.start_all_gather(slot, gathered_.next() + slots_of(b), slot_bytes()));
    } else {
      wire_.all_gather(slot, gathered_.next() + slots_of(b), slot_bytes());
    }
  }

  wire wire_;
  sender_type sender_;
  server<C, B> server_;
  /// W slots a bucket. Next: first what is sent, then what is gathered. Current: what was agreed,
  /// the momentum in the form in which it arrived.
  two_sided<B, std::byte> gathered_;
  byte_buffer received_;             ///< W slots a bucket: my chunk from every rank
  byte_buffer served_;               ///< one slot a bucket: my chunk's average
  int n_sent_ = 0;                   ///< buckets, in this step
  in_flight scattered_, gathering_;  // last: requests end before their buffers
};

/// A bucket size for transports that can start collectives: of 2^17 to 2^22, this one was the
/// fastest with 4 MPI ranks at 1 and at 2.7 Gbit/s, and as good as smaller ones at 100 Mbit/s
/// (bench/network.sh). Smaller buckets cost latency, larger ones overlap less.
inline constexpr std::size_t default_bucket_elements = std::size_t{1} << 20U;

/// Collective policy: gather-scatter with error feedback on both sides.
///
/// `bucket_elements` cuts the flat axis into buckets of about as many elements, each an exchange of
/// its own with its own scales. On a transport that can start collectives one bucket travels while
/// others are encoded, and gradients announced by optimizer::ready travel before the last of them
/// is known. 0: one bucket. The dense averages of the warm-up use the same buckets.
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
  template <class B, bool Accumulates>
  using exchange = gather_scatter_exchange<codec_for<Accumulates, C>, B>;
  template <class B, bool Accumulates>
  [[nodiscard, gnu::cold]] exchange<B, Accumulates> bind(const wire& w, const B& backend,
                                                         std::span<const std::size_t> sizes) const {
    return {for_rule<Accumulates>(codec), w, backend, sizes, n_buckets(sizes, bucket_elements)};
  }
  /// @}
};

static_assert(Collective<gather_scatter<identity>>);

}  // namespace onebit::inline v0_1
