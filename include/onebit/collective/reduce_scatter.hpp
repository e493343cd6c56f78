// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/marks.hpp>
#include <onebit/collective/means.hpp>
#include <onebit/collective/sender.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <onebit/transport/wire.hpp>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

/// Each rank owns a part of the parameters: it gets the mean of their gradients, and tells the
/// others what became of them.
namespace onebit::inline v0_1 {

/// A part of a tensor that this rank owns.
struct owned_piece {
  std::size_t tensor = 0;  ///< in the order of the groups
  std::size_t first = 0;   ///< its first element in the tensor
  std::size_t n = 0;       ///< elements
  std::size_t word = 0;    ///< where it starts among all that the rank owns
};

namespace detail {

/// What rank r owns where this axis is shared out, in the order of the tensors.
[[nodiscard, gnu::cold]] inline std::vector<owned_piece> pieces_of(const layout& axis,
                                                                   std::size_t r) {
  std::vector<owned_piece> all;
  for (int b = 0; b < axis.n_buckets(); ++b) {
    const int chunk = b * axis.n_chunks() + static_cast<int>(r);
    const std::size_t first = static_cast<std::size_t>(chunk) * axis.chunk_words();
    const std::size_t before = static_cast<std::size_t>(b) * axis.chunk_words();
    const tile_range own = axis.chunk_tiles(chunk);
    for (auto i = own.begin; i < own.end; ++i) {
      const tile& t = axis.tiles()[i];
      if (i > own.begin && all.back().tensor == t.tensor) {
        all.back().n += t.n;
      } else {
        all.push_back({t.tensor, t.offset, t.n, before + t.word - first});
      }
    }
  }
  return all;
}
/// Words that all pieces of a rank take, gaps between them included.
[[nodiscard]] inline std::size_t words_of_owner(const layout& axis) {
  return static_cast<std::size_t>(axis.n_buckets()) * axis.chunk_words();
}

/// The mean of a tile that this rank owns, into `to`: where its gradient lay, or into a buffer of
/// what the rank owns.
template <class To>
struct own_mean_kernel {
  mean_view<mean_codec> mean;
  To to;
  const tile* tiles;
  std::size_t first_tile;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[first_tile + i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto value = mean.template at<L>(t, first_tile + i);
    tile own = t;
    own.word = mean.format.served_word(t);
    const auto out = to.template at<L>(own);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) out.save(k, value(k));
  }
};

/// The parameters of a tile that this rank owns, into its slot.
template <class P, class G>
struct publish_kernel {
  const tensor_entry<P, G>* tensors;
  const tile* tiles;
  std::size_t first_tile;
  std::size_t chunk_words;
  P* slot;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[first_tile + i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const P* const from = tensors[t.tensor].params + t.offset;
    P* const to = slot + (t.word - t.chunk * chunk_words) * word_elements;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      store_elements<L>(to, k, t.n, load_elements<L>(from, k, t.n));
    }
  }
};

/// Those of a tile that another rank owns, out of its slot.
template <class P, class G>
struct take_published_kernel {
  const tensor_entry<P, G>* tensors;
  const tile* tiles;
  std::size_t first_tile;
  std::size_t chunk_words, first_chunk, own_chunk;
  const P* slots;
  std::size_t slot_elements;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[first_tile + i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    if (t.chunk == own_chunk) return;
    const P* const from = slots + (t.chunk - first_chunk) * slot_elements +
                          (t.word - t.chunk * chunk_words) * word_elements;
    P* const to = tensors[t.tensor].params + t.offset;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      store_elements<L>(to, k, t.n, load_elements<L>(from, k, t.n));
    }
  }
};

}  // namespace detail

