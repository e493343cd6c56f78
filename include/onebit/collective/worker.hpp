// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/encode.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/collective/message_header.hpp>
#include <onebit/compressor/identity.hpp>
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
/// averages what all ranks sent of its chunk.
namespace onebit::inline v0_2 {

/// The flat axis in the backend's memory, the slots of its chunks, the compensated values, and the
/// encode pass.
///
/// Memory: 4 bytes carried per element, if the compressor has a residual; tables of 0.03.
template <Compressor C, class B>
class sender {
 public:
  template <class T>
  using buffer = buffer_of<B, T>;

  static constexpr bool has_residual = [] {
    if constexpr (WordCompressor<C>) return bool{C::has_residual};
    return true;
  }();
  static constexpr bool by_word = has_residual && WordCompressor<C>;
  static constexpr bool scaled = [] {
    if constexpr (WordCompressor<C>) return bool{C::scaled};
    return false;
  }();

  sender(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks, int n_buckets = 1);

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
  /// status. One pass: for `sign` 12 bytes read per element (compensated value, gradient, inverse
  /// denominator), and the bits written; with undo_in_buffer the compensated value too, and the old
  /// one.
  template <class Produce, class Undo>
  [[gnu::cold]] void encode(const Produce& produce, const exchange_args<Undo>& t, std::byte* slots,
                            int bucket) {
    const onebit::bucket& part = axis_.bucket_at(bucket);
    if constexpr (has_residual) {
      run_encode(produce, worker_feedback<C, Undo>{residual(), saved_.data(), t.undo}, t, slots,
                 part.tiles);
    } else {
      run_encode(produce, no_feedback{}, t, slots, part.tiles);
    }
    const group_scale_kernel<C> scale{
        {codec_, groups_.data() + part.groups.begin, sums_.data(),
         scales_.next() + part.groups.begin, nullptr, 0, t.now, t.bound},
        scaled ? segments_.data() : nullptr,
        slots,
        format_};
    const auto n = static_cast<std::size_t>(axis_.n_chunks());
    then_write_status(
        calls{scale, std::size_t{part.groups.end - part.groups.begin}},
        write_status(slots + static_cast<std::size_t>(bucket) * n * format_.slot_bytes, n,
                     static_cast<std::uint32_t>(bucket), t.now));
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
    accumulate(produce, t, axis_.all_tiles());
  }
  /// When a step has been kept, and the units of its message change: the residual becomes
  /// rescaled(residual), so that the next message, which takes what was agreed in the old units, is
  /// one in the new. A compressor that carries nothing has no residual: what was agreed, n messages
  /// at `previous`, is multiplied by rescaled.ratios (by element: old unit over new). 12 bytes per
  /// element.
  template <class Rescaled, class Undo>
  [[gnu::cold]] void rescale(const Rescaled& rescaled, const exchange_args<Undo>& t,
                             tile_range tiles, [[maybe_unused]] std::byte* previous = nullptr,
                             [[maybe_unused]] std::size_t n = 1) {
    if constexpr (has_residual) {
      accumulate(rescaled, t, tiles);
    } else if (previous != nullptr) {
      const std::size_t bytes = format_.slot_bytes * static_cast<std::size_t>(axis_.n_slots());
      launch_unless_skipped(backend_, t.now, axis_.tiles().size(),
                            rescale_message_kernel<C>{codec_, rescaled.ratios, this->tiles(),
                                                      format_, previous, n, bytes});
    }
  }
  /// Ends a step with an encode pass: the scales of it hold, or the compensated values are those of
  /// before, bit for bit.
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    finish_with(t);
  }
  /// The same, and other kernels that end the step, none of which hangs on another.
  template <class Undo, class... Kernels>
  [[gnu::cold]] void finish_with(const exchange_args<Undo>& t, const calls<Kernels>&... others) {
    if constexpr (has_residual && Undo::repeats) {
      launch_abreast(backend_, others..., scales_.keeping(t.now));
    } else if constexpr (has_residual) {
      const take_back_kernel<Undo> back{t.undo,        tiles_.data(), compensated(),
                                        saved_.data(), t.now,         axis_.tiles().size()};
      launch_abreast(backend_, others..., calls{back, back.launches()}, scales_.keeping(t.now));
    } else if constexpr (sizeof...(others) > 0) {
      launch_abreast(backend_, others...);
    }
  }

