// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/message_header.hpp>
#include <onebit/collective/worker.hpp>
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
/// agreed message, 4/W bytes of server residual per element, and two messages of work space: but
/// for few buckets one, where there is no residual, and none, where buckets are taken one by one.
/// Source: 1-bit Adam (arXiv 2102.02888), section 4.2 and figure 3; the padding counts nowhere.
template <Compressor C, class B>
class gather_scatter_exchange : public flat_exchange<C, B> {
  using base = flat_exchange<C, B>;
  using base::make, base::sender_, base::comm_;

 public:
  using base::axis, base::has_residual, base::slot_bytes, base::travels;
  using typename base::byte_buffer, typename base::float_buffer, typename base::sender_type;
  using view = gathered_view<C>;
  static constexpr bool own_messages = true;
  static constexpr int most_under_way = 4;  ///< buckets, where their memory is used again

  /// Who takes what is received when the step ends, and nothing before.
  struct takes_nothing {};

  gather_scatter_exchange(C codec, const communicator& w, B backend,
                          std::span<const std::size_t> sizes, int n_buckets = 1)
      : base(std::move(codec), w, std::move(backend), sizes, w.size(), n_buckets) {
    scattered_.reserve(buckets());
    gathering_.reserve(buckets());
  }

  /// All memory that it needs.
  struct space {
    two_sided<B, std::byte> gathered;
    byte_buffer received, from_server;
    float_buffer residual, compensated;
  };
  /// Allocates it; `keeps_previous`: also for what was agreed; `from_nothing`: also compensated
  /// values.
  [[nodiscard, gnu::cold]] space allocate(bool keeps_previous, bool from_nothing) {
    space s = allocate_latest(false);
    if (keeps_previous) s.gathered.set_current(make(slot_bytes() * buckets() * ranks()));
    // a residual is what was meant minus what was received: its server reads all of it once more
    give_way(s, has_residual ? buckets() : few_buckets());
    if (travels()) s.residual = server<C, B>::make_residual(sender_, served_words());
    s.compensated = sender_.make_compensated_if(from_nothing);
    return s;
  }
  /// For steps whose buckets are taken one by one, and which carry nothing.
  [[nodiscard, gnu::cold]] space allocate_passing() {
    space s = allocate_latest(true);
    give_way(s, few_buckets());
    return s;
  }
  /// Only what `latest` reads, for what adds up by other means.
  [[nodiscard, gnu::cold]] space allocate_latest(bool passing) {
    space s;
    s.gathered.set_next(make(slot_bytes() * (passing ? few_buckets() : buckets()) * ranks()));
    return s;
  }
  /// Starts from a momentum that was agreed without compression, or from nothing. A carrying
  /// compressor holds what the next message takes of the momentum as the residual of a zero
  /// message: the same bits as that momentum and no residual, since messages start from the
  /// residual.
  [[gnu::cold]] void start(space&& s, initial_momentum<float_buffer>&& given) {
    hold(s);
    if (given.momentum.size() == 0) {
      if constexpr (has_residual) sender_.start_from(std::move(s.compensated));
      return;
    }
    take_over(sender_, given);
    if constexpr (has_residual) {
      sender_.start_from(std::move(given.momentum));
    } else {
      store_flat(sender_, given.momentum.data(), gathered_.current());
    }
  }
  /// Takes the memory over, where there is no residual.
  void hold(space& s) {
    gathered_ = std::move(s.gathered);
    received_ = std::move(s.received);
    served_ = std::move(s.from_server);
    server_.start(std::move(s.residual));
  }
  [[nodiscard]] bool started() const { return gathered_.next_size() > 0; }
  /// Gives the memory back.
  void release() noexcept {
    gathered_ = {};
    received_ = {};
    served_ = {};
  }

  /// The mean message of the last exchange that was kept.
  [[nodiscard]] view previous(active_mask active) {
    return view_of(gathered_.current(), active, tile_room::previous);
  }
  /// That of this step; where buckets are taken one by one nothing.
  [[nodiscard]] view latest(active_mask active) {
    return view_of(gathered_.next(), active, tile_room::latest);
  }
  /// Whether memory is there for all that is received.
  [[nodiscard]] bool has_all_slots() const {
    return gathered_.next_size() == slot_bytes() * buckets() * ranks();
  }
  /// The slots behind it.
  [[nodiscard]] std::byte* latest_slots() { return gathered_.next(); }

  /// Buckets of this step that are not sent yet, counted from the first: the last go first, as a
  /// backward pass produces gradients.
  [[nodiscard]] int n_unsent() const { return axis().n_buckets() - n_sent_; }

