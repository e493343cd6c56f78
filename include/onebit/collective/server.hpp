// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/carried.hpp>
#include <onebit/collective/marks.hpp>
#include <onebit/collective/passes.hpp>
#include <onebit/collective/sender.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/launches.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>
#include <utility>

/// The half of an exchange that a rank plays for one chunk: it averages what all ranks sent of the
/// chunk, and encodes the mean with a residual of its own.
namespace onebit::inline v0_1 {

/// Serves chunks of the axis of a sender, whose tables it uses; `format` says where a chunk's words
/// lie among those that it serves.
///
/// Its residual is read while the step may still be called off and written by `finish`: it cannot
/// be rebuilt lazily like the worker's, since it depends on messages that are gone by then. Memory:
/// 4 bytes per element that it serves, if the compressor carries.
template <Compressor C, class B>
class server {
 public:
  using residual_buffer = buffer_of<B, float>;
  static constexpr bool carries = sender<C, B>::carries;

  /// A residual of zeros for so many words; given to `start`.
  [[nodiscard]] static residual_buffer make_residual(sender<C, B>& s, std::size_t n_words) {
    return s.room_for(carries ? n_words : 0);
  }
  void start(residual_buffer&& residual) noexcept { residual_ = std::move(residual); }

  /// What the slots in `received` say on average.
  [[nodiscard]] static mean_view<C> mean(const C& codec, const slot_format& format,
                                         const std::byte* received, int n_ranks) {
    return {codec, format, received, n_ranks, 1.0F / static_cast<float>(n_ranks), live_mask{}};
  }

  /// Encodes a chunk's mean into its slot, among `slots` that hold one slot per bucket; `end` runs
  /// the kernel of its scales, which it is given, and what follows.
  template <class Undo, class End>
  [[gnu::cold]] void serve(sender<C, B>& s, const mean_view<C>& mean, int chunk,
                           const turn<Undo>& t, std::byte* slots, const End& end) {
    const slot_format& f = mean.format;
    const tile_range own = s.axis().chunk_tiles(chunk);
    if constexpr (carries) {
      encode(s, mean, read_carry{words(), f}, own, t.live, slots);
    } else {
      encode(s, mean, no_carry{}, own, t.live, slots);
    }
    std::byte* slot = slots + static_cast<std::size_t>(chunk) / f.chunks_per_bucket * f.slot_bytes;
    const tile_range segments = s.axis().chunk_segments(chunk);
    const scale_kernel<C> scale{s.codec(), s.segments() + segments.begin,         s.sums(),
                                nullptr,   sender<C, B>::scaled ? slot : nullptr, f.scales_at,
                                t.now};
    end(calls{scale, std::size_t{segments.end - segments.begin}});
  }
  /// What ends a step for a chunk, where the compressor carries: the residual is what was meant
  /// minus what was heard (no matter of which elements), unless the step was called off. One pass
  /// over the chunk.
  template <class Undo>
  [[nodiscard, gnu::cold]] auto finish(sender<C, B>& s, const mean_view<C>& mean, int chunk,
                                       const gathered_view<C>& heard, const turn<Undo>& t) {
    using kernel = server_residual_kernel<mean_view<C>, gathered_view<C>>;
    const tile_range own = s.axis().chunk_tiles(chunk);
    return calls{detail::unless_skipped<kernel>{
                     {mean, heard, t.live, s.tiles(), own.begin, mean.format, words()}, t.now},
                 std::size_t{own.end - own.begin}};
  }

  /// By element, chunk after chunk.
  [[nodiscard]] const residual_buffer& residual() const { return residual_; }
  [[nodiscard]] carried_words words() { return {residual_.data(), 0}; }
  [[nodiscard]] std::size_t state_bytes() const { return residual_.bytes(); }
  /// For a reader: before `start`.
  [[nodiscard]] residual_buffer& residual_place() { return residual_; }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    a.buffer(residual_, backend);
  }

 private:
  template <class Carry>
  [[gnu::cold]] static void encode(sender<C, B>& s, const mean_view<C>& mean, const Carry& carry,
                                   tile_range own, live_mask live, std::byte* slots) {
    s.backend().launch(own.end - own.begin,
                       encode_kernel<C, mean_view<C>, Carry>{
                           s.codec(), mean, carry, live, s.tiles(), own.begin, mean.format, slots,
                           mean.format.chunks_per_bucket, s.sums()});
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

}  // namespace onebit::inline v0_1