  /// This rank's residual, as a field: 0 where an element is not active.
  [[nodiscard]] active_part<residual_field<C>> residual(active_mask active) {
    return {residual(), active};
  }
  /// What it stands for.
  [[nodiscard]] compensated_words compensated() {
    return {compensated_.data(), first_compensated_};
  }
  /// The scales of the last exchange that was kept, by group; in the backend's memory.
  [[nodiscard]] std::span<const float> scales() const {
    return {scales_.current(), scales_.size()};
  }
  /// Those of the encode pass of this step.
  [[nodiscard]] const float* new_scales() { return scales_.next(); }
  /// Takes over the compensated values of the words from `first` on: a residual, no matter what was
  /// sent before.
  [[gnu::cold]] void start_from(buffer<float>&& values, std::size_t first = 0) {
    compensated_ = std::move(values);
    first_compensated_ = first;
    const copy_kernel zero{nullptr, scales_.current(), scales_.size()};
    backend_.launch(zero.launches(), zero);
  }
  /// Room for n words of the flat axis, as it carries them: of zeros.
  [[nodiscard, gnu::cold]] buffer<float> make_compensated(std::size_t n_words) {
    return backend_.template make_buffer<float>(n_words * word_elements);
  }
  /// Room for all of them, where no momentum that is handed over becomes it.
  [[nodiscard, gnu::cold]] buffer<float> make_compensated_if(bool from_nothing) {
    return make_compensated(has_residual && from_nothing ? axis_.n_words() : 0);
  }
  /// A field, on the flat axis.
  template <class Field>
  [[nodiscard, gnu::cold]] buffer<float> flatten(const Field& field) {
    auto flat = backend_.template make_buffer<float>(flat_elements());
    auto* const to = reinterpret_cast<std::byte*>(flat.data());
    const store_field_kernel<Field> store{field, tiles(), flat_format(axis_), to};
    backend_.launch(axis_.tiles().size(), store);
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

  [[nodiscard]] std::size_t state_bytes() const { return compensated_.bytes() + scales_.bytes(); }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return scales_.next_bytes() + sums_.bytes() + tiles_.bytes() + tensor_tiles_.bytes() +
           groups_.bytes() + segments_.bytes() + offsets_.bytes() + counts_.bytes() +
           saved_.bytes() + n_ended_.bytes();
  }
  /// What `archive` and `start_from` replace, for a reader.
  template <class Archive>
  [[gnu::cold]] void back_up(Archive& a) {
    two_sided<B, float> scales{backend_.template make_buffer<float>(scales_.size()),
                               backend_.template make_buffer<float>(scales_.size())};
    a.back_up(compensated_);
    a.back_up(first_compensated_);
    a.back_up(scales_);
    scales_ = std::move(scales);
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a) {
    a.buffer(compensated_, backend_);
    scales_.archive(a, backend_);
  }

 private:
  [[nodiscard]] residual_field<C> residual() { return {codec_, compensated(), scales_.current()}; }
  template <class Produce, class Undo>
  [[nodiscard]] calls<accumulate_kernel<C, Produce>> accumulation(const Produce& produce,
                                                                  const exchange_args<Undo>& t,
                                                                  tile_range tiles) {
    return {{residual(), produce, t.active, {tiles_.data(), tiles.begin}},
            std::size_t{tiles.end - tiles.begin}};
  }
  template <class Produce, class Undo>
  [[gnu::cold]] void accumulate(const Produce& produce, const exchange_args<Undo>& t,
                                tile_range tiles) {
    const auto all = accumulation(produce, t, tiles);
    launch_unless_skipped(backend_, t.now, all.n, all.kernel);
    const copy_kernel zero{nullptr, scales_.current(), scales_.size()};
    launch_unless_skipped(backend_, t.now, zero.launches(), zero);
  }
  [[nodiscard]] check_kernel completed(check_kernel what) const {
    what.format = format_;
    return what;
  }
  static granularity granularity_of(const C& codec) {
    if constexpr (WordCompressor<C>) return codec.scale_granularity();
    return granularity::vector();
  }
  /// In a step that is called off already nothing is encoded; the status still tells the others.
  template <class Produce, class Feedback, class Undo>
  [[gnu::cold]] void run_encode(const Produce& produce, const Feedback& feedback,
                                const exchange_args<Undo>& t, std::byte* slots, tile_range part) {
    launch_unless_skipped(backend_, t.now, part.end - part.begin,
                          encode_kernel<C, Produce, Feedback>{codec_,
                                                              produce,
                                                              feedback,
                                                              t.active,
                                                              {tiles_.data(), part.begin},
                                                              {format_, slots, 1},
                                                              sums_.data()});
  }

