// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/fields.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/collective/worker.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

/// The compressed allreduce of the papers: every rank averages one chunk.
namespace onebit {

/// One exchange in two phases, all tensors together: all_to_all of the workers' codes, then every
/// rank averages its chunk, encodes the average with a residual of its own, and all_gather.
///
/// Nothing that lasts changes before `commit`: when a rank saw a non-finite value, or a transport
/// threw, `rollback` leaves the bits of before. With one rank and a compressor that carries
/// nothing, nothing travels. Cost: 2 collectives, 2 (W-1) slots on the wire per rank. Memory:
/// worker_phase, the agreed message, 4/W bytes of server residual per element, and two messages of
/// work space. Source: 1-bit Adam (arXiv 2102.02888), section 4.2 and figure 3; the padding counts
/// nowhere.
template <Compressor C, class T, class B>
class two_phase {
 public:
  using worker = worker_phase<C, B>;
  template <class U>
  using buffer = typename worker::template buffer<U>;
  using view = gathered_view<C>;

  two_phase(C codec, T& transport, B backend, std::span<const std::size_t> sizes)
      : transport_(&transport),
        worker_(std::move(codec), std::move(backend), sizes, transport.size()) {}

  /// Allocates what the exchange needs; before that it costs nothing per element.
  void prepare() {
    if (pending_.size() > 0) return;
    const std::size_t slot = worker_.format().slot_bytes;
    const auto w = static_cast<std::size_t>(transport_->size());
    pending_ = make(slot * w);
    if (w > 1) {
      received_ = make(slot * w);
      served_ = make(slot);
    }
    if constexpr (worker::carries) {
      if (w == 1) return;
      server_ = worker_.backend().template make_buffer<float>(own_words() * word_elements);
    }
  }
  /// Keeps what was agreed for the next step, starting from zero.
  void keep_agreed() {
    prepare();
    if (agreed_.size() == 0) agreed_ = make(pending_.size());
  }
  /// Gives the memory back.
  void release() {
    for (auto* b : {&pending_, &received_, &served_, &agreed_}) *b = buffer<std::byte>{};
  }

  [[nodiscard]] worker& local() { return worker_; }
  /// What was agreed in the last committed exchange.
  [[nodiscard]] view agreed() { return view_of(agreed_.data()); }
  /// What was agreed in the exchange that is not committed yet.
  [[nodiscard]] view pending() { return view_of(pending_.data()); }

  /// Collective; waits. Pending becomes what the ranks agree on, unless skipped.
  template <class Produce, class Undo>
  outcome agree(const Produce& produce, const Undo& undo, std::uint64_t step) {
    const int w = transport_->size();
    worker_.encode(produce, undo, step, pending_.data());
    const slot_format& f = worker_.format();
    if (w == 1) return check(pending_.data(), step);

    transport_->all_to_all(pending_.data(), received_.data(), f.slot_bytes);
    if (check(received_.data(), step) == outcome::skipped) return outcome::skipped;

    *worker_.bad() = 0;
    const tile_range own = worker_.axis().chunk_tiles(transport_->rank());
    encode_chunk(own);
    const auto [first, n] = own_segments();
    worker_.backend().launch(
        n, scale_kernel<C>{worker_.codec(), worker_.segments() + first, worker_.sums(), nullptr,
                           worker::has_scales() ? served_.data() : nullptr, f.scales_at,
                           worker_.bad()});
    worker_.seal(served_.data(), step);

    transport_->all_gather(served_.data(), pending_.data(), f.slot_bytes);
    return check(pending_.data(), step);
  }

  /// Makes pending the agreed, and the residuals those of this exchange. One pass over the own
  /// chunk.
  void commit() {
    if constexpr (worker::carries) {
      if (transport_->size() > 1) commit_server();
    }
    worker_.commit();
    if (agreed_.size() > 0) std::swap(agreed_, pending_);
  }
  template <class Undo>
  void rollback(const Undo& undo) {
    worker_.rollback(undo);
  }

