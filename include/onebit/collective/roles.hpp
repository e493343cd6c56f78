// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/encode.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/collective/message_header.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/launch.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <utility>
#include <vector>

/// The two roles of a rank in an exchange. As a worker it encodes its own message; as a server it
/// averages what all ranks sent of its chunk. Both encode by the same tables.
namespace onebit::inline v0_2 {

/// The flat axis in the backend's memory, the slots of its chunks, and the encode passes: of a
/// worker, bucket by bucket, and of a server, chunk by chunk. It carries nothing.
///
/// Memory: tables of 0.03 bytes per element.
template <Compressor C, class B>
class encoder {
 public:
  template <class T>
  using buffer = buffer_of<B, T>;

  static constexpr bool by_word = codec_traits<C>::by_word, scaled = codec_traits<C>::scaled;

  encoder(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks, int n_buckets = 1);

  [[nodiscard]] const C& codec() const { return codec_; }
  [[nodiscard]] B& backend() { return backend_; }
  [[nodiscard]] const layout& axis() const { return axis_; }
  [[nodiscard]] const slot_format& format() const { return format_; }
  [[nodiscard]] const tile* tiles() const { return tiles_.data(); }
  [[nodiscard]] float* sums() { return sums_.data(); }
  [[nodiscard]] const scale_entry* segments() const { return segments_.data(); }
  [[nodiscard]] std::size_t n_buckets() const {
    return static_cast<std::size_t>(axis_.n_buckets());
  }
  [[nodiscard]] std::size_t flat_elements() const { return axis_.n_words() * word_elements; }
  /// What a rule sees of a step on this axis.
  template <class P, class G>
  [[nodiscard]] step_context<B, P, G> at(const tensor_entry<P, G>* tensors,
                                         const tensor_scalars* scalars, const step_scalars* now,
                                         active_mask active) {
    return {{tiles_.data(), tensor_tiles_.data(), sums_.data(), tensors, scalars, now, active},
            backend_,
            axis_};
  }

