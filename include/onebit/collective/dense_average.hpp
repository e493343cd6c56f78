// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/message_header.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/clipping.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/param_group.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Exact means of gradients, in fp32, bf16 or int8, and the exchange of rounded values.
namespace onebit { inline namespace v0_3 {

/// Place and wire format of the sum of gradients. All modes but transport_in_bf16 sum in fp32.
enum class dense_sum : std::uint8_t {
  automatic,   ///< in_bf16 where gradients are bf16, else rank_order
  rank_order,  ///< all_to_all, sum in rank order, all_gather: the same bits on every transport
  transport,   ///< the transport's own allreduce: its speed and its order of summation
  /// As rank_order, in half the bytes. The loss scale is removed and each rank's gradient rounded
  /// to bf16 (fp16 would lose small gradients) before it is sent; the mean is rounded once more.
  in_bf16,
  /// As rank_order, in a quarter of the bytes. Every 32 elements are integers from -127 to 127
  /// times a common power of two, as in MXINT8 of the OCP Microscaling Formats. Elements below a
  /// 127th of the largest of the 32 are lost.
  in_int8,
  /// The transport's own allreduce of bf16, as in the usual 16-bit ring, of gradients without the
  /// loss scale. The transport rounds each partial sum, in its own order. Needs a
  /// HalfSummingTransport.
  transport_in_bf16
};
namespace detail {

/// True if the transport computes the sums.
[[nodiscard]] constexpr bool by_transport(dense_sum mode) {
  return mode == dense_sum::transport || mode == dense_sum::transport_in_bf16;
}

}  // namespace detail
/// Text for descriptions; starts with a comma.
[[nodiscard, gnu::cold]] inline std::string to_string(dense_sum mode) {
  return mode == dense_sum::transport           ? ", sums by the transport"
         : mode == dense_sum::transport_in_bf16 ? ", sums in bf16 by the transport"
         : mode == dense_sum::in_bf16           ? ", averages in bf16"
         : mode == dense_sum::in_int8           ? ", averages in int8"
                                                : ", averages in rank order";
}
namespace detail {

/// Returns `mode`, with `automatic` resolved for gradients of type G.
template <class G>
[[nodiscard]] dense_sum resolved(dense_sum mode) {
  if (mode != dense_sum::automatic) return mode;
  const bool halves = std::is_same_v<std::remove_const_t<G>, bf16>;
  return halves ? dense_sum::in_bf16 : dense_sum::rank_order;
}

/// Destination of a mean: the gradients, if no later pass needs the local gradients; else none: the
/// mean is read from the received slots. Chosen by step; only float gradients are overwritten.
template <class P, class G>
struct mean_destination {
  static constexpr bool in_gradients = std::is_same_v<G, float>;  ///< may overwrite gradients
  const tensor_entry<P, G>* tensors = nullptr;                    ///< null: no destination
};

/// Destination that is always none.
struct no_destination {
  static constexpr bool in_gradients = false;  ///< see mean_destination
  const void* tensors = nullptr;               ///< see mean_destination
};

/// Bytes on the wire per word of 32 elements.
[[nodiscard]] constexpr std::size_t word_bytes_of(dense_sum mode) {
  const bool half = mode == dense_sum::in_bf16 || mode == dense_sum::transport_in_bf16;
  return half ? rounded::halves : mode == dense_sum::in_int8 ? rounded::int8s : rounded::floats;
}

/// Mean as a field: read from the received slots, or from the gradients if it was written there.
template <class To>
struct mean_field {
  gathered_view<rounded> received;
  To written;

  template <class L>
  struct reader {
    tile_reader<L, rounded> received;
    const float* written;  ///< null: read `received`
    std::uint32_t n;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      if (written == nullptr) return received(k);
      return load_elements<L>(written, k, n);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    if (written.tensors != nullptr) return {{}, written.tensors[t.tensor].grads + t.offset, t.n};
    return {received.template at<L>(t, index).values, nullptr, t.n};
  }
};

/// Writes the mean of a tile to the gradients. The first tile of a chunk also stores the chunk's
/// sum of squares, received as its scale, in squares[chunk].
template <class To>
struct take_mean_kernel {
  gathered_view<rounded> received;
  To to;
  tiles_from tiles;
  float* squares;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto mean = received.template at<L>(t, tiles.first + i);
    float* const out = to.tensors[t.tensor].grads + t.offset;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words)
      store_elements<L>(out, k, t.n, mean(k));
    if (t.word == t.chunk * received.format.chunk_words)
      L::store_scalar(squares + t.chunk, mean.values.scale);
  }
};

/// Divides the sum of all ranks by their number, in place, and writes the sum of squares of each
/// tile. Calls the step off if a result is not finite.
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
    if (!(sum <= detail::largest_float)) L::raise(&now->verdict.skip);
  }
};