/// Both halves of an average, with room between them: first each rank gets the mean of the chunks
/// that it owns (a reduce-scatter, whose sums are in fp32 in rank order), later all get what the
/// owners have made of the parameters (an all-gather, in the parameters' own type).
///
/// The axis is cut into buckets, each into a chunk for every rank; at most two are under way, so
/// that memory does not grow with the model: 4 W slots. One rank sends nothing. Cost: 2 collectives
/// a bucket; (W-1)/W 4n bytes sent for the means (in_bf16: half, in_int8: 33/128), and (W-1)/W
/// times the parameters' bytes.
template <class B, class P, class G>
class reduce_scatter {
 public:
  using byte_buffer = buffer_of<B, std::byte>;
  /// Means go where the gradients lay, if these are floats that may be written.
  static constexpr bool in_place = std::is_same_v<G, float>;
  using destination = std::conditional_t<in_place, undo_in_gradients<P, G>, undo_in_buffer>;
  static_assert(!std::is_same_v<P, any_element>,
                "onebit: sharded parameters have one type: float, bf16 or fp16");

  reduce_scatter(dense_sum mode, wire w, B backend, std::span<const std::size_t> sizes,
                 int n_buckets)
      : wire_(std::move(w)),
        sender_({wire_.size() > 1 ? detail::mean_codec::bytes_of(mode) : 128U}, std::move(backend),
                sizes, wire_.size(), n_buckets) {
    slot_elements_ = axis().chunk_words() * word_elements;
    const std::size_t ring = std::min<std::size_t>(buckets(), 2) * ranks() * stride();
    sent_ = sender_.backend().template make_buffer<std::byte>(ring);
    received_ = sender_.backend().template make_buffer<std::byte>(ranks() > 1 ? ring : 0);
    under_way_.reserve(buckets());
  }

  [[nodiscard]] const layout& axis() const { return sender_.axis(); }
  [[nodiscard]] B& backend() { return sender_.backend(); }
  void check_slots(checked which) { sender_.check_slots(which); }
  [[nodiscard]] std::size_t work_bytes() const {
    return sender_.work_bytes() + sent_.bytes() + received_.bytes();
  }
  /// What this rank owns, in the order of the tensors.
  [[nodiscard, gnu::cold]] std::vector<owned_piece> pieces() const {
    return detail::pieces_of(axis(), static_cast<std::size_t>(wire_.rank()));
  }
  /// Words that all pieces take, gaps between them included.
  [[nodiscard]] std::size_t own_words() const { return detail::words_of_owner(axis()); }

