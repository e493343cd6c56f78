// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/core/clipping.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The uncompressed mean: of gradients, in the warm-up and in the baselines.
namespace onebit::inline v0_2 {

/// Who adds up the gradients, and in what they travel. Sums are in fp32 in any case.
enum class dense_sum : std::uint8_t {
  automatic,   ///< in_bf16 where gradients are bf16, else rank_order
  rank_order,  ///< all_to_all, sum in rank order, all_gather: the same bits on every transport
  transport,   ///< the transport's own allreduce: its speed and its order of summation
  /// As rank_order, in half the bytes: each rank's gradient (without the loss scale: fp16 would
  /// lose small ones) is rounded to bf16 on its way, and the mean once more.
  in_bf16,
  /// The same in a quarter of the bytes: every 32 elements are whole numbers from -127 to 127 times
  /// a common power of two (MXINT8 of the OCP Microscaling Formats, a bit to spare), which loses
  /// elements below a 127th of the largest of the 32.
  in_int8,
  /// The transport's own allreduce of bf16, of gradients without the loss scale: what everybody's
  /// 16-bit ring sends. Sums are rounded at each addition, in the transport's order. For a
  /// HalfSummingTransport.
  transport_in_bf16
};
/// Whether the transport adds up.
[[nodiscard]] constexpr bool by_transport(dense_sum mode) {
  return mode == dense_sum::transport || mode == dense_sum::transport_in_bf16;
}
/// For descriptions: empty, or from a comma on.
[[nodiscard, gnu::cold]] inline std::string to_string(dense_sum mode) {
  return mode == dense_sum::transport           ? ", sums by the transport"
         : mode == dense_sum::transport_in_bf16 ? ", sums in bf16 by the transport"
         : mode == dense_sum::in_bf16           ? ", averages in bf16"
         : mode == dense_sum::in_int8           ? ", averages in int8"
                                                : ", averages in rank order";
}
/// What `automatic` is for gradients of this type.
template <class G>
[[nodiscard]] dense_sum resolved(dense_sum mode) {
  if (mode != dense_sum::automatic) return mode;
  const bool halves = std::is_same_v<std::remove_const_t<G>, bf16>;
  return halves ? dense_sum::in_bf16 : dense_sum::rank_order;
}

/// Where means go: to the gradients that they are of, if nobody reads these again, or nowhere: they
/// are read as they came. A step says which, where gradients are floats that may be written.
template <class P, class G>
struct mean_destination {
  static constexpr bool in_gradients = std::is_same_v<G, float>;  ///< whether they may
  const tensor_entry<P, G>* tensors = nullptr;                    ///< null: nowhere
};
/// Nowhere, always.
struct as_they_came {
  static constexpr bool in_gradients = false;  ///< see mean_destination
  const void* tensors = nullptr;               ///< see mean_destination
};

namespace detail {

/// Bytes of a word of 32 elements on its way.
[[nodiscard]] constexpr std::size_t word_bytes_of(dense_sum mode) {
  const bool half = mode == dense_sum::in_bf16 || mode == dense_sum::transport_in_bf16;
  return half ? rounded::halves : mode == dense_sum::in_int8 ? rounded::int8s : rounded::floats;
}

/// A mean, where it came or where it went.
template <class To>
struct mean_field {
  gathered_view<rounded> came;
  To went;

  template <class L>
  struct reader {
    tile_reader<L, rounded> came;
    const float* went;  ///< null: nowhere
    std::uint32_t n;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      if (went == nullptr) return came(k);
      return load_elements<L>(went, k, n);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    if (went.tensors != nullptr) return {{}, went.tensors[t.tensor].grads + t.offset, t.n};
    return {came.template at<L>(t, index).values, nullptr, t.n};
  }
};

/// Takes the mean of a tile to the gradients. `squares`, by slot: the first tile of a chunk takes
/// the sum that came with it.
template <class To>
struct take_mean_kernel {
  gathered_view<rounded> came;
  To to;
  tiles_from tiles;
  float* squares;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto mean = came.template at<L>(t, tiles.first + i);
    float* const out = to.tensors[t.tensor].grads + t.offset;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words)
      store_elements<L>(out, k, t.n, mean(k));
    if (t.word == t.chunk * came.format.chunk_words)
      L::store_scalar(squares + t.chunk, mean.values.scale);
  }
};

}  // namespace detail