/// Collects this rank's status from all slots that it has written, and zeroes the status of the
/// slots: the transport then sums nothing but zeros there.
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

/// Null consumer of buckets: the mean is read where it was received.
inline constexpr const any_visitor* no_consumer = nullptr;

/// Slots of buckets, n per bucket. If memory does not suffice for all, buckets reuse it in turn.
struct slots_of_buckets {
  std::byte* first;
  std::size_t bytes;  ///< of all slots; 0: not allocated
  std::size_t n, slot_bytes;

  [[nodiscard]] std::byte* at(int b) const {
    const std::size_t places = bytes / (n * slot_bytes);
    return first + (places == 0 ? 0 : static_cast<std::size_t>(b) % places * n * slot_bytes);
  }
  /// Base pointer for slot numbers counted over all buckets, such that the slots of b lie at at(b).
  [[nodiscard]] std::byte* counted(int b) const {
    return at(b) - static_cast<std::ptrdiff_t>(static_cast<std::size_t>(b) * n * slot_bytes);
  }
};

/// Number of buckets of averages beside an exchange with buckets of `elements` elements; 0:
/// averages have buckets of 2^22 elements.
[[nodiscard]] inline int buckets_of_means(std::span<const std::size_t> sizes,
                                          std::size_t elements) {
  return n_buckets(sizes, elements != 0 ? elements : std::size_t{1} << 22U);
}

/// The two phases of gather_scatter_exchange for values that are only rounded. It carries no
/// residuals, and buckets may be consumed one by one, so that a few buckets' memory serves all.
template <class B>
class rounded_exchange {
 public:
  using view = gathered_view<rounded>;
  static constexpr int most_under_way = 4;  ///< buckets in flight, if they reuse memory

  rounded_exchange(rounded codec, const communicator& w, B backend,
                   std::span<const std::size_t> sizes, int n_buckets)
      : encoder_(codec, std::move(backend), sizes, w.size(), n_buckets),
        phases_(w, axis().n_buckets(), slot_bytes()) {}

  [[nodiscard]] bool travels() const { return phases_.travels(); }
  [[nodiscard]] const layout& axis() const { return encoder_.axis(); }
  [[nodiscard]] std::size_t slot_bytes() const { return encoder_.format().slot_bytes; }
  [[nodiscard]] encoder<rounded, B>& sender() { return encoder_; }
  [[nodiscard]] int n_unsent() const { return phases_.n_unsent(); }

  /// Use of the memory: a mean that is read as a whole, a mean whose buckets are consumed one by
  /// one, or only messages, which the transport sums.
  enum class use : std::uint8_t { whole, by_bucket, messages };
  [[gnu::cold]] void allocate(use of) {
    const bool all = of != use::by_bucket;
    auto make = [&](std::size_t n) {
      return encoder_.backend().template make_buffer<std::byte>(slot_bytes() * n);
    };
    const std::size_t places = travels() && of != use::messages ? few_buckets() : 0;
    auto gathered = make((all ? encoder_.n_buckets() : few_buckets()) * ranks());
    auto received = make(places * ranks()), served = make(places);
    gathered_ = std::move(gathered);
    received_ = std::move(received);
    served_ = std::move(served);
  }
  [[nodiscard]] bool allocated() const { return gathered_.size() > 0; }
  void release() noexcept {
    for (auto* buffer : {&gathered_, &received_, &served_}) *buffer = {};
  }
  /// True if there is memory for a mean that is read as a whole.
  [[nodiscard]] bool has_all_slots() const {
    return gathered_.size() == slot_bytes() * encoder_.n_buckets() * ranks();
  }
  [[nodiscard]] std::byte* slots() { return gathered_.data(); }
  /// Mean of this step, if it is read as a whole.
  [[nodiscard]] view latest() { return view_of(gathered_.data()); }