  /// Buckets of this step that are not sent yet: the last go first.
  [[nodiscard]] int n_unsent() const { return axis().n_buckets() - n_sent_; }
  /// Collective. Encodes the next bucket and starts to send it; before, the one that had its place
  /// goes to its owners: `to`.
  template <class Produce>
  [[gnu::cold]] void send_next(const Produce& produce, step_scalars* now, const destination& to) {
    const int b = axis().n_buckets() - 1 - n_sent_;
    if (n_sent_ - n_taken_ == 2) take_next(now, to);
    ++n_sent_;
    sender_.encode(produce, turn<undo_in_buffer>{now, {}, {}}, slots_at(sent_, b), b);
    start(detail::collective_call::all_to_all, b, sender_.format().slot_bytes);
  }
  /// Collective. The rest of them; then `to` has the means of what this rank owns, and all know who
  /// is out of step or saw a bad value.
  template <class Produce>
  [[gnu::cold]] void agree(const Produce& produce, step_scalars* now, const destination& to) {
    while (n_unsent() > 0) send_next(produce, now, to);
    while (n_taken_ < n_sent_) take_next(now, to);
    clear();
  }
  /// Collective: the parameters that each rank owns, to all; who calls the step off takes none.
  [[gnu::cold]] void publish(const tensor_entry<P, G>* tensors, const step_scalars* now) {
    for (int b = 0; b < axis().n_buckets(); ++b) {
      const tile_range own = axis().chunk_tiles(own_chunk(b));
      backend().launch(
          own.end - own.begin,
          detail::publish_kernel<P, G>{tensors, sender_.tiles(), own.begin, axis().chunk_words(),
                                       reinterpret_cast<P*>(place(sent_, b))});
      start(detail::collective_call::all_gather, b, slot_elements_ * sizeof(P));
      if (b > 0) take_published(b - 1, tensors, now);
    }
    take_published(axis().n_buckets() - 1, tensors, now);
    clear();
  }
  /// Forgets what is under way, after it has ended.
  void clear() noexcept {
    under_way_.clear();
    n_sent_ = n_taken_ = 0;
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(wire_.size()); }
  [[nodiscard]] std::size_t buckets() const { return sender_.n_buckets(); }
  [[nodiscard]] int own_chunk(int b) const { return b * wire_.size() + wire_.rank(); }
  /// Of a slot of either kind.
  [[nodiscard]] std::size_t stride() const {
    return std::max(sender_.format().slot_bytes, slot_elements_ * sizeof(P));
  }
  /// The slots of bucket b: every second bucket has the same.
  [[nodiscard]] std::byte* place(byte_buffer& ring, int b) {
    return ring.data() + static_cast<std::size_t>(b % 2) * ranks() * stride();
  }
  /// What slots are counted from, the first of all buckets, so that those of b are at its place.
  [[nodiscard]] std::byte* slots_at(byte_buffer& ring, int b) {
    const std::size_t before = static_cast<std::size_t>(b) * ranks() * sender_.format().slot_bytes;
    return place(ring, b) - static_cast<std::ptrdiff_t>(before);
  }
  /// Where messages are after they have travelled.
  [[nodiscard]] byte_buffer& arrived() { return ranks() > 1 ? received_ : sent_; }
  void start(detail::collective_call call, int b, std::size_t slot_bytes) {
    const bool scatters = call == detail::collective_call::all_to_all;
    if (ranks() == 1) return;
    std::byte *const from = place(sent_, b), *const to = place(received_, b);
    if (buckets() == 1) {
      scatters ? wire_.all_to_all(from, to, slot_bytes) : wire_.all_gather(from, to, slot_bytes);
    } else {
      under_way_.add(scatters ? wire_.start_all_to_all(from, to, slot_bytes)
                              : wire_.start_all_gather(from, to, slot_bytes));
    }
  }
  /// Waits for the oldest bucket that was sent, and averages this rank's chunk of it.
  [[gnu::cold]] void take_next(step_scalars* now, const destination& to) {
    const int b = axis().n_buckets() - 1 - n_taken_;
    under_way_.wait(n_taken_);
    ++n_taken_;
    const auto w = static_cast<std::uint32_t>(ranks());
    sender_.check({.now = now,
                   .slots = place(arrived(), b),
                   .n = w,
                   .n_ranks = w,
                   .part = static_cast<std::uint32_t>(b),
                   .slots_per_bucket = w});
    const mean_view<detail::mean_codec> mean{sender_.codec(),
                                             sender_.format(),
                                             slots_at(arrived(), b),
                                             wire_.size(),
                                             1.0F / static_cast<float>(ranks()),
                                             live_mask{}};
    const tile_range own = axis().chunk_tiles(own_chunk(b));
    backend().launch(own.end - own.begin,
                     detail::own_mean_kernel<destination>{mean, to, sender_.tiles(), own.begin});
  }
  [[gnu::cold]] void take_published(int b, const tensor_entry<P, G>* tensors,
                                    const step_scalars* now) {
    under_way_.wait(b);
    const tile_range part = axis().bucket_at(b).tiles;
    launch_commit(backend(), now, part.end - part.begin,
                  detail::take_published_kernel<P, G>{
                      tensors, sender_.tiles(), part.begin, axis().chunk_words(),
                      static_cast<std::size_t>(b) * ranks(), static_cast<std::size_t>(own_chunk(b)),
                      reinterpret_cast<const P*>(place(arrived(), b)), slot_elements_});
  }

  wire wire_;
  onebit::sender<detail::mean_codec, B> sender_;
  std::size_t slot_elements_ = 0;  ///< of a chunk's parameters
  byte_buffer sent_, received_;    ///< W slots for each of two buckets
  int n_sent_ = 0, n_taken_ = 0;   ///< buckets, in this step
  in_flight under_way_;            // last: requests end before their buffers
};

}  // namespace onebit::inline v0_1
