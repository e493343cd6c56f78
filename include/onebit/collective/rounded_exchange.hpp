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
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <utility>
#include <vector>

/// Exchange of values that are rounded, and carry no residuals: the means of dense_average and
/// squares_average.
namespace onebit { inline namespace v0_3 { namespace detail {

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

}}}  // namespace onebit::detail