  /// Encodes produce(residual) of one bucket into its slots, one per chunk, and writes their
  /// status. One pass. In a step that is called off already nothing is encoded; the status still
  /// tells the others.
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
                                                              sums_.data()});
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
  /// Encodes a chunk's mean (or another message that says its `format`) into its slot, among
  /// `slots` that hold one slot per bucket; `end` runs the kernel of its scales, which it is given,
  /// and what follows.
  template <class Mean, class Feedback, class Undo, class End>
  [[gnu::cold]] void encode_chunk(const Mean& mean, const Feedback& feedback, int chunk,
                                  const exchange_args<Undo>& t, std::byte* slots, const End& end) {
    const slot_format& f = mean.format;
    const tile_range own = axis_.chunk_tiles(chunk);
    backend_.launch(own.end - own.begin,
                    encode_kernel<C, Mean, Feedback>{codec_,
                                                     mean,
                                                     feedback,
                                                     t.active,
                                                     {tiles_.data(), own.begin},
                                                     {f, slots, f.chunks_per_bucket},
                                                     sums_.data()});
    std::byte* slot = slots + static_cast<std::size_t>(chunk) / f.chunks_per_bucket * f.slot_bytes;
    const tile_range parts = axis_.chunk_segments(chunk);
    const scale_kernel<C> scale{codec_,
                                segments_.data() + parts.begin,
                                sums_.data(),
                                nullptr,
                                scaled ? slot : nullptr,
                                f.scales_at,
                                t.now,
                                t.bound};
    end(calls{scale, std::size_t{parts.end - parts.begin}});
  }
  /// What n slots in `received` say on average.
  [[nodiscard]] mean_view<C> mean(const slot_format& format, const std::byte* received,
                                  int n) const {
    return {codec_, format, received, n, 1.0F / static_cast<float>(n), {}};
  }

  /// Writes the status of n slots of a bucket; `part` is its number, and more: see message_tag.
  [[nodiscard]] status_kernel write_status(std::byte* slots, std::size_t n, std::uint32_t part,
                                           step_scalars* now) const {
    return {now, slots, format_, static_cast<std::uint32_t>(n), part};
  }
  /// Runs `each`, and `last` after it.
  template <class Each>
  [[gnu::cold]] void then_write_status(const calls<Each>& each, const status_kernel& last) {
    launch_then_once(backend_, each, last, n_ended());
  }
  /// The same, and reads the status of slots that came before `last`.
  template <class Each>
  [[gnu::cold]] void check_then_write_status(const calls<Each>& each, const check_kernel& what,
                                             const status_kernel& last) {
    launch_then_once(backend_, each, in_turn{completed(what), last}, n_ended());
  }
  /// Reads the status of slots that came; the rest of `what` says which they are.
  [[gnu::cold]] void check(const check_kernel& what) { backend_.launch(1, completed(what)); }
  [[nodiscard]] std::uint32_t* n_ended() { return n_ended_.data(); }  ///< see then_once

  /// The scales of the encode pass of this step, by group.
  [[nodiscard]] const float* new_scales() { return scales_.next.data(); }
  /// A field, on the flat axis.
  template <class Field>
  [[nodiscard, gnu::cold]] buffer<float> flatten(const Field& field) {
    auto flat = backend_.template make_buffer<float>(flat_elements());
    backend_.launch(axis_.tiles().size(), flatten_kernel<Field>{field, tiles(), flat.data()});
    return flat;
  }
  /// The elements of `active` count in scales from now on. Reads the mask.
  [[gnu::cold]] void count_active(active_mask active) {
    backend_.launch(axis_.tiles().size(),
                    count_active_kernel{active, tiles_.data(), counts_.data()});
    for (auto* entries : {&groups_, &segments_}) {
      backend_.launch(entries->size(), total_active_kernel{counts_.data(), entries->data()});
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
  buffer<float> sums_;            ///< by tile: see step_tables
  buffer<std::uint32_t> counts_;  ///< by tile: active elements
  buffer<scale_entry> groups_, segments_;
  buffer<std::uint32_t> n_ended_;  ///< see then_once
  two_sided<B, float> scales_;     ///< by group; only a sender has a current side

 private:
  [[nodiscard]] check_kernel completed(check_kernel what) const {
    what.format = format_;
    return what;
  }
};

template <Compressor C, class B>
[[gnu::cold]] encoder<C, B>::encoder(C codec, B backend, std::span<const std::size_t> sizes,
                                     int n_chunks, int n_buckets)
    : codec_(std::move(codec)),
      backend_(std::move(backend)),
      axis_(sizes, n_chunks, codec_traits<C>::scales(codec_), n_buckets,
            by_word ? 0 : tile_words) {  // a tile compressor sees what a tile has
  std::vector<std::uint64_t> offsets;
  format_ = make_slot_format(codec_, axis_, offsets);
  offsets_ = to_buffer(backend_, offsets);
  format_.tile_offsets = offsets_.data();
  const std::size_t n_tiles = axis_.tiles().size();
  tiles_ = to_buffer(backend_, axis_.tiles());
  tensor_tiles_ = to_buffer(backend_, axis_.tensor_tiles());
  sums_ = backend_.template make_buffer<float>(step_tables_sums * n_tiles);
  std::vector<scale_entry> groups, segments;
  make_scale_entries(axis_, groups, segments);
  groups_ = to_buffer(backend_, groups);
  segments_ = to_buffer(backend_, segments);
  scales_.next = backend_.template make_buffer<float>(groups.size());
  counts_ = backend_.template make_buffer<std::uint32_t>(n_tiles);
  n_ended_ = backend_.template make_buffer<std::uint32_t>(1);
}

/// A rank as a worker: an encoder with the compensated values that it carries.
///
/// Memory: 4 bytes carried per element, and the encoder's.
template <Compressor C, class B>
class sender : public encoder<C, B> {
  using base = encoder<C, B>;
  using base::axis_, base::backend_, base::codec_, base::scales_, base::tiles_;

 public:
  template <class T>
  using buffer = buffer_of<B, T>;

  sender(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks, int n_buckets = 1)
      : base(std::move(codec), std::move(backend), sizes, n_chunks, n_buckets),
        saved_(backend_.template make_buffer<std::uint32_t>(axis_.tiles().size())) {
    scales_.current = backend_.template make_buffer<float>(scales_.next.size());
  }

  /// Encodes produce(residual) of one bucket. One pass: for `sign` 12 bytes read per element
  /// (compensated value, gradient, inverse denominator), and the bits written; with undo_in_buffer
  /// the compensated value too, and the old one.
  template <class Produce, class Undo>
  [[gnu::cold]] void encode(const Produce& produce, const exchange_args<Undo>& t, std::byte* slots,
                            int bucket) {
    base::encode_bucket(produce, worker_feedback<C, Undo>{residual(), saved_.data(), t.undo}, t,
                        slots, bucket);
  }
  /// compensated = produce(residual), unless the step is called off: what `encode` did not do, with
  /// undo_by_repeating; and `update` of each tile after it. 12 bytes per element, and gradients.
  template <class Produce, class Undo, class Update>
  [[gnu::cold]] void repeat(const Produce& produce, const exchange_args<Undo>& t,
                            const Update& update) {
    const auto all = accumulation(produce, t, axis_.all_tiles());
    launch_unless_skipped(backend_, t.now, all.n, tile_by_tile{all.kernel, update});
  }
  /// The same without an exchange.
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const exchange_args<Undo>& t) {
    rescale(produce, t, axis_.all_tiles());
  }
  /// When a step has been kept, and the units of its message change: the residual becomes
  /// rescaled(residual), so that the next message, which takes what was agreed in the old units, is
  /// one in the new. 12 bytes per element.
  template <class Rescaled, class Undo>
  [[gnu::cold]] void rescale(const Rescaled& rescaled, const exchange_args<Undo>& t,
                             tile_range tiles) {
    const auto all = accumulation(rescaled, t, tiles);
    launch_unless_skipped(backend_, t.now, all.n, all.kernel);
    const copy_kernel zero{nullptr, scales_.current.data(), scales_.current.size()};
    launch_unless_skipped(backend_, t.now, zero.launches(), zero);
  }
  /// Ends a step with an encode pass: the scales of it hold, or the compensated values are those of
  /// before, bit for bit; with other kernels that end the step, none of which hangs on another.
  template <class Undo, class... Kernels>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t, const calls<Kernels>&... others) {
    if constexpr (Undo::repeats) {
      launch_abreast(backend_, others..., scales_.keeping(t.now));
    } else {
      const take_back_kernel<Undo> back{t.undo,        tiles_.data(), compensated(),
                                        saved_.data(), t.now,         axis_.tiles().size()};
      launch_abreast(backend_, others..., calls{back, back.launches()}, scales_.keeping(t.now));
    }
  }

  /// This rank's residual, as a field: 0 where an element is not active.
  [[nodiscard]] active_part<residual_field<C>> residual(active_mask active) {
    return {residual(), active};
  }
  /// Whether it carries compensated values.
  [[nodiscard]] bool carries() const { return compensated_.size() > 0; }
  /// What it stands for.
  [[nodiscard]] compensated_words compensated() {
    return {compensated_.data(), first_compensated_};
  }
  /// The scales of the last exchange that was kept, by group; in the backend's memory.
  [[nodiscard]] std::span<const float> scales() const {
    return {scales_.current.data(), scales_.current.size()};
  }
  /// Takes over the compensated values of the words from `first` on: a residual, no matter what was
  /// sent before.
  [[gnu::cold]] void start_from(buffer<float>&& values, std::size_t first = 0) {
    compensated_ = std::move(values);
    first_compensated_ = first;
    const copy_kernel zero{nullptr, scales_.current.data(), scales_.current.size()};
    backend_.launch(zero.launches(), zero);
  }
  /// Compensated values of n words of the flat axis: of zeros.
  [[nodiscard, gnu::cold]] buffer<float> make_compensated(std::size_t n_words) {
    return backend_.template make_buffer<float>(n_words * word_elements);
  }

  [[nodiscard]] std::size_t state_bytes() const {
    return compensated_.bytes() + scales_.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return base::work_bytes() + saved_.bytes();
  }
  /// What `archive` and `start_from` replace, for a reader.
  template <class Archive>
  [[gnu::cold]] void back_up(Archive& a) {
    two_sided<B, float> scales{backend_.template make_buffer<float>(scales_.current.size()),
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
  [[nodiscard]] residual_field<C> residual() {
    return {codec_, compensated(), scales_.current.data()};
  }
  template <class Produce, class Undo>
  [[nodiscard]] calls<accumulate_kernel<C, Produce>> accumulation(const Produce& produce,
                                                                  const exchange_args<Undo>& t,
                                                                  tile_range tiles) {
    return {{residual(), produce, t.active, {tiles_.data(), tiles.begin}},
            std::size_t{tiles.end - tiles.begin}};
  }

  buffer<std::uint32_t> saved_;  ///< by tile: see worker_feedback
  buffer<float> compensated_;
  std::size_t first_compensated_ = 0;  ///< word
};

/// A rank as a server: it averages what all ranks sent of its chunks, and encodes the mean with a
/// residual of its own. It uses the tables of an encoder; `format` says where a chunk's words lie
/// among those that it serves.
///
/// Its residual is read while the step may still be called off and written by `finish`: it cannot
/// be rebuilt lazily like the worker's, since it depends on messages that are gone by then. Memory:
/// 4 bytes per element that it serves.
template <Compressor C, class B>
class server {
 public:
  using residual_buffer = buffer_of<B, float>;

  /// From a residual, by element that it serves.
  void start(residual_buffer&& residual) noexcept { residual_ = std::move(residual); }
  /// See encoder::encode_chunk.
  template <class Mean, class Undo, class End>
  [[gnu::cold]] void average_chunk(encoder<C, B>& s, const Mean& mean, int chunk,
                                   const exchange_args<Undo>& t, std::byte* slots, const End& end) {
    s.encode_chunk(mean, server_feedback{words(), mean.format}, chunk, t, slots, end);
  }
  /// What ends a step for a chunk: the residual is what was meant minus what was received (no
  /// matter of which elements), unless the step was called off. One pass over the chunk.
  template <class Mean, class Undo>
  [[nodiscard, gnu::cold]] auto finish(encoder<C, B>& s, const Mean& mean, int chunk,
                                       const gathered_view<C>& latest,
                                       const exchange_args<Undo>& t) {
    using kernel = server_residual_kernel<Mean, gathered_view<C>>;
    const tile_range own = s.axis().chunk_tiles(chunk);
    return calls{detail::unless_skipped<kernel>{
                     {mean, latest, t.active, {s.tiles(), own.begin}, mean.format, words()}, t.now},
                 std::size_t{own.end - own.begin}};
  }
  /// A chunk's residual in other units: see sender::rescale.
  template <class Undo>
  [[gnu::cold]] void rescale(encoder<C, B>& s, const slot_format& format, int chunk,
                             const float* factors, const exchange_args<Undo>& t) {
    const tile_range own = s.axis().chunk_tiles(chunk);
    launch_unless_skipped(
        s.backend(), t.now, own.end - own.begin,
        rescale_residual_kernel{factors, {s.tiles(), own.begin}, format, words()});
  }
  /// By element, chunk after chunk.
  [[nodiscard]] const residual_buffer& residual() const { return residual_; }
  [[nodiscard]] compensated_words words() { return {residual_.data(), 0}; }
  [[nodiscard]] std::size_t state_bytes() const { return residual_.bytes(); }
  /// For a reader: before `start`.
  [[nodiscard]] residual_buffer& residual_place() { return residual_; }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    a.buffer(residual_, backend);
  }

 private:
  residual_buffer residual_;
};

