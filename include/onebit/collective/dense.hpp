// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/clip.hpp>
#include <onebit/collective/means.hpp>
#include <onebit/collective/two_phases.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <span>
#include <type_traits>
#include <utility>

/// The uncompressed mean: of gradients, in the warm-up and in the baselines.
namespace onebit::inline v0_1 {

namespace detail {

/// Divides the sum of all ranks by their number; calls the step off where the result is not finite.
/// Per tile the sum of its squares.
struct mean_in_place_kernel {
  mean_codec codec;
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

/// This rank's status, of all slots that it has sealed. Theirs become 0, so that a transport's sum
/// adds nothing to them.
struct take_status_kernel {
  static constexpr bool serial = true;
  std::byte* slots;
  slot_format format;
  std::uint32_t n;
  slot_status* own;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    slot_status status = *status_of(format, slots, 0);
    for (std::uint32_t r = 0; r < n; ++r) {
      slot_status* const at = status_of(format, slots, r);
      status.step |= at->step & 1U;
      L::store_scalar(at, slot_status{});
    }
    L::store_scalar(own, status);
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
/// 33/128; transport: its allreduce, and an all_gather of 12 bytes; in bf16 half of it. Memory while in use: messages of 8
/// buckets where means go to the gradients, else 4 bytes per element and messages of 4 (in_bf16:
/// half of that); transport: 4 bytes per element, in bf16 2.
template <class B, class To = as_they_came>
class dense {
 public:
  dense(dense_sum mode, wire w, B backend, std::span<const std::size_t> sizes, int n_buckets = 1)
      : mode_(mode),
        wire_(std::move(w)),
        exchange_({wire_.size() > 1 ? detail::mean_codec::bytes_of(mode) : 128U}, wire_,
                  std::move(backend), sizes, n_buckets),
        squares_(exchange_.sender().backend().template make_buffer<float>(
            To::in_gradients ? static_cast<std::size_t>(axis().n_slots()) : 0)),
        statuses_(exchange_.sender().backend().template make_buffer<slot_status>(
            by_rank_order() ? 0 : static_cast<std::size_t>(wire_.size()) + 1)) {
    if (mode == dense_sum::transport_in_bf16 && wire_.size() > 1) wire_.require_half_sums();
  }

  [[nodiscard]] dense_sum mode() const { return mode_; }

  using came = gathered_view<detail::mean_codec>;
  using view = clipped_view<std::conditional_t<To::in_gradients, detail::mean_field<To>, came>>;
  /// The mean, clipped; `to`: as `agree` was told.
  [[nodiscard]] view heard(const step_scalars* now, [[maybe_unused]] const To& to = {}) {
    if constexpr (To::in_gradients) {
      return {{exchange_.heard({}), passes(to) ? to : To{}}, now};
    } else {
      return {exchange_.heard({}), now};
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
         [&](const auto&... take) { exchange_.send_next(produce, turn_of(now), take...); });
  }
  /// Collective; waits, unless the backend is deferred. Allocates what is not prepared. A mean
  /// whose norm is above `largest_norm` is clipped to it; 0: none is.
  template <class Produce>
  [[gnu::cold]] void agree(const Produce& produce, step_scalars* now, double largest_norm = 0,
                           const To& to = {}) {
    prepare(to);
    auto& s = exchange_.sender();
    // only a chunk that has words says its sum
    const std::size_t words = axis().n_words(), each = axis().chunk_words();
    const auto n_slots = static_cast<std::uint32_t>(words == 0 ? 0 : (words - 1) / each + 1);
    const slot_format& f = s.format();
    strided_floats squares{exchange_.heard_slots() + f.scales_at, f.slot_bytes, n_slots};
    if (!by_rank_order()) {
      sum_by_transport(produce, turn_of(now));
      squares = floats_of(s.sums(), axis().tiles().size());
    } else {
      send(to, now, [&](const auto&... take) { exchange_.agree(produce, turn_of(now), take...); });
      if (passes(to)) squares = floats_of(squares_.data(), n_slots);
    }
    s.backend().launch(
        1, mean_norm_kernel{now, squares, floats_of(s.new_scales(), axis().groups().size()),
                            static_cast<float>(largest_norm)});
  }
  /// Ends the step: nothing lasts but the memory.
  void finish(step_scalars* now) { exchange_.finish(turn_of(now)); }

  /// Allocates what was released, or was never there, or was for means that go elsewhere; whether
  /// it did.
  [[gnu::cold]] bool prepare(const To& to = {}) {
    if (exchange_.started() && (passes(to) || exchange_.hears_all())) return false;
    exchange_.release();
    auto space = !by_rank_order() ? exchange_.allocate_heard(false)
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
  [[nodiscard]] static turn<undo_in_buffer> turn_of(step_scalars* now) { return {now, {}, {}}; }
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
          launch_commit(
              s.backend(), now, part.end - part.begin,
              detail::take_mean_kernel<To>{mean, to, s.tiles(), part.begin, squares_.data()});
        });
      }
    }
    go();
  }
  template <class Produce>
  [[gnu::cold]] void sum_by_transport(const Produce& produce, const turn<undo_in_buffer>& t) {
    auto& s = exchange_.sender();
    const slot_format& f = s.format();
    const auto w = static_cast<std::uint32_t>(wire_.size());
    const auto n_slots = static_cast<std::uint32_t>(axis().n_slots());
    std::byte* slots = exchange_.heard_slots();
    for (int b = axis().n_buckets() - 1; b >= 0; --b) s.encode(produce, t, slots, b);
    const std::size_t bytes = n_slots * f.slot_bytes;
    slot_status *const all = statuses_.data(), *const own = all + w;
    s.backend().launch(1, detail::take_status_kernel{slots, f, n_slots, own});
    if (mode_ == dense_sum::transport_in_bf16) {
      wire_.all_reduce_sum(reinterpret_cast<bf16*>(slots), bytes / sizeof(bf16));
    } else {
      wire_.all_reduce_sum(reinterpret_cast<float*>(slots), bytes / sizeof(float));
    }
    // a status is no number that can be added up in any type: it travels by itself
    wire_.all_gather(own, all, sizeof *own);
    slot_format of_statuses = f;
    of_statuses.status_at = 0;
    of_statuses.slot_bytes = sizeof *own;
    s.backend().launch(1, check_kernel{.now = t.now,
                                       .slots = reinterpret_cast<std::byte*>(all),
                                       .format = of_statuses,
                                       .n = w,
                                       .n_ranks = w,
                                       .part = 0});
    s.backend().launch(axis().tiles().size(),
                       detail::mean_in_place_kernel{s.codec(), s.tiles(), f, slots, s.sums(),
                                                    1.0F / static_cast<float>(w), t.now});
  }

  dense_sum mode_;
  wire wire_;
  gather_scatter_exchange<detail::mean_codec, B> exchange_;
  buffer_of<B, float> squares_;         ///< by slot, where means go to the gradients
  buffer_of<B, slot_status> statuses_;  ///< of all ranks, and this one's: sums of the transport's
};

}  // namespace onebit::inline v0_1
