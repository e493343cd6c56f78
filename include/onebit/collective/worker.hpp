// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/kernels.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/step.hpp>
#include <span>
#include <utility>
#include <vector>

/// What every compressed collective does first: each rank encodes its own message.
namespace onebit {

/// Copies a vector into a backend's buffer.
template <class B, class T>
[[nodiscard]] auto to_buffer(B& backend, const std::vector<T>& from) {
  auto buffer = backend.template make_buffer<T>(from.size());
  backend.copy_in(buffer.data(), from.data(), from.size());
  return buffer;
}

/// The worker side of an exchange: layout, live mask, carried values, and the encode pass. `now`,
/// here and in the collectives, is the step in progress (step.hpp) in the backend's memory.
///
/// Memory: 4 bytes carried (if the compressor carries) and 1/8 byte of live mask per element.
template <Compressor C, class B>
class worker_phase {
 public:
  template <class T>
  using buffer = decltype(std::declval<B&>().template make_buffer<T>(0));

  static constexpr bool carries = [] {
    if constexpr (WordCompressor<C>) return bool{C::carries};
    return true;
  }();

  static_assert(
      !B::deferred || WordCompressor<C>,
      "onebit: a TileCompressor runs on the host only; on a device write the members of a "
      "WordCompressor as in onebit/compress/sign.hpp");

  worker_phase(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks,
               int n_buckets = 1)
      : codec_(std::move(codec)),
        backend_(std::move(backend)),
        axis_(sizes, n_chunks, granularity_of(codec_), n_buckets) {
    std::vector<std::uint64_t> offsets;
    format_ = make_slot_format(codec_, axis_, offsets);
    offsets_ = to_buffer(backend_, offsets);
    format_.tile_offsets = offsets_.data();
    tiles_ = to_buffer(backend_, axis_.tiles());
    tensor_tiles_ = to_buffer(backend_, axis_.tensor_tiles());
    sums_ = backend_.template make_buffer<float>(axis_.tiles().size());
    std::vector<scale_entry> groups, segments;
    for (const tile_range& g : axis_.groups()) groups.push_back({g, 0, 0, 0, count(g)});
    std::uint32_t place = 0, last_chunk = 0;
    for (const segment& s : axis_.segments()) {
      if (s.chunk != last_chunk) place = 0;
      last_chunk = s.chunk;
      segments.push_back({s.tiles, s.chunk, place++, s.group, count(s.tiles)});
    }
    groups_ = to_buffer(backend_, groups);
    segments_ = to_buffer(backend_, segments);
    scales_ = backend_.template make_buffer<float>(groups.size());
    new_scales_ = backend_.template make_buffer<float>(groups.size());
  }

  [[nodiscard]] const C& codec() const { return codec_; }
  [[nodiscard]] B& backend() { return backend_; }
  [[nodiscard]] const layout& axis() const { return axis_; }
  [[nodiscard]] const slot_format& format() const { return format_; }
  [[nodiscard]] const tile* tiles() const { return tiles_.data(); }
  /// By tensor.
  [[nodiscard]] const tile_range* tensor_tiles() const { return tensor_tiles_.data(); }
  [[nodiscard]] live_mask live() const {
    if (borrowed_.words != nullptr) return borrowed_;
    return {previews_ ? next_live_.data() : live_.data()};
  }
  [[nodiscard]] float* sums() { return sums_.data(); }
  [[nodiscard]] const scale_entry* segments() const { return segments_.data(); }
  [[nodiscard]] flat_part carried() { return {carried_.data(), carried_first_}; }

  /// Encodes produce(residual) of one bucket into its slots, one per chunk, and seals them. One
  /// pass: for `sign` 16 bytes read and written per element (carried and gradient, both ways) plus
  /// the bits. Buckets are encoded from the last to the first.
  template <class Produce, class Undo>
  void encode(const Produce& produce, const Undo& undo, step_scalars* now, std::byte* slots,
              int bucket) {
    const onebit::bucket& part = axis_.bucket_at(bucket);
    if constexpr (carries) {
      run_encode(produce, worker_carry<C, Undo>{codec_, carried(), scales_.data(), undo}, slots,
                 part.tiles);
    } else {
      run_encode(produce, no_carry{}, slots, part.tiles);
    }
    backend_.launch(part.groups.end - part.groups.begin,
                    scale_kernel<C>{codec_, groups_.data() + part.groups.begin, sums_.data(),
                                    new_scales_.data() + part.groups.begin, nullptr, 0, now});
    if constexpr (has_scales()) {
      backend_.launch(
          part.segments.end - part.segments.begin,
          seal_kernel{segments_.data() + part.segments.begin, new_scales_.data(), slots, format_});
    }
    const auto n = static_cast<std::size_t>(axis_.n_chunks());
    seal(slots + static_cast<std::size_t>(bucket) * n * format_.slot_bytes, n, now);
  }

  /// Calls the step off when not all that `produce` gives on this rank is finite. Not collective.
  /// One pass over what it reads.
  template <class Produce>
  void require_finite(const Produce& produce, step_scalars* now) {
    backend_.launch(tiles_.size(), finite_kernel<Produce>{produce, tiles_.data(), now});
  }
  /// carried = produce(residual), without an exchange. 16 bytes per element.
  template <class Produce>
  void accumulate(const Produce& produce, const step_scalars* now) {
    static_assert(carries);
    launch_commit(
        backend_, now, tiles_.size(),
        accumulate_kernel<C, Produce>{residual(), produce, live(), tiles_.data(), carried_.data()});
    const copy_kernel zero{nullptr, scales_.data(), scales_.size()};
    launch_commit(backend_, now, zero.launches(), zero);
  }
  /// From here on the carried buffer holds the residual itself.
  void hold_residual() {
    const copy_kernel zero{nullptr, scales_.data(), scales_.size()};
    backend_.launch(zero.launches(), zero);
  }