  C codec_;
  B backend_;
  layout axis_;
  slot_format format_;
  buffer<std::uint64_t> offsets_;
  buffer<tile> tiles_;
  buffer<tile_range> tensor_tiles_;
  buffer<float> sums_;            ///< by tile
  buffer<std::uint32_t> counts_;  ///< by tile: active elements
  buffer<std::uint32_t> saved_;   ///< by tile: see worker_feedback
  buffer<scale_entry> groups_, segments_;
  buffer<std::uint32_t> n_ended_;  ///< see then_once
  two_sided<B, float> scales_;     ///< by group
  buffer<float> compensated_;
  std::size_t first_compensated_ = 0;  ///< word
};

template <Compressor C, class B>
[[gnu::cold]] sender<C, B>::sender(C codec, B backend, std::span<const std::size_t> sizes,
                                   int n_chunks, int n_buckets)
    : codec_(std::move(codec)),
      backend_(std::move(backend)),
      axis_(sizes, n_chunks, granularity_of(codec_), n_buckets,
            WordCompressor<C> ? 0 : tile_words) {  // a tile compressor sees what a tile has
  std::vector<std::uint64_t> offsets;
  format_ = make_slot_format(codec_, axis_, offsets);
  offsets_ = to_buffer(backend_, offsets);
  format_.tile_offsets = offsets_.data();
  const std::size_t n_tiles = axis_.tiles().size();
  tiles_ = to_buffer(backend_, axis_.tiles());
  tensor_tiles_ = to_buffer(backend_, axis_.tensor_tiles());
  sums_ = backend_.template make_buffer<float>(n_tiles);
  std::vector<scale_entry> groups, segments;
  make_scale_entries(axis_, groups, segments);
  groups_ = to_buffer(backend_, groups);
  segments_ = to_buffer(backend_, segments);
  scales_ = {backend_.template make_buffer<float>(groups.size()),
             backend_.template make_buffer<float>(groups.size())};
  counts_ = backend_.template make_buffer<std::uint32_t>(n_tiles);
  n_ended_ = backend_.template make_buffer<std::uint32_t>(1);
  if constexpr (has_residual) saved_ = backend_.template make_buffer<std::uint32_t>(n_tiles);
}

// The half of an exchange that a rank plays for one chunk: it averages what all ranks sent of the
// chunk, and encodes the mean with a residual of its own.

/// Serves chunks of the axis of a sender, whose tables it uses; `format` says where a chunk's words
/// lie among those that it serves.
///
/// Its residual is read while the step may still be called off and written by `finish`: it cannot
/// be rebuilt lazily like the worker's, since it depends on messages that are gone by then. Memory:
/// 4 bytes per element that it serves, if the compressor has a residual.
template <Compressor C, class B>
class server {
 public:
  using residual_buffer = buffer_of<B, float>;
  static constexpr bool has_residual = sender<C, B>::has_residual;

  /// A residual of zeros for so many words; given to `start`.
  [[nodiscard]] static residual_buffer make_residual(sender<C, B>& s, std::size_t n_words) {
    return s.make_compensated(has_residual ? n_words : 0);
  }
  void start(residual_buffer&& residual) noexcept { residual_ = std::move(residual); }

  /// What the slots in `received` say on average.
  [[nodiscard]] static mean_view<C> mean(const C& codec, const slot_format& format,
                                         const std::byte* received, int n_ranks) {
    return {codec, format, received, n_ranks, 1.0F / static_cast<float>(n_ranks), {}};
  }