// The uncompressed mean: of gradients, in the warm-up and in the baselines.

namespace detail {

/// Divides the sum of all ranks by their number; calls the step off where the result is not finite.
/// Per tile the sum of its squares.
struct mean_in_place_kernel {
  rounded codec;
  const tile* tiles;
  slot_format format;
  std::byte* slots;
  float* sums;
  float inverse;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    std::byte* p = slots + t.chunk * format.slot_bytes + format.payload_at(t, i);
    auto squares = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k, p += codec.word_bytes) {
      const auto mean = L::mul(codec.template decode<L>(p, 0.0F), L::set(inverse));
      squares = L::fma(mean, mean, squares);
      codec.template encode<L>(p, mean);
    }
    const float sum = L::fold(squares);
    L::store_scalar(sums + i, sum);
    if (!(sum <= 3.402823466e38F)) L::raise(&now->skip);
  }
};

/// This rank's status, of all slots that it has written. Theirs become 0, so that a transport's sum
/// adds nothing to them.
struct take_status_kernel {
  static constexpr bool serial = true;
  std::byte* slots;
  slot_format format;
  std::uint32_t n;
  slot_status* own;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const slot_status status = *status_of(format, slots, 0);
    L::store_scalar(own, status);
    bool bad = false;
    for (auto r = L::own_index(); r < n; r += L::n_indices()) {
      slot_status* const at = status_of(format, slots, r);
      bad = bad || (at->step & 1U) != 0;
      *at = {};
    }
    if (L::any(bad)) L::store_scalar(&own->step, status.step | 1U);
  }
};

}  // namespace detail

/// Buckets of averages beside an exchange in buckets of so many elements, or, 0, in one.
[[nodiscard]] inline int buckets_of_means(std::span<const std::size_t> sizes,
                                          std::size_t elements) {
  return n_buckets(sizes, elements != 0 ? elements : std::size_t{1} << 22U);
}

/// Agrees on the mean of what the ranks produce: a gather-scatter whose sums are in fp32, or a sum
/// of the transport's.
///
/// Cost: rank_order: 2 collectives a bucket, the volume of a ring allreduce, 2 (W-1)/W 4n bytes per
/// rank, plus a status of 12 bytes and a sum of squares per slot; in_bf16: half of it, in_int8
/// 33/128; transport: its allreduce, and an all_gather of 12 bytes; in bf16 half of it. Memory
/// while in use: messages of 8 buckets where means go to the gradients, else 4 bytes per element
/// and messages of 4 (in_bf16: half of that); transport: 4 bytes per element, in bf16 2.
template <class B, class To = as_they_came>
class dense_average {
 public:
  dense_average(dense_sum mode, communicator w, B backend, std::span<const std::size_t> sizes,
                int n_buckets = 1)
      : mode_(mode),
        comm_(std::move(w)),
        exchange_({comm_.size() > 1 ? detail::word_bytes_of(mode) : rounded::floats, false}, comm_,
                  std::move(backend), sizes, n_buckets),
        squares_(exchange_.sender().backend().template make_buffer<float>(
            To::in_gradients ? static_cast<std::size_t>(axis().n_slots()) : 0)),
        statuses_(exchange_.sender().backend().template make_buffer<slot_status>(
            by_rank_order() ? 0 : static_cast<std::size_t>(comm_.size()) + 1)) {
    if (mode == dense_sum::transport_in_bf16 && comm_.size() > 1) comm_.require_half_sums();
  }

