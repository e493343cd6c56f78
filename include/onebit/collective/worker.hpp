// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/collective/kernels.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <span>
#include <utility>
#include <vector>

/// What every compressed collective does first: each rank encodes its own message.
namespace onebit {

/// Copies a vector into a backend's buffer.
template <class B, class T>
[[nodiscard]] auto to_buffer(B& backend, const std::vector<T>& from) {
  auto buffer = backend.template make_buffer<T>(from.size());
  if (!from.empty()) std::memcpy(buffer.data(), from.data(), from.size() * sizeof(T));
  return buffer;
}

/// Reads the status words of W slots. All ranks read the same words, so all decide alike. Throws
/// rank_mismatch when a rank is at another step.
inline outcome check_statuses(const std::byte* slots, const slot_format& f, std::uint64_t step,
                              int rank, int size) {
  outcome result = outcome::agreed;
  const auto expected = static_cast<std::uint32_t>(step << 1U);
  for (int r = 0; r < size; ++r) {
    std::uint32_t status = 0;
    std::memcpy(&status, slots + static_cast<std::size_t>(r) * f.slot_bytes + f.status_at,
                sizeof status);
    if ((status & ~1U) != expected) {
      throw rank_mismatch(detail::message(
          "exchange: rank ", r, " is at step ", status >> 1U, " while this rank is at step ", step,
          "; all ranks must call step() equally often and load checkpoints of the same step",
          detail::rank_suffix(rank, size)));
    }
    if ((status & 1U) != 0) result = outcome::skipped;
  }
  return result;
}

/// The worker side of an exchange: layout, live mask, carried values, and the encode pass.
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