  /// Encodes a chunk's mean (or another message that says its `format`) into its slot, among
  /// `slots` that hold one slot per bucket; `end` runs the kernel of its scales, which it is given,
  /// and what follows.
  template <class Mean, class Undo, class End>
  [[gnu::cold]] void average_chunk(sender<C, B>& s, const Mean& mean, int chunk,
                                   const exchange_args<Undo>& t, std::byte* slots, const End& end) {
    const slot_format& f = mean.format;
    const tile_range own = s.axis().chunk_tiles(chunk);
    if constexpr (has_residual) {
      encode(s, mean, server_feedback{words(), f}, own, t.active, slots);
    } else {
      encode(s, mean, no_feedback{}, own, t.active, slots);
    }
    std::byte* slot = slots + static_cast<std::size_t>(chunk) / f.chunks_per_bucket * f.slot_bytes;
    const tile_range segments = s.axis().chunk_segments(chunk);
    const scale_kernel<C> scale{s.codec(),
                                s.segments() + segments.begin,
                                s.sums(),
                                nullptr,
                                sender<C, B>::scaled ? slot : nullptr,
                                f.scales_at,
                                t.now,
                                t.bound};
    end(calls{scale, std::size_t{segments.end - segments.begin}});
  }
  /// What ends a step for a chunk, where the compressor has a residual: the residual is what was
  /// meant minus what was received (no matter of which elements), unless the step was called off.
  /// One pass over the chunk.
  template <class Mean, class Undo>
  [[nodiscard, gnu::cold]] auto finish(sender<C, B>& s, const Mean& mean, int chunk,
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
  [[gnu::cold]] void rescale(sender<C, B>& s, const slot_format& format, int chunk,
                             const float* factors, const exchange_args<Undo>& t) {
    if constexpr (has_residual) {
      const tile_range own = s.axis().chunk_tiles(chunk);
      launch_unless_skipped(
          s.backend(), t.now, own.end - own.begin,
          rescale_residual_kernel{factors, {s.tiles(), own.begin}, format, words()});
    }
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
  template <class Mean, class Feedback>
  [[gnu::cold]] static void encode(sender<C, B>& s, const Mean& mean, const Feedback& feedback,
                                   tile_range own, active_mask active, std::byte* slots) {
    s.backend().launch(own.end - own.begin, encode_kernel<C, Mean, Feedback>{
                                                s.codec(),
                                                mean,
                                                feedback,
                                                active,
                                                {s.tiles(), own.begin},
                                                {mean.format, slots, mean.format.chunks_per_bucket},
                                                s.sums()});
  }

  residual_buffer residual_;
};

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

// What exchanges share.

/// The base of exchanges on one level: every rank encodes messages of its own for the whole axis.
template <Compressor C, class B>
class flat_exchange {
 public:
  using backend_type = B;
  using sender_type = onebit::sender<C, B>;
  using float_buffer = buffer_of<B, float>;
  using byte_buffer = buffer_of<B, std::byte>;
  static constexpr bool has_residual = sender_type::has_residual;

  /// With one rank nothing would travel.
  [[nodiscard]] bool travels() const { return comm_.size() > 1; }
  /// Whether its encode pass overwrites what must be saved.
  [[nodiscard]] bool needs_undo() const { return has_residual; }
  [[nodiscard]] const layout& axis() const { return sender_.axis(); }
  [[nodiscard]] std::size_t slot_bytes() const { return sender_.format().slot_bytes; }
  /// The half that encodes: for inspection, and for what adds up by other means.
  [[nodiscard]] sender_type& sender() { return sender_; }
  void count_active(active_mask active) { sender_.count_active(active); }
  /// Before `finish`, with undo_by_repeating: stores the compensated values, if the step is kept,
  /// and runs `update` of each tile after it.
  template <class Produce, class Undo, class Update>
  [[gnu::cold]] void repeat(const Produce& produce, const exchange_args<Undo>& t,
                            const Update& update) {
    sender_.repeat(produce, t, update);
  }
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

/// Scales a momentum that is handed over to what the compressor carries or sends of it.
template <Compressor C, class B>
[[gnu::cold]] void take_over(sender<C, B>& s, initial_momentum<buffer_of<B, float>>& given) {
  s.backend().launch(s.axis().tiles().size(),
                     scale_in_place_kernel{given.momentum.data(), s.tiles(), given.factors,
                                           sender<C, B>::has_residual ? given.scalars : nullptr});
}

/// Stores the flat axis as the message of each of n ranks, all the same.
template <Compressor C, class B>
[[gnu::cold]] void store_flat(sender<C, B>& s, const float* flat, std::byte* slots, int n = 1) {
  const std::size_t message = s.format().slot_bytes * static_cast<std::size_t>(s.axis().n_slots());
  for (int r = 0; r < n; ++r) {
    s.backend().launch(
        s.axis().tiles().size(),
        store_field_kernel<flat_field>{
            {flat}, s.tiles(), s.format(), slots + static_cast<std::size_t>(r) * message});
  }
}

/// Writes whether an exchange has started; reading, puts aside what it holds, in `places`, and
/// gives it memory as if it had just started, or none.
template <class X, class Archive, class... Places>
void archive_start(X& x, Archive& a, bool keeps_previous, Places&... places) {
  bool started = x.started();
  a.local(started);
  if constexpr (Archive::reading) {
    (a.back_up(places), ...);
    x.sender().back_up(a);
    x.start(started ? x.allocate(keeps_previous, true) : typename X::space{}, {});
  }
}

}  // namespace onebit::inline v0_2