  /// Writes the status words of n slots.
  void seal(std::byte* slots, std::size_t n, step_scalars* now) {
    backend_.launch(1, status_kernel{now, slots, format_, static_cast<std::uint32_t>(n)});
  }

  /// Takes the encode pass of one bucket back: carried values are as before, bit for bit. With
  /// `if_skipped`, if the step was called off.
  template <class Undo>
  void rollback(const Undo& undo, const step_scalars* now, int bucket, bool if_skipped) {
    if constexpr (carries) {
      const tile_range part = axis_.bucket_at(bucket).tiles;
      const std::size_t n = part.end - part.begin;
      const rollback_kernel<Undo> kernel{undo, tiles_.data(), part.begin, carried()};
      if (if_skipped) {
        launch_rollback(backend_, now, n, kernel);
      } else {
        backend_.launch(n, kernel);
      }
    }
  }
  void commit(const step_scalars* now) {
    if constexpr (B::deferred) {
      commit_copy(backend_, now, new_scales_, scales_);
    } else {
      std::swap(scales_, new_scales_);
    }
  }

  /// This rank's residual, as a field.
  [[nodiscard]] residual_field<C> residual() { return {codec_, carried(), scales_.data()}; }
  /// The scales of the last committed exchange, by group; in the backend's memory.
  [[nodiscard]] std::span<const float> scales() const { return {scales_.data(), scales_.size()}; }

  /// Takes over `values` (the flat axis) as the carried buffer.
  void carry(buffer<float>&& values) { carried_ = std::move(values); }
  /// The same for the words from `first` on, where only those are encoded.
  void carry(buffer<float>&& values, std::size_t first) {
    carried_ = std::move(values);
    carried_first_ = first;
  }
  void carry_nothing() {
    if constexpr (carries) {
      carried_ = backend_.template make_buffer<float>(axis_.n_words() * word_elements);
    }
  }

  /// From here on only the elements in `mask` (one bit each, by word) take part.
  void set_live(buffer<std::uint32_t>&& mask) {
    live_ = std::move(mask);
    recount();
  }
  /// From here on the mask is this one, which another worker holds.
  void use_mask(live_mask mask) { borrowed_ = mask; }
  /// For this step, the mask that `fill(words)` writes.
  template <class Fill>
  void preview_live(const Fill& fill) {
    if (next_live_.size() == 0) {
      next_live_ = backend_.template make_buffer<std::uint32_t>(axis_.n_words());
    }
    fill(next_live_.data());
    previews_ = true;
    recount();
  }
  /// Keeps the mask of this step, unless the step was called off.
  void settle_live(outcome o, const step_scalars* now) {
    if (!previews_) return;
    previews_ = false;
    if (o == outcome::pending) commit_copy(backend_, now, next_live_, live_);
    if (o == outcome::agreed) std::swap(next_live_, live_);
    if (o != outcome::agreed) recount();
  }

  [[nodiscard]] std::size_t state_bytes() const {
    return carried_.bytes() + live_.bytes() + scales_.bytes();
  }
  [[nodiscard]] std::size_t work_bytes() const {
    return new_scales_.bytes() + sums_.bytes() + tiles_.bytes() + tensor_tiles_.bytes() +
           groups_.bytes() + segments_.bytes() + offsets_.bytes() + next_live_.bytes() +
           counts_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.buffer(carried_, backend_);
    a.buffer(live_, backend_);
    a.buffer(scales_, backend_);
    if (Archive::reading && live_.size() > 0) recount();
  }

  static constexpr bool has_scales() {
    if constexpr (WordCompressor<C>) return bool{C::scaled};
    return false;
  }

 private:
  static granularity granularity_of(const C& codec) {
    if constexpr (WordCompressor<C>) return codec.scale_granularity();
    return granularity::vector();
  }
  [[nodiscard]] std::uint64_t count(tile_range r) const {
    std::uint64_t n = 0;
    for (auto i = r.begin; i < r.end; ++i) n += axis_.tiles()[i].n;
    return n;
  }
  template <class Produce, class Carry>
  void run_encode(const Produce& produce, const Carry& carry, std::byte* slots, tile_range part) {
    backend_.launch(part.end - part.begin,
                    encode_kernel<C, Produce, Carry>{codec_, produce, carry, live(), tiles_.data(),
                                                     part.begin, format_, slots, 1, sums_.data()});
  }
  void recount() {
    if (counts_.size() != tiles_.size()) {
      counts_ = backend_.template make_buffer<std::uint32_t>(tiles_.size());
    }
    backend_.launch(tiles_.size(), count_live_kernel{live(), tiles_.data(), counts_.data()});
    for (auto* entries : {&groups_, &segments_}) {
      backend_.launch(entries->size(), total_live_kernel{counts_.data(), entries->data()});
    }
  }

  C codec_;
  B backend_;
  layout axis_;
  slot_format format_;
  buffer<std::uint64_t> offsets_;
  buffer<tile> tiles_;
  buffer<tile_range> tensor_tiles_;
  buffer<float> sums_;
  buffer<std::uint32_t> counts_;  ///< by tile
  buffer<scale_entry> groups_, segments_;
  buffer<float> scales_, new_scales_;
  buffer<float> carried_;
  std::size_t carried_first_ = 0;  ///< word
  buffer<std::uint32_t> live_, next_live_;
  live_mask borrowed_;
  bool previews_ = false;  ///< next_live_ is in use
};

}  // namespace onebit