  using came = gathered_view<rounded>;
  using view = clipped_view<std::conditional_t<To::in_gradients, detail::mean_field<To>, came>>;
  /// The mean, clipped; `to`: as `all_reduce` was told.
  [[nodiscard]] view latest(const step_scalars* now, [[maybe_unused]] const To& to = {}) {
    if constexpr (To::in_gradients) {
      return {{exchange_.latest({}), passes(to) ? to : To{}}, now};
    } else {
      return {exchange_.latest({}), now};
    }
  }
  [[nodiscard]] const layout& axis() const { return exchange_.axis(); }
  [[nodiscard]] auto& sender() { return exchange_.sender(); }
  void release() noexcept { exchange_.release(); }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return exchange_.work_bytes() + squares_.bytes() + statuses_.bytes();
  }

  /// As gather_scatter_exchange: buckets that are not sent yet, and the next of them on its way.
  [[nodiscard]] int n_unsent() const { return by_rank_order() ? exchange_.n_unsent() : 0; }
  template <class Produce>
  [[gnu::cold]] void send_next(const Produce& produce, step_scalars* now, const To& to = {}) {
    prepare(to);
    send(to, now,
         [&](const auto&... take) { exchange_.send_next(produce, args_of(now), take...); });
  }
  /// Collective; waits, unless the backend is deferred. Allocates what is not prepared. A mean
  /// whose norm is above `largest_norm` is clipped to it; 0: none is.
  template <class Produce>
  [[gnu::cold]] void all_reduce(const Produce& produce, step_scalars* now, double largest_norm = 0,
                                const To& to = {}) {
    prepare(to);
    auto& s = exchange_.sender();
    // only a chunk that has words says its sum
    const std::size_t words = axis().n_words(), each = axis().chunk_words();
    const auto n_slots = static_cast<std::uint32_t>(words == 0 ? 0 : (words - 1) / each + 1);
    const slot_format& f = s.format();
    strided_floats squares{exchange_.latest_slots() + f.scales_at, f.slot_bytes, n_slots};
    if (!by_rank_order()) {
      sum_by_transport(produce, args_of(now));
      squares = floats_of(s.sums(), axis().tiles().size());
    } else {
      send(to, now,
           [&](const auto&... take) { exchange_.all_reduce(produce, args_of(now), take...); });
      if (passes(to)) squares = floats_of(squares_.data(), n_slots);
    }
    s.backend().launch(
        1, mean_norm_kernel{now, squares, floats_of(s.new_scales(), axis().groups().size()),
                            static_cast<float>(largest_norm)});
  }
  /// Ends the step: nothing lasts but the memory.
  void finish(step_scalars* now) { exchange_.finish(args_of(now)); }

  /// Allocates what was released, or was never there, or was for means that go elsewhere; whether
  /// it did.
  [[gnu::cold]] bool prepare(const To& to = {}) {
    if (exchange_.started() && (passes(to) || exchange_.has_all_slots())) return false;
    exchange_.release();
    auto space = !by_rank_order() ? exchange_.allocate_latest(false)
                 : passes(to)     ? exchange_.allocate_passing()
                                  : exchange_.allocate(false, false);
    exchange_.hold(space);
    return true;
  }

 private:
  [[nodiscard]] bool by_rank_order() const { return !by_transport(mode_) || !exchange_.travels(); }
  /// Whether each bucket is taken where it goes: one pass more, for memory that it saves where
  /// there are many. Sums of the transport's are all there at once.
  [[nodiscard]] bool passes(const To& to) const {
    const bool many = axis().n_buckets() > exchange_.most_under_way;
    return To::in_gradients && to.tensors != nullptr && many && by_rank_order();
  }
  [[nodiscard]] static exchange_args<undo_in_buffer> args_of(step_scalars* now) {
    return {now, {}, {}};
  }
  /// Calls `go`, with who takes the buckets, if the means go anywhere.
  template <class Go>
  [[gnu::cold]] void send([[maybe_unused]] const To& to, [[maybe_unused]] const step_scalars* now,
                          const Go& go) {
    if constexpr (To::in_gradients) {
      if (passes(to)) {
        return go([&](int b, const came& mean) {
          auto& s = exchange_.sender();
          const tile_range part = axis().bucket_at(b).tiles;
          // in a step that is called off already the gradients stay what they are
          launch_unless_skipped(
              s.backend(), now, part.end - part.begin,
              detail::take_mean_kernel<To>{mean, to, {s.tiles(), part.begin}, squares_.data()});
        });
      }
    }
    go();
  }
  template <class Produce>
  [[gnu::cold]] void sum_by_transport(const Produce& produce,
                                      const exchange_args<undo_in_buffer>& t) {
    auto& s = exchange_.sender();
    const slot_format& f = s.format();
    const auto w = static_cast<std::uint32_t>(comm_.size());
    const auto n_slots = static_cast<std::uint32_t>(axis().n_slots());
    std::byte* slots = exchange_.latest_slots();
    for (int b = axis().n_buckets() - 1; b >= 0; --b) s.encode(produce, t, slots, b);
    const std::size_t bytes = n_slots * f.slot_bytes;
    slot_status *const all = statuses_.data(), *const own = all + w;
    s.backend().launch(1, detail::take_status_kernel{slots, f, n_slots, own});
    if (mode_ == dense_sum::transport_in_bf16) {
      comm_.all_reduce_sum(reinterpret_cast<bf16*>(slots), bytes / sizeof(bf16));
    } else {
      comm_.all_reduce_sum(reinterpret_cast<float*>(slots), bytes / sizeof(float));
    }
    // a status is no number that can be added up in any type: it travels by itself
    comm_.all_gather(own, all, sizeof *own);
    slot_format of_statuses = f;
    of_statuses.status_at = 0;
    of_statuses.slot_bytes = sizeof *own;
    s.backend().launch(1, check_kernel{.now = t.now,
                                       .slots = reinterpret_cast<std::byte*>(all),
                                       .format = of_statuses,
                                       .n = w,
                                       .part = 0,
                                       .ranks = {w}});
    s.backend().launch(axis().tiles().size(),
                       detail::mean_in_place_kernel{s.codec(), s.tiles(), f, slots, s.sums(),
                                                    1.0F / static_cast<float>(w), t.now});
  }

  dense_sum mode_;
  communicator comm_;
  gather_scatter_exchange<rounded, B> exchange_;
  buffer_of<B, float> squares_;         ///< by slot, where means go to the gradients
  buffer_of<B, slot_status> statuses_;  ///< of all ranks, and this one's: sums of the transport's
};