  worker_phase(C codec, B backend, std::span<const std::size_t> sizes, int n_chunks)
      : codec_(std::move(codec)),
        backend_(std::move(backend)),
        axis_(sizes, n_chunks, granularity_of(codec_)) {
    std::vector<std::uint64_t> offsets;
    format_ = make_slot_format(codec_, axis_, offsets);
    offsets_ = to_buffer(backend_, offsets);
    format_.tile_offsets = offsets_.data();
    tiles_ = to_buffer(backend_, axis_.tiles());
    tensor_tiles_ = to_buffer(backend_, axis_.tensor_tiles());
    sums_ = backend_.template make_buffer<float>(axis_.tiles().size());
    bad_ = backend_.template make_buffer<std::uint32_t>(1);
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
  [[nodiscard]] live_mask live() const { return {live_.data()}; }
  [[nodiscard]] float* sums() { return sums_.data(); }
  [[nodiscard]] std::uint32_t* bad() { return bad_.data(); }
  [[nodiscard]] const scale_entry* segments() const { return segments_.data(); }
  [[nodiscard]] std::size_t n_segments() const { return segments_.size(); }
  [[nodiscard]] float* carried() { return carried_.data(); }

  /// Encodes produce(residual) into `slots`, one slot per chunk, and seals them. One pass: for
  /// `sign` 16 bytes read and written per element (carried and gradient, both ways) plus the bits.
  template <class Produce, class Undo>
  void encode(const Produce& produce, const Undo& undo, std::uint64_t step, std::byte* slots) {
    *bad_.data() = 0;
    if constexpr (carries) {
      run_encode(produce, worker_carry<C, Undo>{codec_, carried_.data(), scales_.data(), undo},
                 slots);
    } else {
      run_encode(produce, no_carry{}, slots);
    }
    backend_.launch(groups_.size(), scale_kernel<C>{codec_, groups_.data(), sums_.data(),
                                                    new_scales_.data(), nullptr, 0, bad_.data()});
    if constexpr (has_scales()) {
      backend_.launch(segments_.size(),
                      seal_kernel{segments_.data(), new_scales_.data(), slots, format_});
    }
    for (int j = 0; j < axis_.n_chunks(); ++j) {
      seal(slots + static_cast<std::size_t>(j) * format_.slot_bytes, step);
    }
  }

  /// Is all that `produce` gives on this rank finite? Not collective. One pass over the gradients.
  template <class Produce>
  [[nodiscard]] bool finite(const Produce& produce) {
    *bad_.data() = 0;
    backend_.launch(tiles_.size(), finite_kernel<Produce>{produce, tiles_.data(), bad_.data()});
    return *bad_.data() == 0;
  }
  /// carried = produce(residual), without an exchange. 16 bytes per element.
  template <class Produce>
  void accumulate(const Produce& produce) {
    static_assert(carries);
    backend_.launch(tiles_.size(), accumulate_kernel<C, Produce>{residual(), produce, live(),
                                                                 tiles_.data(), carried_.data()});
    hold_residual();
  }
  /// From here on the carried buffer holds the residual itself.
  void hold_residual() {
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_.data()[i] = 0;
  }

  /// Writes the status word of a slot.
  void seal(std::byte* slot, std::uint64_t step) const {
    const std::uint32_t status = static_cast<std::uint32_t>(step << 1U) | *bad_.data();
    std::memcpy(slot + format_.status_at, &status, sizeof status);
  }

  /// Takes the encode pass back: carried values and scales are as before, bit for bit.
  template <class Undo>
  void rollback(const Undo& undo) {
    if constexpr (carries) {
      backend_.launch(tiles_.size(), rollback_kernel<Undo>{undo, tiles_.data(), carried_.data()});
    }
  }
  void commit() { std::swap(scales_, new_scales_); }

  /// This rank's residual, as a field.
  [[nodiscard]] residual_field<C> residual() { return {codec_, carried_.data(), scales_.data()}; }
  /// The scales of the last committed exchange, by group.
  [[nodiscard]] std::span<const float> scales() const { return {scales_.data(), scales_.size()}; }

  /// Takes over `values` (the flat axis) as the carried buffer.
  void carry(buffer<float>&& values) { carried_ = std::move(values); }
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
  /// The same, and gives back the mask of before.
  void swap_live(buffer<std::uint32_t>& mask) {
    std::swap(live_, mask);
    recount();
  }

  [[nodiscard]] std::size_t state_bytes() const {
    return carried_.bytes() + live_.bytes() + scales_.bytes();
  }
  [[nodiscard]] std::size_t work_bytes() const {
    return new_scales_.bytes() + sums_.bytes() + tiles_.bytes() + tensor_tiles_.bytes() +
           groups_.bytes() + segments_.bytes() + offsets_.bytes();
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
  void run_encode(const Produce& produce, const Carry& carry, std::byte* slots) {
    backend_.launch(tiles_.size(),
                    encode_kernel<C, Produce, Carry>{codec_, produce, carry, live(), tiles_.data(),
                                                     0, format_, slots, false, sums_.data()});
  }
  void recount() {
    if (counts_.size() != tiles_.size()) {
      counts_ = backend_.template make_buffer<std::uint32_t>(tiles_.size());
    }
    backend_.launch(tiles_.size(), count_live_kernel{live(), tiles_.data(), counts_.data()});
    const auto total = [&](scale_entry& e) {
      e.n_live = 0;
      for (auto i = e.tiles.begin; i < e.tiles.end; ++i) e.n_live += counts_.data()[i];
    };
    for (std::size_t i = 0; i < groups_.size(); ++i) total(groups_.data()[i]);
    for (std::size_t i = 0; i < segments_.size(); ++i) total(segments_.data()[i]);
  }

  C codec_;
  B backend_;
  layout axis_;
  slot_format format_;
  buffer<std::uint64_t> offsets_;
  buffer<tile> tiles_;
  buffer<tile_range> tensor_tiles_;
  buffer<float> sums_;
  buffer<std::uint32_t> bad_;
  buffer<std::uint32_t> counts_;  ///< by tile
  buffer<scale_entry> groups_, segments_;
  buffer<float> scales_, new_scales_;
  buffer<float> carried_;
  buffer<std::uint32_t> live_;
};

}  // namespace onebit
