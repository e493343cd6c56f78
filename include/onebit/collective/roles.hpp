// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/encode.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/collective/message_header.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <utility>
#include <vector>

/// The two roles of a rank in an exchange. As a worker it encodes its own message; as a server it
/// averages the messages of all ranks for its chunk. Both encode with the same tables.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Encode side of an exchange: the flat axis in the backend's memory, the slot format, and the
/// encode passes of a worker, by bucket, and of a server, by chunk. An encoder carries no state.
///
/// Memory: tables of 0.03 bytes per element.
template <Compressor C, class B>
class encoder {
 public:
  template <class T>
  using buffer = buffer_of<B, T>;

  static constexpr bool by_word = detail::codec_traits<C>::by_word,
                        scaled = detail::codec_traits<C>::scaled;

  encoder(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks, int n_buckets = 1);

  [[nodiscard]] const C& codec() const { return codec_; }
  [[nodiscard]] B& backend() { return backend_; }
  [[nodiscard]] const layout& axis() const { return axis_; }
  [[nodiscard]] const slot_format& format() const { return format_; }
  [[nodiscard]] const tile* tiles() const { return tiles_.data(); }
  [[nodiscard]] float* sums() { return sums_.data(); }
  [[nodiscard]] const detail::scale_entry* segments() const { return segments_.data(); }
  [[nodiscard]] std::size_t n_buckets() const {
    return static_cast<std::size_t>(axis_.n_buckets());
  }
  [[nodiscard]] std::size_t flat_elements() const { return axis_.n_words() * word_elements; }
  /// Context of a step on this axis, for rules.
  template <class P, class G>
  [[nodiscard]] step_context<B, P, G> at(const tensor_entry<P, G>* tensors,
                                         const tensor_scalars* scalars, const step_scalars* now,
                                         active_mask active) {
    return {{tiles_.data(), tensor_tiles_.data(), sums_.data(), tensors, scalars, now, active},
            backend_,
            axis_};
  }

  /// Encodes produce(residual) of one bucket into its slots, one per chunk, and writes their
  /// status. One pass. In a step that was called off before, encodes nothing, but writes the
  /// status, for the other ranks.
  template <class Produce, class Feedback, class Undo>
  [[gnu::cold]] void encode_bucket(const Produce& produce, const Feedback& feedback,
                                   const exchange_args<Undo>& t, std::byte* slots, int bucket) {
    const onebit::bucket& part = axis_.bucket_at(bucket);
    const tile_range own = part.tiles;
    launch_unless_skipped(backend_, t.now, own.end - own.begin,
                          encode_kernel<C, Produce, Feedback>{codec_,
                                                              produce,
                                                              feedback,
                                                              t.active,
                                                              {tiles_.data(), own.begin},
                                                              {format_, slots, 1},
                                                              sums_.data(),
                                                              t.now,
                                                              false});
    const group_scale_kernel<C> scale{
        {codec_, groups_.data() + part.groups.begin, sums_.data(),
         scales_.next.data() + part.groups.begin, nullptr, 0, t.now, t.bound},
        scaled ? segments_.data() : nullptr,
        slots,
        format_};
    const auto n = static_cast<std::size_t>(axis_.n_chunks());
    then_write_status(
        calls{scale, std::size_t{part.groups.end - part.groups.begin}},
        write_status(slots + static_cast<std::size_t>(bucket) * n * format_.slot_bytes, n,
                     static_cast<std::uint32_t>(bucket), t.now));
  }
  /// Encodes a chunk's mean (or another message with a `format`) into its slot; `slots` holds one
  /// slot per bucket. Returns the kernel of the chunk's scales, which must run before the slot's
  /// status is written.
  template <class Mean, class Feedback, class Undo>
  [[nodiscard, gnu::cold]] calls<scale_kernel<C>> encode_chunk(const Mean& mean,
                                                               const Feedback& feedback, int chunk,
                                                               const exchange_args<Undo>& t,
                                                               std::byte* slots) {
    const slot_format& f = mean.format;
    const tile_range own = axis_.chunk_tiles(chunk);
    backend_.launch(own.end - own.begin,
                    encode_kernel<C, Mean, Feedback>{codec_,
                                                     mean,
                                                     feedback,
                                                     t.active,
                                                     {tiles_.data(), own.begin},
                                                     {f, slots, f.chunks_per_bucket},
                                                     sums_.data(),
                                                     t.now,
                                                     true});
    std::byte* slot = slots + static_cast<std::size_t>(chunk) / f.chunks_per_bucket * f.slot_bytes;
    const tile_range parts = axis_.chunk_segments(chunk);
    const detail::scale_kernel<C> scale{codec_,
                                        segments_.data() + parts.begin,
                                        sums_.data(),
                                        nullptr,
                                        scaled ? slot : nullptr,
                                        f.scales_at,
                                        t.now,
                                        t.bound};
    return {scale, std::size_t{parts.end - parts.begin}};
  }
  /// Mean of n slots in `received`.
  [[nodiscard]] mean_view<C> mean(const slot_format& format, const std::byte* received,
                                  int n) const {
    return {codec_, format, received, n, 1.0F / static_cast<float>(n), {}};
  }