  /// Starts with nothing agreed and nothing carried, for rules that accumulate.
  void start_empty() {
    prepare();
    worker_.carry_nothing();
  }
  /// Forgets both residuals.
  void clear_residuals() {
    worker_.carry_nothing();
    worker_.hold_residual();
    server_ = {};
    release();
    prepare();
  }
  /// Starts from a momentum that was agreed without compression. A carrying compressor holds what
  /// the next message takes of it as the residual of a zero message: the same bits as that momentum
  /// and no residual, since messages start from the residual.
  void adopt(handover<buffer<float>>&& given) {
    keep_agreed();
    B& backend = worker_.backend();
    if constexpr (worker::carries) {
      backend.launch(worker_.axis().tiles().size(),
                     detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                   given.factors, given.decay});
      worker_.carry(std::move(given.momentum));
    } else {
      backend.launch(worker_.axis().tiles().size(),
                     detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                   given.factors, 1.0F});
      backend.launch(
          worker_.axis().tiles().size(),
          detail::store_field_kernel<detail::flat_field>{
              {given.momentum.data()}, worker_.tiles(), worker_.format(), agreed_.data()});
    }
  }

  /// My chunk's residual: by element of the flat axis, from the chunk's first word.
  [[nodiscard]] std::span<const float> server_residual() const {
    return {server_.data(), server_.size()};
  }
  /// Takes over `values` as my chunk's residual, after `prepare`.
  void carry_server(buffer<float>&& values) { server_ = std::move(values); }
  /// W slots, as `pending` reads them.
  [[nodiscard]] std::byte* pending_slots() { return pending_.data(); }
  [[nodiscard]] std::size_t state_bytes() const {
    return worker_.state_bytes() + server_.bytes() + agreed_.bytes();
  }
  [[nodiscard]] std::size_t work_bytes() const {
    return worker_.work_bytes() + pending_.bytes() + received_.bytes() + served_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    std::uint8_t holds = agreed_.size() > 0 ? 2 : pending_.size() > 0 ? 1 : 0;
    a.scalar(holds);
    if constexpr (Archive::reading) {
      release();
      if (holds > 0) prepare();
      if (holds > 1) keep_agreed();
    }
    worker_.archive(a);
    a.buffer(server_, worker_.backend());
    a.buffer(agreed_, worker_.backend());
  }

 private:
  [[nodiscard]] buffer<std::byte> make(std::size_t n) {
    return worker_.backend().template make_buffer<std::byte>(n);
  }
  [[nodiscard]] view view_of(const std::byte* slots) {
    return {worker_.codec(), worker_.format(), slots, worker_.live()};
  }
  [[nodiscard]] mean_view<C> mean() {
    const int w = transport_->size();
    return {worker_.codec(), worker_.format(), received_.data(), w, 1.0F / static_cast<float>(w),
            live_mask{}};
  }
  [[nodiscard]] outcome check(const std::byte* slots, std::uint64_t step) const {
    return check_statuses(slots, worker_.format(), step, transport_->rank(), transport_->size());
  }
  [[nodiscard]] std::size_t first_word() const {
    return static_cast<std::size_t>(transport_->rank()) * worker_.axis().chunk_words();
  }
  [[nodiscard]] std::size_t own_words() const {
    const std::size_t n = worker_.axis().n_words();
    const std::size_t first = first_word();
    return first >= n ? 0 : std::min(worker_.axis().chunk_words(), n - first);
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> own_segments() const {
    const auto& all = worker_.axis().segments();
    const auto rank = static_cast<std::uint32_t>(transport_->rank());
    std::size_t first = 0;
    while (first < all.size() && all[first].chunk < rank) ++first;
    std::size_t end = first;
    while (end < all.size() && all[end].chunk == rank) ++end;
    return {first, end - first};
  }
  void commit_server() {
    const tile_range own = worker_.axis().chunk_tiles(transport_->rank());
    worker_.backend().launch(own.end - own.begin,
                             server_residual_kernel<mean_view<C>, view>{
                                 mean(), pending(), worker_.live(), worker_.tiles(), own.begin,
                                 server_.data(), first_word()});
  }
  void encode_chunk(tile_range own) {
    const auto run = [&](const auto& carry) {
      using carry_type = std::remove_cvref_t<decltype(carry)>;
      worker_.backend().launch(
          own.end - own.begin,
          encode_kernel<C, mean_view<C>, carry_type>{worker_.codec(), mean(), carry, worker_.live(),
                                                     worker_.tiles(), own.begin, worker_.format(),
                                                     served_.data(), true, worker_.sums()});
    };
    if constexpr (worker::carries) {
      run(read_carry{server_.data(), first_word()});
    } else {
      run(no_carry{});
    }
  }

  T* transport_;
  worker worker_;
  buffer<std::byte> agreed_;    ///< W slots: the momentum, in the form in which it arrived
  buffer<std::byte> pending_;   ///< W slots: first what is sent, then what is gathered
  buffer<std::byte> received_;  ///< W slots: my chunk from every rank
  buffer<std::byte> served_;    ///< one slot: my chunk's average
  buffer<float> server_;        ///< my chunk's residual
};

/// The exchange that fits the number of ranks: `Compressed`, or with one rank an exact one.
template <class Compressed, bool Accumulates, class T, class B>
class exchange_for_ranks {
 public:
  template <class C>
  exchange_for_ranks(const C& codec, T& transport, const B& backend,
                     std::span<const std::size_t> sizes)
      : exchange_(make(codec, transport, backend, sizes)) {}

  template <class F>
  decltype(auto) with(F&& f) {
    return std::visit(std::forward<F>(f), exchange_);
  }

 private:
  using exact_codec = basic_identity<Accumulates>;
  using exact = two_phase<exact_codec, T, B>;
  static constexpr bool always_exact = std::is_same_v<Compressed, exact>;
  using either =
      std::conditional_t<always_exact, std::variant<exact>, std::variant<exact, Compressed>>;

  template <class C>
  static either make(const C& codec, T& transport, const B& backend,
                     std::span<const std::size_t> sizes) {
    if constexpr (!always_exact) {
      if (transport.size() > 1) return Compressed(codec, transport, backend, sizes);
    }
    return exact(exact_codec{}, transport, backend, sizes);
  }
  either exchange_;
};

/// Collective policy: gather-scatter with error feedback on both sides. With one rank the exchange
/// is exact, and the algorithm the uncompressed one.
template <class C>
struct gather_scatter {
  static_assert((check_compressor<C>(), true));
  C codec{};

  [[nodiscard]] std::string name() const { return "gather_scatter of " + policy_name(codec); }

  template <class T, class B, bool Accumulates>
  auto bind(T& transport, const B& backend, std::span<const std::size_t> sizes) const {
    if constexpr (std::is_same_v<C, identity>) {
      using exchange = two_phase<basic_identity<Accumulates>, T, B>;
      return exchange_for_ranks<exchange, Accumulates, T, B>(basic_identity<Accumulates>{},
                                                             transport, backend, sizes);
    } else {
      return exchange_for_ranks<two_phase<C, T, B>, Accumulates, T, B>(codec, transport, backend,
                                                                       sizes);
    }
  }
};

template <class C>
gather_scatter(C) -> gather_scatter<C>;

}  // namespace onebit
