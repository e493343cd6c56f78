// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <string>
#include <utility>

/// Compressed all-gather: every rank sends its message to all ranks and averages what it received.
namespace onebit::inline v0_2 {

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
class all_gather_exchange : public flat_exchange<C, B> {
  static_assert(
      requires(const communicator& w, const std::byte* own, std::byte* all,
               std::size_t slot_bytes) { Gather(w).all_gather(own, all, slot_bytes); },
      "onebit: a Gather is built from a const communicator&, and has all_gather(const "
      "std::byte* own, std::byte* all, std::size_t slot_bytes)");
  using base = flat_exchange<C, B>;
  using base::make, base::sender_, base::comm_;

 public:
  using base::axis, base::slot_bytes;
  using typename base::byte_buffer, typename base::float_buffer, typename base::sender_type;
  using view = mean_view<C>;
  static constexpr bool own_messages = true;

  all_gather_exchange(C codec, const communicator& w, B backend, std::span<const std::size_t> sizes)
      : base(std::move(codec), w, std::move(backend), sizes, 1, 1), gather_(w) {}

  /// This and the following members are as in gather_scatter_exchange.
  struct space {
    two_sided<B, std::byte> gathered;
    byte_buffer own;
    float_buffer compensated;
  };
  [[nodiscard, gnu::cold]] space allocate(const exchange_memory& m) {
    space s;
    const std::size_t all = slot_bytes() * static_cast<std::size_t>(comm_.size());
    s.gathered = {m.previous ? make(all) : byte_buffer{}, make(all)};
    s.own = make(slot_bytes());
    s.compensated = sender_.make_compensated(m.compensated ? axis().n_words() : 0);
    return s;
  }
  [[gnu::cold]] void start(space&& s, initial_momentum<float_buffer>&& given) {
    gathered_ = std::move(s.gathered);
    own_ = std::move(s.own);
    start_sender(sender_, std::move(s.compensated), std::move(given));
  }
  [[nodiscard]] bool started() const { return gathered_.next.size() > 0; }

  [[nodiscard]] view previous(active_mask active) {
    return view_of(gathered_.current.data(), active, tile_room::previous);
  }
  [[nodiscard]] view latest(active_mask active) {
    return view_of(gathered_.next.data(), active, tile_room::latest);
  }

  /// The whole message is one bucket, so nothing is sent before all gradients are known.
  [[nodiscard]] int n_unsent() const { return 0; }
  template <class Produce, class Undo>
  [[gnu::cold]] void send_next(const Produce&, const exchange_args<Undo>&) {}

  /// Collective; blocks, unless the backend is deferred.
  template <class Produce, class Undo>
  [[gnu::cold]] void all_reduce(const Produce& produce, const exchange_args<Undo>& t) {
    sender_.encode(produce, t, own_.data(), 0);
    gather_.all_gather(own_.data(), gathered_.next.data(), slot_bytes());
    const auto w = static_cast<std::uint32_t>(comm_.size());
    B& backend = sender_.backend();
    sender_.check({.now = t.now, .slots = gathered_.next.data(), .n = w, .part = 0, .ranks = {w}});
    // The sum of finite messages may overflow. All ranks hold the same messages and decide alike.
    if (sender_type::scaled) {
      backend.launch(axis().slot_segments(),
                     finite_scales_kernel{t.now, gathered_.next.data(), sender_.format(), w});
    } else {
      backend.launch(axis().tiles().size(),
                     finite_kernel<view>{latest(t.active), sender_.tiles(), t.now});
    }
  }
  template <class Undo>
  [[gnu::cold]] void finish(const exchange_args<Undo>& t) {
    sender_.finish(t, gathered_.keeping(t.now));
  }

  template <class Rescaled, class Undo>
  [[gnu::cold]] void rescale(const Rescaled& rescaled, const exchange_args<Undo>& t) {
    sender_.rescale(rescaled, t, axis().all_tiles());
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
    return sender_.work_bytes() + gathered_.next.bytes() + own_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const exchange_memory& m) {
    archive_start(*this, a, m, gathered_, own_);
    sender_.archive(a);
    a.buffer(gathered_.current, sender_.backend());
  }

 private:
  [[nodiscard]] view view_of(const std::byte* slots, active_mask active, tile_room room) const {
    const int w = comm_.size();
    return {
        sender_.codec(), sender_.format(), slots, w, 1.0F / static_cast<float>(w), active, room};
  }

  Gather gather_;
  two_sided<B, std::byte> gathered_;  ///< W slots
  byte_buffer own_;                   ///< one slot: this rank's message
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
  using exchange = all_gather_exchange<compressor_or_identity<C>, B>;
  template <class B>
  [[nodiscard, gnu::cold]] exchange<B> bind(const communicator& w, const B& backend,
                                            std::span<const std::size_t> sizes) const {
    return {checked_compressor(codec), w, backend, sizes};
  }
  /// @}
};

static_assert(Collective<all_gather<identity>>);

}  // namespace onebit::inline v0_2