  /// Returns the kernel that writes the status of n slots; `part`: tag bits, see status_kernel.
  [[nodiscard]] status_kernel write_status(std::byte* slots, std::size_t n, std::uint32_t part,
                                           step_scalars* now) const {
    return {now, slots, format_, static_cast<std::uint32_t>(n), part};
  }
  /// Runs `each`, then `last`.
  template <class Each>
  [[gnu::cold]] void then_write_status(const calls<Each>& each, const status_kernel& last) {
    launch_then_once(backend_, each, last, n_ended());
  }
  /// Runs `each`, then checks the received status that `what` describes, then runs `last`.
  template <class Each>
  [[gnu::cold]] void check_then_write_status(const calls<Each>& each, const check_kernel& what,
                                             const status_kernel& last) {
    launch_then_once(backend_, each, detail::in_turn{completed(what), last}, n_ended());
  }
  /// Checks the status of received slots; `what` describes the slots, except for their format.
  [[gnu::cold]] void run_check(const check_kernel& what) { backend_.launch(1, completed(what)); }
  [[nodiscard]] std::uint32_t* n_ended() { return n_ended_.data(); }  ///< counter: see then_once

  /// Scales of the encode pass of this step, by group.
  [[nodiscard]] const float* new_scales() { return scales_.next.data(); }
  /// Writes a field to a new buffer on the flat axis.
  template <class Field>
  [[nodiscard, gnu::cold]] buffer<float> flatten(const Field& field) {
    auto flat = backend_.template make_buffer<float>(flat_elements());
    backend_.launch(axis_.tiles().size(), flatten_kernel<Field>{field, tiles(), flat.data()});
    return flat;
  }
  /// Only the elements of `active` count in scales from now on. Reads the mask.
  [[gnu::cold]] void count_active(active_mask active) {
    backend_.launch(axis_.tiles().size(),
                    detail::count_active_kernel{active, tiles_.data(), counts_.data()});
    for (auto* entries : {&groups_, &segments_}) {
      backend_.launch(entries->size(),
                      detail::total_active_kernel{counts_.data(), entries->data()});
    }
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return scales_.next.bytes() + sums_.bytes() + tiles_.bytes() + tensor_tiles_.bytes() +
           groups_.bytes() + segments_.bytes() + offsets_.bytes() + counts_.bytes() +
           n_ended_.bytes();
  }

 protected:
  C codec_;
  B backend_;
  layout axis_;
  slot_format format_;
  buffer<std::uint64_t> offsets_;
  buffer<tile> tiles_;
  buffer<tile_range> tensor_tiles_;
  buffer<float> sums_;            ///< by tile, three arrays: see step_tables
  buffer<std::uint32_t> counts_;  ///< by tile: active elements
  buffer<detail::scale_entry> groups_, segments_;
  buffer<std::uint32_t> n_ended_;   ///< see then_once
  double_buffer<B, float> scales_;  ///< by group; an encoder has only `next`

 private:
  [[nodiscard]] check_kernel completed(check_kernel what) const {
    what.format = format_;
    return what;
  }
};

}  // namespace detail