  /// As in gather_scatter_exchange. Calls `take(bucket, view)` for each received bucket; null: the
  /// mean is read as a whole.
  template <class Produce, class Take>
  [[gnu::cold]] void send_next(const Produce& produce, step_scalars* now, const Take* take) {
    make_way(now, take);
    const int b = phases_.next_to_send();
    encoder_.encode_bucket(produce, detail::no_feedback{}, args_of(now), gathered().counted(b), b);
    if (!B::deferred) phases_.poke();
    if (travels()) phases_.scatter(gathered().at(b), received().at(b));
  }
  template <class Produce, class Take>
  [[gnu::cold]] void all_reduce(const Produce& produce, step_scalars* now, const Take* take) {
    while (n_unsent() > 0) {
      send_next(produce, now, take);
      if (phases_.serves_now()) serve_next(now);
    }
    while (phases_.serves_now()) serve_next(now);
    if (take != nullptr) {
      while (n_taken_ < axis().n_buckets()) take_next(now, *take);
    } else {
      for (int i = 0; i < axis().n_buckets(); ++i) phases_.wait_gathered(i);
      encoder_.run_check(
          phases_.check_of(now, gathered_.data(), axis().n_buckets(), phases_.part_of_gathered()));
    }
  }
  /// Ends the step. Keeps nothing but the memory.
  void finish() {
    phases_.clear();
    n_taken_ = 0;
  }
  [[nodiscard]] static exchange_args<store_at_encode> args_of(step_scalars* now) {
    return {now, {}, {}};
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return encoder_.work_bytes() + gathered_.bytes() + received_.bytes() + served_.bytes();
  }

 private:
  [[nodiscard]] std::size_t ranks() const {
    return static_cast<std::size_t>(phases_.comm().size());
  }
  [[nodiscard]] std::size_t few_buckets() const {
    return (std::min<std::size_t>)(encoder_.n_buckets(), most_under_way);
  }
  [[nodiscard]] view view_of(const std::byte* slots) const {
    return {encoder_.codec(), encoder_.format(), slots, {}, tile_buffer::latest};
  }
  [[nodiscard]] detail::slots_of_buckets gathered() {
    return {gathered_.data(), gathered_.size(), ranks(), slot_bytes()};
  }
  [[nodiscard]] detail::slots_of_buckets received() {
    return {received_.data(), received_.size(), ranks(), slot_bytes()};
  }
  [[nodiscard]] detail::slots_of_buckets served() {
    return {served_.data(), served_.size(), 1, slot_bytes()};
  }
  /// Frees memory for the next bucket to send: serves (one bucket early), then consumes, old ones.
  template <class Take>
  [[gnu::cold]] void make_way(step_scalars* now, const Take* take) {
    const bool again = encoder_.n_buckets() > few_buckets();
    const int under_way = phases_.n_sent() - phases_.n_served();
    if (travels() && again && under_way == most_under_way - 1) serve_next(now);
    if (take != nullptr && phases_.n_sent() - n_taken_ == most_under_way) take_next(now, *take);
  }
  [[gnu::cold]] void serve_next(step_scalars* now) {
    // the slot for the average may still be in use by an earlier bucket: wait until that is sent
    const int before = phases_.n_served() - most_under_way;
    if (before >= 0) phases_.wait_gathered(before);
    const int b = phases_.next_to_serve();
    const auto part = static_cast<std::uint32_t>(b);
    std::byte* const slot = served().at(b);
    const auto mean =
        encoder_.mean(encoder_.format(), received().counted(b), phases_.comm().size());
    const int chunk = b * phases_.comm().size() + phases_.comm().rank();
    const auto scales = encoder_.encode_chunk(mean, detail::no_feedback{}, chunk, args_of(now),
                                              served().counted(b));
    encoder_.check_then_write_status(
        scales, phases_.check_of(now, received().at(b), 1, part),
        encoder_.write_status(slot, 1, message_tag::from_server + part, now));
    phases_.gather(slot, gathered().at(b));
  }
  /// Waits until the next served bucket is gathered, checks its status and passes it to `take`.
  template <class Take>
  [[gnu::cold]] void take_next(step_scalars* now, const Take& take) {
    const int b = phases_.bucket_at(n_taken_);
    phases_.wait_gathered(n_taken_++);
    encoder_.run_check(phases_.check_of(
        now, gathered().at(b), 1, phases_.part_of_gathered() + static_cast<std::uint32_t>(b)));
    take(b, view_of(gathered().counted(b)));
  }