// What exchanges share.

/// The buckets of a step on their way through the two phases of an exchange: each rank's slots are
/// scattered to the ranks that serve them, and what these say of them is gathered. The last bucket
/// goes first, as a backward pass produces gradients. With several buckets one travels while
/// another is encoded or served, if the transport can; with one the transport waits.
class two_phases {
 public:
  two_phases(communicator w, int n_buckets, std::size_t slot_bytes)
      : comm_(std::move(w)), n_(n_buckets), slot_bytes_(slot_bytes) {
    for (auto* requests : {&scattered_, &gathered_})
      requests->reserve(static_cast<std::size_t>(n_));
  }

  [[nodiscard]] const communicator& comm() const { return comm_; }
  [[nodiscard]] bool travels() const { return comm_.size() > 1; }
  /// Buckets of this step, in the order in which they go.
  [[nodiscard]] int n_sent() const { return n_sent_; }
  [[nodiscard]] int n_unsent() const { return n_ - n_sent_; }
  [[nodiscard]] int n_served() const { return n_served_; }
  /// The i-th of them.
  [[nodiscard]] int bucket_at(int i) const { return n_ - 1 - i; }
  /// Whether the next should be served now: it has had time to travel while another was encoded.
  [[nodiscard]] bool serves_now() const {
    return travels() && n_served_ + (n_unsent() > 0 ? 1 : 0) < n_sent_;
  }