template <Compressor C, class B>
[[gnu::cold]] detail::encoder<C, B>::encoder(C codec, B backend, std::span<const std::size_t> sizes,
                                             int n_chunks, int n_buckets)
    : codec_(std::move(codec)),
      backend_(std::move(backend)),
      axis_(sizes, n_chunks, detail::codec_traits<C>::scales(codec_), n_buckets,
            by_word ? 0 : tile_words) {  // a tile compressor gets tiles of full length
  std::vector<std::uint64_t> offsets;
  format_ = detail::make_slot_format(codec_, axis_, offsets);
  offsets_ = to_buffer(backend_, offsets);
  format_.tile_offsets = offsets_.data();
  const std::size_t n_tiles = axis_.tiles().size();
  tiles_ = to_buffer(backend_, axis_.tiles());
  tensor_tiles_ = to_buffer(backend_, axis_.tensor_tiles());
  sums_ = backend_.template make_buffer<float>(detail::step_tables_sums * n_tiles);
  std::vector<detail::scale_entry> groups, segments;
  detail::make_scale_entries(axis_, groups, segments);
  groups_ = to_buffer(backend_, groups);
  segments_ = to_buffer(backend_, segments);
  scales_.next = backend_.template make_buffer<float>(groups.size());
  counts_ = backend_.template make_buffer<std::uint32_t>(n_tiles);
  n_ended_ = backend_.template make_buffer<std::uint32_t>(1);
}

/// Worker role: an encoder with the compensated values that it carries.
///
/// Memory: 4 bytes carried per element, plus the encoder's.
template <Compressor C, class B>
class sender : public detail::encoder<C, B> {
  using base = detail::encoder<C, B>;
  using base::axis_, base::backend_, base::codec_, base::scales_, base::tiles_;

 public:
  template <class T>
  using buffer = buffer_of<B, T>;

  sender(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks, int n_buckets = 1)
      : base(std::move(codec), std::move(backend), sizes, n_chunks, n_buckets),
        saved_(backend_.template make_buffer<std::uint32_t>(axis_.tiles().size())) {
    scales_.current = backend_.template make_buffer<float>(scales_.next.size());
  }

