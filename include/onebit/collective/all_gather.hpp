// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <string>
#include <utility>

/// Compressed all-gather: every rank sends its message to all ranks and averages what it received.
namespace onebit { inline namespace v0_3 {

/// Base of exchanges without servers: only workers encode and keep residuals; a bucket is one
/// chunk. The mean message is the sum of `n_slots` slots per bucket, divided by W. A derived class
/// adds all_reduce(), and sets own_messages = false if its sender encodes sums (example ring).
///
/// Memory: the sender, n_slots slots per bucket for the last exchange and as many for this one, and
/// n_work_slots slots of work space. The members are as in gather_scatter_exchange.
template <Compressor C, class B>
class worker_exchange : public detail::flat_exchange<C, B> {
  using base = detail::flat_exchange<C, B>;
  using base::make;

 protected:
  using base::comm_, base::sender_;

 public:
  using base::axis, base::slot_bytes;
  using typename base::byte_buffer, typename base::float_buffer;
  using view = detail::mean_view<C>;
  static constexpr bool own_messages = true;

  struct space {
    detail::double_buffer<B, std::byte> gathered;
    byte_buffer work;
    float_buffer compensated;
  };
  [[nodiscard, gnu::cold]] space allocate(const detail::exchange_memory& m) {
    space s;
    const std::size_t all = slot_bytes() * static_cast<std::size_t>(n_slots_) * sender_.n_buckets();
    s.gathered = {m.previous ? make(all) : byte_buffer{}, make(all)};
    s.work = make(slot_bytes() * n_work_slots_);
    s.compensated = sender_.make_compensated(m.compensated ? axis().n_words() : 0);
    return s;
  }
  [[gnu::cold]] void start(space&& s, initial_momentum<float_buffer>&& given) {
    gathered_ = std::move(s.gathered);
    work_ = std::move(s.work);
    detail::start_sender(sender_, std::move(s.compensated), std::move(given));
  }
  [[nodiscard]] bool started() const { return gathered_.next.size() > 0; }

  [[nodiscard]] view previous(active_mask active) {
    return view_of(gathered_.current.data(), active, tile_buffer::previous);
  }
  [[nodiscard]] view latest(active_mask active) {
    return view_of(gathered_.next.data(), active, tile_buffer::latest);
  }

  /// Nothing is sent early: 0 buckets.
  [[nodiscard]] int n_unsent() const { return 0; }
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce&, const exchange_args<Undo>&) {}
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    sender_.finish(t, gathered_.commit(t.now));
  }
  template <class Worker, class Server>
  [[gnu::cold]] void visit_residuals(const Worker& worker, const Server&) {
    worker(sender_, axis().all_tiles(), true);
  }
  [[nodiscard]] std::span<const float> server_residual() const { return {}; }
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return sender_.state_bytes() + gathered_.current.bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return sender_.work_bytes() + gathered_.next.bytes() + work_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const detail::exchange_memory& m) {
    detail::archive_start(*this, a, m, gathered_, work_);
    sender_.archive(a);
    a.buffer(gathered_.current, sender_.backend());
  }

 protected:
  worker_exchange(C codec, const communicator& w, B backend, std::span<const std::size_t> sizes,
                  int n_slots, std::size_t n_work_slots, int n_buckets = 1)
      : base(std::move(codec), w, std::move(backend), sizes, 1, n_buckets),
        n_slots_(n_slots),
        n_work_slots_(n_work_slots) {}
  /// Slots of this step, bucket after bucket: slot i.
  [[nodiscard]] std::byte* gathered(int i) { return slot(gathered_.next, i); }
  /// Work space: slot i.
  [[nodiscard]] std::byte* work(int i) { return slot(work_, i); }

 private:
  [[nodiscard]] std::byte* slot(byte_buffer& slots, int i) const {
    return slots.data() + static_cast<std::size_t>(i) * slot_bytes();
  }
  [[nodiscard]] view view_of(const std::byte* slots, active_mask active, tile_buffer room) const {
    const float inverse = 1.0F / static_cast<float>(comm_.size());
    return {sender_.codec(), sender_.format(), slots, n_slots_, inverse, active, room};
  }

  int n_slots_;
  std::size_t n_work_slots_;
  detail::double_buffer<B, std::byte> gathered_;
  byte_buffer work_;
};

/// Exchange in one phase. Every rank decodes the mean of W messages, so there is no server residual
/// and no second rounding; but bytes on the wire and memory grow with W.
///
/// Cost: 1 collective; W-1 slots of the whole vector sent per rank: n/8 (W-1) bytes for `sign`, W/2
/// times gather-scatter's bytes. Memory: the sender, W messages of the last exchange, W of work
/// space. Prefer it for 2 or 3 ranks, or small vectors, for which latency costs more than bytes.
///
/// `Gather` carries the slots. It is built from a communicator and has an all_gather like the
/// communicator's, on the backend's memory. A custom collective that differs only in how slots
/// travel is this exchange with its own Gather (example recursive_doubling).
template <Compressor C, class B, class Gather = communicator>
class all_gather_exchange : public worker_exchange<C, B> {
  static_assert(
      requires(const communicator& w, const std::byte* own, std::byte* all,
               std::size_t slot_bytes) { Gather(w).all_gather(own, all, slot_bytes); },
      "onebit: a Gather is built from a const communicator&, and has all_gather(const "
      "std::byte* own, std::byte* all, std::size_t slot_bytes)");
  using base = worker_exchange<C, B>;
  using base::sender_, base::comm_;

 public:
  all_gather_exchange(C codec, const communicator& w, B backend, std::span<const std::size_t> sizes)
      : base(std::move(codec), w, std::move(backend), sizes, w.size(), 1), gather_(w) {}

  /// Collective; blocks unless the backend is deferred.
  template <class Produce, class Undo>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t) {
    std::byte *const own = base::work(0), *const all = base::gathered(0);
    sender_.encode(produce, t, own, 0);
    gather_.all_gather(own, all, base::slot_bytes());
    const auto w = static_cast<std::uint32_t>(comm_.size());
    B& backend = sender_.backend();
    sender_.run_check({.now = t.now, .slots = all, .n = w, .part = 0, .ranks = {w}});
    // The sum of finite messages may overflow. All ranks hold equal messages, so all decide alike.
    if (base::sender_type::scaled) {
      backend.launch(base::axis().slot_segments(),
                     detail::finite_scales_kernel{t.now, all, sender_.format(), w});
    } else {
      backend.launch(base::axis().tiles().size(),
                     detail::finite_kernel<detail::mean_view<C>>{base::latest(t.active),
                                                                 sender_.tiles(), t.now});
    }
  }

 private:
  Gather gather_;
};

/// Collective policy: compressed all-gather.
template <class C>
struct all_gather : collective_defaults {
  static_assert((check_compressor<C>(), true));
  C codec{};  ///< the compressor

  all_gather() = default;
  /// @{
  /// Members required by Collective.
  explicit(false) all_gather(C c) : codec(std::move(c)) {}

  [[nodiscard, gnu::cold]] std::string name() const {
    return "all_gather of " + policy_name(codec);
  }
  template <class B>
  using exchange = all_gather_exchange<detail::compressor_or_identity<C>, B>;
  template <class B>
  [[nodiscard, gnu::cold]] exchange<B> bind(const communicator& w, const B& backend,
                                            std::span<const std::size_t> sizes) const {
    return {detail::checked_compressor(codec), w, backend, sizes};
  }
  /// @}
};

static_assert(Collective<all_gather<identity>>);

}}  // namespace onebit