  /// The bucket that is sent next: encode it, and then scatter it.
  [[nodiscard]] int next_to_send() { return bucket_at(n_sent_++); }
  /// Collective: W slots of it.
  [[gnu::cold]] void scatter(const std::byte* sent, std::byte* received) {
    if (n_ > 1) {
      scattered_.push_back(comm_.start_all_to_all(sent, received, slot_bytes_));
    } else {
      comm_.all_to_all(sent, received, slot_bytes_);
    }
  }
  /// Waits for the bucket that is served next: average it, and then gather it.
  [[nodiscard, gnu::cold]] int next_to_serve() {
    wait(scattered_, n_served_);
    return bucket_at(n_served_++);
  }
  /// Reads the status of n buckets, the first of which is `part`: its number, and more.
  [[nodiscard]] check_kernel check(step_scalars* now, std::byte* slots, int n,
                                   std::uint32_t part) const {
    const auto w = static_cast<std::uint32_t>(comm_.size());
    return {.now = now,
            .slots = slots,
            .n = static_cast<std::uint32_t>(n) * w,
            .part = part,
            .ranks = {.n = w, .slots_per_bucket = w}};
  }
  /// Of what was gathered: where nothing travels that is what was sent.
  [[nodiscard]] std::uint32_t part_of_gathered() const {
    return travels() ? message_tag::from_server : 0;
  }
  /// Collective: this rank's slot of it, and those of all.
  [[gnu::cold]] void gather(const std::byte* slot, std::byte* all) {
    if (n_ > 1) {
      gathered_.push_back(comm_.start_all_gather(slot, all, slot_bytes_));
    } else {
      comm_.all_gather(slot, all, slot_bytes_);
    }
  }
  /// Waits until the i-th bucket was gathered.
  void wait_gathered(int i) { wait(gathered_, i); }
  /// Lets the transport make progress.
  [[gnu::cold]] void poke() {
    for (request& r : scattered_) {
      if (!r.test()) return;
    }
  }
  /// Ends a step; waits for what is still under way.
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

/// The base of exchanges: a sender, and the ranks that its messages go to.
template <Compressor C, class B>
class flat_exchange {
 public:
  using backend_type = B;
  using sender_type = onebit::sender<C, B>;
  using float_buffer = buffer_of<B, float>;
  using byte_buffer = buffer_of<B, std::byte>;