  /// Encodes produce(residual) of one bucket. One pass: for `sign` it reads 12 bytes per element
  /// (compensated value, gradient, this rank's v or its inverse) and writes the bits; with
  /// store_at_encode it also writes the new and the old compensated value.
  template <class Produce, class Undo>
  [[gnu::cold]] void encode(const Produce& produce, const exchange_args<Undo>& t, std::byte* slots,
                            int bucket) {
    base::encode_bucket(produce,
                        detail::worker_feedback<C, Undo>{residual(), saved_.data(), t.undo}, t,
                        slots, bucket);
  }
  /// Stores what the encode pass did not: compensated = produce(residual). Then runs `update`, tile
  /// by tile, unless the step is called off. 12 bytes per element, plus gradients.
  template <class Produce, class Undo, class Update>
  [[gnu::cold]] void store_and_update(const Produce& produce, const exchange_args<Undo>& t,
                                      const Update& update) {
    const auto all = accumulation(produce, t, axis_.all_tiles());
    launch_unless_skipped(backend_, t.now, all.n, detail::tile_by_tile{all.kernel, update});
  }
  /// Computes what is left of the last exchange, and adds a message: compensated =
  /// produce(residual). Nothing of it counts as sent. From then on other elements may be active. 8
  /// bytes per element.
  template <class Produce, class Undo>
  [[gnu::cold]] void fold_in(const Produce& produce, const exchange_args<Undo>& t,
                             tile_range tiles) {
    const auto all = accumulation(produce, t, tiles);
    launch_unless_skipped(backend_, t.now, all.n, all.kernel);
    const detail::copy_kernel zero{nullptr, scales_.current.data(), scales_.current.size()};
    launch_unless_skipped(backend_, t.now, zero.launches(), zero);
  }
  /// Ends a step that encoded: keeps the new scales, or, if the step was called off, restores the
  /// compensated values bit for bit. Launches `others` beside; no kernel may depend on another.
  template <class Undo, class... Kernels>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t, const detail::calls<Kernels>&... others) {
    if constexpr (Undo::repeats) {
      detail::launch_together(backend_, others..., scales_.commit(t.now));
    } else {
      const detail::take_back_kernel<Undo> back{t.undo,        tiles_.data(), compensated(),
                                                saved_.data(), t.now,         axis_.tiles().size()};
      detail::launch_together(backend_, others..., detail::calls{back, back.launches()},
                              scales_.commit(t.now));
    }
  }

  /// What this rank carries, as a field: its residual, and in elements that are not active all that
  /// it would have sent.
  [[nodiscard]] detail::carried_field<C> residual(active_mask active) {
    return {residual(), sends_all_ ? active_mask{} : active};
  }
  /// From now on the caller encodes all elements, active or not.
  void send_all() { sends_all_ = true; }
  /// True if the sender carries compensated values.
  [[nodiscard]] bool carries() const { return compensated_.size() > 0; }
  /// Compensated values that the sender carries.
  [[nodiscard]] detail::compensated_words compensated() {
    return {compensated_.data(), first_compensated_};
  }
  /// Scales of the last exchange that was kept, by group; in the backend's memory.
  [[nodiscard]] std::span<const float> scales() const {
    return {scales_.current.data(), scales_.current.size()};
  }
  /// Takes over `values` as the residual of the words from `first` on. Zeroes the scales of the
  /// last exchange, so that the residual is the compensated value itself.
  [[gnu::cold]] void start_from(buffer<float>&& values, std::size_t first = 0) {
    compensated_ = std::move(values);
    first_compensated_ = first;
    const detail::copy_kernel zero{nullptr, scales_.current.data(), scales_.current.size()};
    backend_.launch(zero.launches(), zero);
  }
  /// Returns compensated values for n words of the flat axis: zeros.
  [[nodiscard, gnu::cold]] buffer<float> make_compensated(std::size_t n_words) {
    return backend_.template make_buffer<float>(n_words * word_elements);
  }

  [[nodiscard]] std::size_t state_bytes() const {
    return compensated_.bytes() + scales_.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return base::work_bytes() + saved_.bytes();
  }
  /// Backs up what `archive` and `start_from` replace, for an archive that reads.
  template <class Archive>
  [[gnu::cold]] void back_up(Archive& a) {
    detail::double_buffer<B, float> scales{
        backend_.template make_buffer<float>(scales_.current.size()),
        backend_.template make_buffer<float>(scales_.current.size())};
    a.back_up(compensated_);
    a.back_up(first_compensated_);
    a.back_up(scales_);
    scales_ = std::move(scales);
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a) {
    a.buffer(compensated_, backend_);
    a.buffer(scales_.current, backend_);
  }

 private:
  [[nodiscard]] detail::residual_field<C> residual() {
    return {codec_, compensated(), scales_.current.data()};
  }
  template <class Produce, class Undo>
  [[nodiscard]] detail::calls<detail::compensate_kernel<C, Produce>> accumulation(
      const Produce& produce, const exchange_args<Undo>& t, tile_range tiles) {
    return {{residual(), produce, t.active, {tiles_.data(), tiles.begin}},
            std::size_t{tiles.end - tiles.begin}};
  }

  bool sends_all_ = false;
  buffer<std::uint32_t> saved_;  ///< by tile: see worker_feedback
  buffer<float> compensated_;
  std::size_t first_compensated_ = 0;  ///< first word of `compensated_`
};

/// Server role: averages what all ranks sent for its chunks, and encodes the mean with a residual
/// of its own. It borrows the tables of its sender. A chunk's words lie in the residual at
/// `format.server_word(tile)`.
///
/// The residual is read while the step may still be called off, and written by `residual_pass`. It
/// cannot be rebuilt lazily like the worker's: it depends on messages that are gone by then.
/// Memory: 4 bytes per element served.
template <Compressor C, class B>
class server {
 public:
  using residual_buffer = buffer_of<B, float>;

  /// Takes over a residual, by element served.
  void start(residual_buffer&& residual) noexcept { residual_ = std::move(residual); }
  /// Encodes the mean of a chunk plus the residual. See encoder::encode_chunk.
  template <class Mean, class Undo>
  [[nodiscard, gnu::cold]] auto average_chunk(detail::encoder<C, B>& s, const Mean& mean, int chunk,
                                              const exchange_args<Undo>& t, std::byte* slots) {
    return s.encode_chunk(mean, detail::server_feedback{words(), mean.format}, chunk, t, slots);
  }
  /// Returns the pass over a chunk that ends a step, which sender::finish launches: residual = mean
  /// + old residual, minus what all ranks decode of it, if the step is kept. `latest` needs no
  /// mask.
  template <class Mean, class Undo>
  [[nodiscard, gnu::cold]] auto residual_pass(detail::encoder<C, B>& s, const Mean& mean, int chunk,
                                              const gathered_view<C>& latest,
                                              const exchange_args<Undo>& t) {
    using kernel = detail::server_residual_kernel<Mean, gathered_view<C>>;
    const tile_range own = s.axis().chunk_tiles(chunk);
    return detail::calls{
        detail::unless_skipped<kernel>{
            {mean, latest, t.active, {s.tiles(), own.begin}, mean.format, words()}, t.now},
        std::size_t{own.end - own.begin}};
  }
  /// Residual by element, chunk after chunk.
  [[nodiscard]] const residual_buffer& residual() const { return residual_; }
  [[nodiscard]] detail::compensated_words words() { return {residual_.data(), 0}; }
  [[nodiscard]] std::size_t state_bytes() const { return residual_.bytes(); }
  /// Residual, for an archive to back up before `start`.
  [[nodiscard]] residual_buffer& mutable_residual() { return residual_; }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    a.buffer(residual_, backend);
  }

 private:
  residual_buffer residual_;
};