/// Agrees on the mean of what the ranks keep of their own squares: of all elements, and of some
/// floats beside, as a tensor behind them: 66 a tile of Adam's, 130 of LAMB's.
///
/// Cost: 2 collectives a bucket, 2 (W-1)/W 2 bytes per element, and float beside, and rank. Memory
/// while in use: 2 (1 + 2/W) bytes for each, and as much again for messages; and `sums`, a work
/// space of the rule's, of 4 bytes for each float beside and each 32 elements.
template <class B>
class squares_average {
 public:
  /// For tensors of these sizes, in buckets as `dense` has them. Not collective.
  squares_average(communicator w, B backend, std::vector<std::size_t> sizes, std::size_t n_beside,
                  std::size_t bucket_elements)
      : exchange_(rounded::to_roots(), w, std::move(backend), with(sizes, n_beside),
                  buckets_of_means(sizes, bucket_elements)),
        n_sums_(n_beside + exchange_.axis().n_words() + word_elements) {}

  [[nodiscard]] auto& sender() { return exchange_.sender(); }  ///< its axis is that of `latest`
  /// The mean; its last tensor is what was beside.
  [[nodiscard]] auto latest() { return exchange_.latest({}); }
  /// Collective; waits, unless the backend is deferred.
  template <class Produce>
  [[gnu::cold]] void all_reduce(const Produce& produce, step_scalars* now) {
    exchange_.all_reduce(produce, args_of(now));
  }
  /// Ends the step: nothing lasts but the memory.
  void finish(step_scalars* now) { exchange_.finish(args_of(now)); }
  [[nodiscard]] float* sums() { return sums_.data(); }  ///< for the rule: see following_rule
  /// Allocates what was released, or was never there; whether it did.
  [[gnu::cold]] bool prepare() {
    if (exchange_.started()) return false;
    auto sums = sender().backend().template make_buffer<float>(n_sums_);
    auto space = exchange_.allocate(false, false);
    exchange_.hold(space);
    sums_ = std::move(sums);
    return true;
  }
  /// Gives the memory back.
  void release() noexcept {
    exchange_.release();
    sums_ = {};
  }
  /// Bytes of tables, and of what is allocated now.
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return exchange_.work_bytes() + sums_.bytes();
  }

 private:
  [[nodiscard]] static exchange_args<undo_in_buffer> args_of(step_scalars* now) {
    return {now, {}, {}};
  }
  [[nodiscard]] static std::vector<std::size_t> with(std::vector<std::size_t> sizes,
                                                     std::size_t one_more) {
    sizes.push_back(one_more);
    return sizes;
  }

  gather_scatter_exchange<rounded, B> exchange_;
  std::size_t n_sums_;
  buffer_of<B, float> sums_;
};

}  // namespace onebit::inline v0_2