  /// With one rank nothing would travel.
  [[nodiscard]] bool travels() const { return comm_.size() > 1; }
  /// Whether its encode pass overwrites what must be saved.
  [[nodiscard]] bool needs_undo(exchange_memory) const { return true; }
  [[nodiscard]] const layout& axis() const { return sender_.axis(); }
  [[nodiscard]] std::size_t slot_bytes() const { return sender_.format().slot_bytes; }
  /// The half that encodes: for inspection, and for what adds up by other means.
  [[nodiscard]] sender_type& sender() { return sender_; }
  void count_active(active_mask active) { sender_.count_active(active); }
  /// Adds a message to what is sent later. One pass.
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const exchange_args<Undo>& t) {
    sender_.accumulate(produce, t);
  }
  /// The tiles whose compensated values its sender holds.
  [[nodiscard]] tile_range compensated_tiles() const { return axis().all_tiles(); }
  /// Bytes sent to other nodes so far, where it knows of nodes.
  [[nodiscard]] std::uint64_t sent_across() const { return 0; }
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

/// A momentum that is handed over becomes what the next message takes of it.
template <Compressor C, class B>
[[gnu::cold]] void scale_given(encoder<C, B>& s, initial_momentum<buffer_of<B, float>>& given) {
  s.backend().launch(
      s.axis().tiles().size(),
      scale_in_place_kernel{given.momentum.data(), s.tiles(), given.factors, given.scalars});
}
/// Starts from a momentum that was agreed without compression, or from nothing: what the next
/// message takes of the momentum is the residual of a zero message. The same bits as that momentum
/// and no residual, since messages start from the residual.
template <Compressor C, class B>
[[gnu::cold]] void start_sender(sender<C, B>& s, buffer_of<B, float>&& zeros,
                                initial_momentum<buffer_of<B, float>>&& given) {
  if (given.momentum.size() == 0) return s.start_from(std::move(zeros));
  scale_given(s, given);
  s.start_from(std::move(given.momentum));
}

/// Writes whether an exchange has started; reading, puts aside what it holds, in `places`, and
/// gives it memory as if it had just started, or none.
template <class X, class Archive, class... Places>
void archive_start(X& x, Archive& a, const exchange_memory& memory, Places&... places) {
  bool started = x.started();
  a.local(started);
  if (Archive::reading) {
    (a.back_up(places), ...);
    x.sender().back_up(a);
    x.start(started ? x.allocate(memory) : typename X::space{}, {});
  }
}

}  // namespace onebit::inline v0_2