  /// Collective. Encodes the next bucket and starts to send it; waits where the transport cannot do
  /// otherwise, and for buckets whose memory it takes. All ranks must do the same between two calls
  /// of `all_reduce`. `take(bucket, view)` is called for each bucket that was received, if it is
  /// not takes_nothing: then its memory is used again.
  template <class Produce, class Undo, class Take = takes_nothing>
  [[gnu::cold]] void send_next(const Produce& produce, const exchange_args<Undo>& t,
                               const Take& take = {}) {
    make_way(t, take);
    const int b = bucket_at(n_sent_++);
    sender_.encode(produce, t, gathered_slots().counted(b), b);
    if constexpr (!B::deferred) scattered_.poke();  // a device needs no host for that, nor may ask
    if (!travels()) return;
    if (buckets() > 1) {
      scattered_.add(
          comm_.start_all_to_all(gathered_slots().at(b), received().at(b), slot_bytes()));
    } else {
      comm_.all_to_all(gathered_slots().at(b), received().at(b), slot_bytes());
    }
  }

  /// Collective; waits, unless the backend is deferred. `latest` becomes what the ranks agree on.
  template <class Produce, class Undo, class Take = takes_nothing>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t,
                                const Take& take = {}) {
    while (n_unsent() > 0) {
      send_next(produce, t, take);
      // one bucket travels while the next is encoded; the one before it is served
      if (travels() && n_sent_ > n_served_ + 1) serve_next(t);
    }
    while (travels() && n_served_ < n_sent_) serve_next(t);
    if constexpr (takes<Take>) {
      while (n_taken_ < n_sent_) take_next(t, take);
    } else {
      for (int i = 0; i < axis().n_buckets(); ++i) gathering_.wait(i);
      sender_.check(check(gathered_.next(), buckets(), tag_of_gathered(), t.now));
    }
  }
  /// Ends the step: keeps what was received and both residuals, or takes back what was sent. One
  /// pass over the own chunk.
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    scattered_.clear();
    gathering_.clear();
    n_sent_ = n_served_ = n_taken_ = 0;
    if constexpr (has_residual) {
      auto residual = server_.finish(sender_, mean(0), own_chunk(0), latest({}), t);
      if (!travels()) residual.n = 0;
      for (int b = 1; b < axis().n_buckets() && travels(); ++b) {
        const auto another = server_.finish(sender_, mean(b), own_chunk(b), latest({}), t);
        sender_.backend().launch(another.n, another.kernel);
      }
      sender_.finish_with(t, residual, gathered_.keeping(t.now));
    } else {
      sender_.finish_with(t, gathered_.keeping(t.now));
    }
  }

  /// See sender.
  template <class Rescaled, class Undo>
  [[gnu::cold]] void rescale(const Rescaled& rescaled, const exchange_args<Undo>& t) {
    sender_.rescale(rescaled, t, axis().all_tiles(), gathered_.current());
    for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
      server_.rescale(sender_, sender_.format(), own_chunk(b), rescaled.ratios, t);
    }
  }

  /// What it has still to send, for a job that goes on with other ranks: worker(sender, tiles,
  /// whether every rank has such values), server(sender, tiles, residual, where they lie in it).
  template <class Worker, class Server>
  [[gnu::cold]] void visit_residuals(const Worker& worker, const Server& server) {
    if constexpr (has_residual) {
      worker(sender_, axis().all_tiles(), true);
      for (int b = 0; b < axis().n_buckets() && travels(); ++b) {
        server(sender_, axis().chunk_tiles(own_chunk(b)), server_.words(), sender_.format());
      }
    }
  }
  /// For inspection: the residual of the chunks that this rank serves, bucket after bucket.
  [[nodiscard]] const auto& server_residual() const { return server_.residual(); }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + server_.state_bytes() + gathered_.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return sender_.work_bytes() + gathered_.next_bytes() + received_.bytes() + served_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, bool keeps_previous) {
    archive_start(*this, a, keeps_previous, gathered_, received_, served_,
                  server_.residual_place());
    sender_.archive(a);
    server_.archive(a, sender_.backend());
    gathered_.archive(a, sender_.backend());
  }

 private:
  [[nodiscard]] view view_of(const std::byte* slots, active_mask active, tile_room room) const {
    return {sender_.codec(), sender_.format(), slots, active, room};
  }
  /// Of the messages for bucket b.
  [[nodiscard]] mean_view<C> mean(int b) {
    return server<C, B>::mean(sender_.codec(), sender_.format(), received().counted(b),
                              comm_.size());
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(comm_.size()); }
  [[nodiscard]] std::size_t buckets() const { return sender_.n_buckets(); }
  [[nodiscard]] std::size_t few_buckets() const {
    return std::min<std::size_t>(buckets(), most_under_way);
  }
  /// Room for what comes of so many buckets, and goes out again.
  [[gnu::cold]] void give_way(space& s, std::size_t n) {
    if (!travels()) return;
    s.received = make(slot_bytes() * n * ranks());
    s.from_server = make(slot_bytes() * n);
  }
  /// The i-th bucket that a step sends.
  [[nodiscard]] int bucket_at(int i) const { return axis().n_buckets() - 1 - i; }
  [[nodiscard]] slots_of_buckets gathered_slots() {
    return {gathered_.next(), gathered_.next_size(), ranks(), slot_bytes()};
  }
  [[nodiscard]] slots_of_buckets received() {
    return {received_.data(), received_.size(), ranks(), slot_bytes()};
  }
  [[nodiscard]] slots_of_buckets from_server() {
    return {served_.data(), served_.size(), 1, slot_bytes()};
  }
  [[nodiscard]] std::uint32_t tag_of_gathered() const {
    return travels() ? message_tag::from_server : 0;
  }
  /// Reads the status of n buckets.
  [[nodiscard]] check_kernel check(std::byte* slots, std::size_t n, std::uint32_t part,
                                   step_scalars* now) const {
    const auto w = static_cast<std::uint32_t>(ranks());
    return {.now = now,
            .slots = slots,
            .n = static_cast<std::uint32_t>(n) * w,
            .part = part,
            .ranks = {.n = w, .slots_per_bucket = w}};
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
  template <class Take>
  static constexpr bool takes = !std::is_same_v<Take, takes_nothing>;
  /// Before a bucket is sent: those whose memory it needs are served and taken, the former sooner.
  template <class Undo, class Take>
  [[gnu::cold]] void make_way(const exchange_args<Undo>& t, const Take& take) {
    const bool again = received_.size() < slot_bytes() * buckets() * ranks();
    if (travels() && again && n_sent_ - n_served_ == most_under_way - 1) serve_next(t);
    if constexpr (takes<Take>) {
      if (n_sent_ - n_taken_ == most_under_way) take_next(t, take);
    }
  }
  /// Waits for the next bucket that was sent, averages this rank's chunk of it and sends it to all.
  template <class Undo>
  [[gnu::cold]] void serve_next(const exchange_args<Undo>& t) {
    const int b = bucket_at(n_served_);
    // the memory of its average was another's, which must have gone out
    if (!has_residual && n_served_ >= most_under_way) gathering_.wait(n_served_ - most_under_way);
    scattered_.wait(n_served_++);
    const auto part = static_cast<std::uint32_t>(b);
    std::byte* slot = from_server().at(b);
    // a rank that is at another step, or saw a bad value, is seen by all in the second phase too
    server_.average_chunk(
        sender_, mean(b), own_chunk(b), t, from_server().counted(b), [&](const auto& scales) {
          sender_.check_then_write_status(
              scales, check(received().at(b), 1, part, t.now),
              sender_.write_status(slot, 1, message_tag::from_server + part, t.now));
        });
    if (buckets() > 1) {
      gathering_.add(comm_.start_all_gather(slot, gathered_slots().at(b), slot_bytes()));
    } else {
      comm_.all_gather(slot, gathered_slots().at(b), slot_bytes());
    }
  }
  /// Waits for the next bucket that was served, and gives it away.
  template <class Undo, class Take>
  [[gnu::cold]] void take_next(const exchange_args<Undo>& t, const Take& take) {
    const int b = bucket_at(n_taken_);
    const std::uint32_t part = tag_of_gathered() + static_cast<std::uint32_t>(b);
    gathering_.wait(n_taken_++);
    sender_.check(check(gathered_slots().at(b), 1, part, t.now));
    take(b, view_of(gathered_slots().counted(b), {}, tile_room::latest));
  }

  server<C, B> server_;
  /// W slots a bucket. Next: first what is sent, then what is gathered. Current: what was agreed,
  /// the momentum in the form in which it arrived.
  two_sided<B, std::byte> gathered_;
  byte_buffer received_;                         ///< W slots a bucket: my chunk from every rank
  byte_buffer served_;                           ///< one slot a bucket: my chunk's average
  int n_sent_ = 0, n_served_ = 0, n_taken_ = 0;  ///< buckets, in this step
  in_flight scattered_, gathering_;              // last: requests end before their buffers
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
  template <class B, bool Accumulates>
  using exchange = gather_scatter_exchange<codec_for<Accumulates, C>, B>;
  template <class B, bool Accumulates>
  [[nodiscard, gnu::cold]] exchange<B, Accumulates> bind(const communicator& w, const B& backend,
                                                         std::span<const std::size_t> sizes) const {
    return {for_rule<Accumulates>(codec), w, backend, sizes, n_buckets(sizes, bucket_elements)};
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