  encoder<rounded, B> encoder_;
  buffer_of<B, std::byte> gathered_, received_, served_;  ///< as in gather_scatter_exchange
  int n_taken_ = 0;                                       ///< buckets consumed in this step
  detail::two_phases phases_;  // last: pending requests end before their buffers do
};

/// Averages a field over the ranks: by a rounded_exchange, which sums in fp32, or by the
/// transport's allreduce.
///
/// Cost: rank_order: 2 collectives a bucket, the volume of a ring allreduce, 2 (W-1)/W 4n bytes per
/// rank, plus a status of 12 bytes and a sum of squares per slot; in_bf16: half of that; in_int8:
/// 33/128; transport: its allreduce and an all_gather of 12 bytes; in bf16 half the allreduce.
/// Memory while in use: messages of 8 buckets if means go to gradients, else 4 bytes per element
/// and messages of 4 (in_bf16: half); transport: 4 bytes per element, in bf16 2.
template <class B, class To = detail::no_destination>
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
        statuses_(exchange_.sender().backend().template make_buffer<detail::slot_status>(
            by_rank_order() ? 0 : static_cast<std::size_t>(comm_.size()) + 1)) {
    if (mode == dense_sum::transport_in_bf16 && comm_.size() > 1) comm_.require_half_sums();
  }

  using received = gathered_view<rounded>;
  using view =
      detail::clipped_view<std::conditional_t<To::in_gradients, detail::mean_field<To>, received>>;
  /// Clipped mean; `to` as in `all_reduce`.
  [[nodiscard]] view latest(const step_scalars* now, [[maybe_unused]] const To& to = {}) {
    if constexpr (To::in_gradients) {
      return {{exchange_.latest(), passes(to) ? to : To{}}, {now}};
    } else {
      return {exchange_.latest(), {now}};
    }
  }
  [[nodiscard]] const layout& axis() const { return exchange_.axis(); }
  [[nodiscard]] auto& sender() { return exchange_.sender(); }
  void release() noexcept { exchange_.release(); }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return exchange_.work_bytes() + squares_.bytes() + statuses_.bytes();
  }

  /// Number of buckets not sent yet; `send_next` starts to send one: see gather_scatter_exchange.
  [[nodiscard]] int n_unsent() const { return by_rank_order() ? exchange_.n_unsent() : 0; }
  template <class Produce>
  [[gnu::cold]] void send_next(const Produce& produce, step_scalars* now, const To& to = {}) {
    prepare(to);
    with_consumer(to, now, [&](const auto* take) { exchange_.send_next(produce, now, take); });
  }
  /// Collective; blocks, unless the backend is deferred. Allocates memory that is not prepared.
  /// Clips the mean to the norm `largest_norm`; 0: does not clip.
  template <class Produce>
  [[gnu::cold]] void all_reduce(const Produce& produce, step_scalars* now, double largest_norm = 0,
                                const To& to = {}) {
    prepare(to);
    auto& s = exchange_.sender();
    // only chunks that have words carry a sum of squares
    const std::size_t words = axis().n_words(), each = axis().chunk_words();
    const auto n_slots = static_cast<std::uint32_t>(words == 0 ? 0 : (words - 1) / each + 1);
    const detail::slot_format& f = s.format();
    detail::strided_floats squares{exchange_.slots() + f.scales_at, f.slot_bytes, n_slots};
    if (!by_rank_order()) {
      sum_by_transport(produce, now);
      squares = floats_of(s.sums(), axis().tiles().size());
    } else {
      with_consumer(to, now, [&](const auto* take) { exchange_.all_reduce(produce, now, take); });
      if (passes(to)) squares = floats_of(squares_.data(), n_slots);
    }
    s.backend().launch(
        1, detail::mean_norm_kernel{now, squares, floats_of(s.new_scales(), axis().groups().size()),
                                    static_cast<float>(largest_norm)});
  }
  /// Ends the step. Keeps nothing but the memory.
  void finish() { exchange_.finish(); }

  /// Allocates memory, unless memory for this destination is there. Returns true if it allocated.
  [[gnu::cold]] bool prepare(const To& to = {}) {
    if (exchange_.allocated() && (passes(to) || exchange_.has_all_slots())) return false;
    exchange_.release();
    using use = typename detail::rounded_exchange<B>::use;
    exchange_.allocate(!by_rank_order() ? use::messages : passes(to) ? use::by_bucket : use::whole);
    return true;
  }

 private:
  [[nodiscard]] bool by_rank_order() const { return !by_transport(mode_) || !exchange_.travels(); }
  /// True if each bucket is copied to the gradients as it arrives: one more pass, which saves
  /// memory if there are many buckets. Sums by the transport arrive all at once.
  [[nodiscard]] bool passes(const To& to) const {
    const bool many = axis().n_buckets() > exchange_.most_under_way;
    return To::in_gradients && to.tensors != nullptr && many && by_rank_order();
  }
  /// Calls `go` with the consumer of buckets, or with null if the mean is read as received.
  template <class Go>
  [[gnu::cold]] void with_consumer([[maybe_unused]] const To& to,
                                   [[maybe_unused]] const step_scalars* now, const Go& go) {
    if constexpr (To::in_gradients) {
      const auto take = [&](int b, const received& mean) {
        auto& s = exchange_.sender();
        const tile_range part = axis().bucket_at(b).tiles;
        // a step that was called off leaves the gradients as they are
        launch_unless_skipped(
            s.backend(), now, part.end - part.begin,
            detail::take_mean_kernel<To>{mean, to, {s.tiles(), part.begin}, squares_.data()});
      };
      go(passes(to) ? &take : nullptr);
    } else {
      go(detail::no_consumer);
    }
  }
  template <class Produce>
  [[gnu::cold]] void sum_by_transport(const Produce& produce, step_scalars* now) {
    auto& s = exchange_.sender();
    const detail::slot_format& f = s.format();
    const auto w = static_cast<std::uint32_t>(comm_.size());
    const auto n_slots = static_cast<std::uint32_t>(axis().n_slots());
    std::byte* slots = exchange_.slots();
    for (int b = axis().n_buckets() - 1; b >= 0; --b) {
      s.encode_bucket(produce, detail::no_feedback{}, exchange_.args_of(now), slots, b);
    }
    const std::size_t bytes = n_slots * f.slot_bytes;
    detail::slot_status *const all = statuses_.data(), *const own = all + w;
    s.backend().launch(1, detail::take_status_kernel{slots, f, n_slots, own});
    if (mode_ == dense_sum::transport_in_bf16) {
      comm_.all_reduce_sum(detail::aligned_as<bf16>(slots), bytes / sizeof(bf16));
    } else {
      comm_.all_reduce_sum(detail::aligned_as<float>(slots), bytes / sizeof(float));
    }
    // no element type can sum status words: they are gathered separately
    comm_.all_gather(own, all, sizeof *own);
    detail::slot_format of_statuses = f;
    of_statuses.status_at = 0;
    of_statuses.slot_bytes = sizeof *own;
    s.backend().launch(1, detail::check_kernel{.now = now,
                                               .slots = reinterpret_cast<std::byte*>(all),
                                               .format = of_statuses,
                                               .n = w,
                                               .part = 0,
                                               .ranks = {w}});
    s.backend().launch(axis().tiles().size(),
                       detail::mean_in_place_kernel{s.codec(), s.tiles(), f, slots, s.sums(),
                                                    1.0F / static_cast<float>(w), now});
  }

  dense_sum mode_;
  communicator comm_;
  detail::rounded_exchange<B> exchange_;
  buffer_of<B, float> squares_;  ///< by slot; only if means go to gradients
  buffer_of<B, detail::slot_status>
      statuses_;  ///< of all ranks, then this one's; by_transport only
};

}  // namespace detail

}}  // namespace onebit