// Parts shared by exchanges.

namespace detail {

/// Progress of a step's buckets through the two phases of an exchange. Each rank scatters its slots
/// to the ranks that serve them and gathers the averages. The last bucket goes first, as a backward
/// pass produces gradients. With several buckets one travels while another is encoded or served, if
/// the transport can; with one the transport blocks.
class two_phases {
 public:
  two_phases(communicator w, int n_buckets, std::size_t slot_bytes)
      : comm_(std::move(w)), n_(n_buckets), slot_bytes_(slot_bytes) {
    for (auto* requests : {&scattered_, &gathered_})
      requests->reserve(static_cast<std::size_t>(n_));
  }

  [[nodiscard]] const communicator& comm() const { return comm_; }
  [[nodiscard]] bool travels() const { return comm_.size() > 1; }
  /// Number of buckets of this step that were sent, are not sent, and were served.
  [[nodiscard]] int n_sent() const { return n_sent_; }
  [[nodiscard]] int n_unsent() const { return n_ - n_sent_; }
  [[nodiscard]] int n_served() const { return n_served_; }
  /// The i-th bucket in the order of sending.
  [[nodiscard]] int bucket_at(int i) const { return n_ - 1 - i; }
  /// True if the next bucket should be served now: it had time to travel while another was encoded.
  [[nodiscard]] bool serves_now() const {
    return travels() && n_served_ + (n_unsent() > 0 ? 1 : 0) < n_sent_;
  }

  /// Returns the next bucket to send: encode it, then call `scatter`.
  [[nodiscard]] int next_to_send() { return bucket_at(n_sent_++); }
  /// Collective. Sends the W slots of a bucket, one to each rank.
  [[gnu::cold]] void scatter(const std::byte* sent, std::byte* received) {
    if (n_ > 1) {
      scattered_.push_back(comm_.start_all_to_all(sent, received, slot_bytes_));
    } else {
      comm_.all_to_all(sent, received, slot_bytes_);
    }
  }
  /// Waits for the next bucket to serve and returns it: average it, then call `gather`.
  [[nodiscard, gnu::cold]] int next_to_serve() {
    wait(scattered_, n_served_);
    return bucket_at(n_served_++);
  }
  /// Returns the kernel that checks the status of n buckets; `part`: tag bits of the first.
  [[nodiscard]] check_kernel check_of(step_scalars* now, std::byte* slots, int n,
                                      std::uint32_t part) const {
    const auto w = static_cast<std::uint32_t>(comm_.size());
    return {.now = now,
            .slots = slots,
            .n = static_cast<std::uint32_t>(n) * w,
            .part = part,
            .ranks = {.n = w, .slots_per_bucket = w}};
  }
  /// Tag bits of gathered slots. With one rank the gathered slots are those that were sent.
  [[nodiscard]] std::uint32_t part_of_gathered() const {
    return travels() ? message_tag::from_server : 0;
  }
  /// Collective. Sends this rank's slot of a bucket to all ranks, and receives the slots of all.
  [[gnu::cold]] void gather(const std::byte* slot, std::byte* all) {
    if (n_ > 1) {
      gathered_.push_back(comm_.start_all_gather(slot, all, slot_bytes_));
    } else {
      comm_.all_gather(slot, all, slot_bytes_);
    }
  }
  /// Waits until the i-th bucket is gathered.
  void wait_gathered(int i) { wait(gathered_, i); }
  /// Lets the transport make progress.
  [[gnu::cold]] void poke() {
    for (request& r : scattered_) {
      if (!r.test()) return;
    }
  }
  /// Ends a step; waits for pending requests.
  [[gnu::cold, gnu::noinline]] void clear() noexcept {
    scattered_.clear();
    gathered_.clear();
    n_sent_ = n_served_ = 0;
  }

 private:
  static void wait(std::vector<request>& requests, int i) {
    if (std::cmp_less(i, requests.size())) requests[static_cast<std::size_t>(i)].wait();
  }

  communicator comm_;
  int n_;
  std::size_t slot_bytes_;
  int n_sent_ = 0, n_served_ = 0;
  std::vector<request> scattered_, gathered_;
};

/// Base of exchanges: a sender, and the communicator of its messages.
template <Compressor C, class B>
class flat_exchange {
 public:
  using backend_type = B;
  using sender_type = onebit::sender<C, B>;
  using float_buffer = buffer_of<B, float>;
  using byte_buffer = buffer_of<B, std::byte>;

  /// True if there is more than one rank.
  [[nodiscard]] bool travels() const { return comm_.size() > 1; }
  /// True if the encode pass overwrites compensated values, which must be saved.
  [[nodiscard]] bool needs_undo(exchange_memory) const { return true; }
  [[nodiscard]] const layout& axis() const { return sender_.axis(); }
  [[nodiscard]] std::size_t slot_bytes() const { return sender_.format().slot_bytes; }
  /// Encode side, for inspection, and for code that sums messages by other means.
  [[nodiscard]] sender_type& sender() { return sender_; }
  void count_active(active_mask active) { sender_.count_active(active); }
  /// @{
  /// Adds a message to the residual, to be sent by a later exchange: that of a local step; one
  /// after `finish`, before other elements become active. One pass.
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const exchange_args<Undo>& t) {
    fold_in(produce, t);
  }
  template <class Produce, class Undo>
  [[gnu::cold]] void fold_in(const Produce& produce, const exchange_args<Undo>& t) {
    sender_.fold_in(produce, t, axis().all_tiles());
  }
  /// @}
  /// Tiles whose compensated values the sender holds.
  [[nodiscard]] tile_range compensated_tiles() const { return axis().all_tiles(); }
  /// Bytes sent to other nodes so far; 0 if the exchange does not know nodes.
  [[nodiscard]] std::uint64_t bytes_between_nodes() const { return 0; }
  [[nodiscard]] int ranks_per_node() const { return 1; }

 protected:
  flat_exchange(C codec, communicator w, B backend, std::span<const std::size_t> sizes,
                int n_chunks, int n_buckets)
      : comm_(std::move(w)),
        sender_(std::move(codec), std::move(backend), sizes, n_chunks, n_buckets) {}
  byte_buffer make(std::size_t n) { return sender_.backend().template make_buffer<std::byte>(n); }

  communicator comm_;
  sender_type sender_;
};

/// Scales a handed-over momentum to the share that the next message takes.
template <Compressor C, class B>
[[gnu::cold]] void scale_given(detail::encoder<C, B>& s,
                               initial_momentum<buffer_of<B, float>>& given) {
  s.backend().launch(s.axis().tiles().size(),
                     detail::scale_in_place_kernel{given.momentum.data(), s.tiles(), given.factors,
                                                   given.scalars});
}

/// Starts from an uncompressed mean momentum, or from `zeros`. The share of the momentum that the
/// next message takes becomes the residual; the previous message is 0. Messages start from the
/// residual, so the bits equal those of the momentum as the previous message, without a residual.
template <Compressor C, class B>
[[gnu::cold]] void start_sender(sender<C, B>& s, buffer_of<B, float>&& zeros,
                                initial_momentum<buffer_of<B, float>>&& given) {
  if (given.momentum.size() == 0) return s.start_from(std::move(zeros));
  scale_given(s, given);
  s.start_from(std::move(given.momentum));
}

/// Writes whether an exchange has started. An archive that reads backs up what the exchange holds,
/// in `places`, and gives it memory as if it had just started, or none.
template <class X, class Archive, class... Places>
void archive_start(X& x, Archive& a, const detail::exchange_memory& memory, Places&... places) {
  bool started = x.started();
  a.local(started);
  if (Archive::reading) {
    (a.back_up(places), ...);
    x.sender().back_up(a);
    x.start(started ? x.allocate(memory) : typename X::space{}, {});
  }
}

}  // namespace detail

}}  // namespace onebit
