// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/slot.hpp>
#include <onebit/collective/worker.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>

/// Every rank sends its compressed vector to all, and averages what it got.
namespace onebit {

namespace detail {

/// Calls the step off when the ranks' scales at one place have no finite sum.
struct finite_scales_kernel {
  step_scalars* now;
  const std::byte* slots;
  slot_format format;
  std::uint32_t n;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t place) const {
    float sum = 0;
    for (std::uint32_t r = 0; r < n; ++r) {
      sum += load_scalar<float>(slots + r * format.slot_bytes + format.scales_at + 4 * place);
    }
    if (!(L::abs_scalar(sum) <= 3.402823466e38F)) L::raise(&now->skip);
  }
};

}  // namespace detail

/// One exchange in one phase. What is agreed is a mean of W messages, not one message, so there is
/// no server residual and no second rounding; but the wire and the memory grow with W.
///
/// Cost: 1 collective, (W-1) slots of the whole vector on the wire per rank: n/8 (W-1) bytes for
/// `sign`, W/2 times the gather-scatter's. Memory: worker_phase, W messages agreed, W of work
/// space. Prefer it for 2 or 3 ranks, or vectors so small that a second round trip costs more than
/// bytes.
template <Compressor C, class T, class B>
class one_phase {
 public:
  using worker = worker_phase<C, B>;
  template <class U>
  using buffer = typename worker::template buffer<U>;
  using view = mean_view<C>;
  /// Whether its encode pass overwrites carried values, and saves them where it is told.
  static constexpr bool saves = worker::carries;

  one_phase(C codec, T& transport, B backend, std::span<const std::size_t> sizes, int = 1)
      : transport_(&transport), worker_(std::move(codec), std::move(backend), sizes, 1) {}

  void prepare() {
    if (agreed_.size() > 0) return;
    const std::size_t slot = worker_.format().slot_bytes;
    const auto w = static_cast<std::size_t>(transport_->size());
    own_ = worker_.backend().template make_buffer<std::byte>(slot);
    pending_ = worker_.backend().template make_buffer<std::byte>(slot * w);
    agreed_ = worker_.backend().template make_buffer<std::byte>(slot * w);
  }

  [[nodiscard]] worker& local() { return worker_; }
  [[nodiscard]] view agreed() { return view_of(agreed_.data()); }
  [[nodiscard]] view pending() { return view_of(pending_.data()); }

  /// All is one bucket here: it goes when all gradients are known.
  [[nodiscard]] int n_unsent() const { return 0; }
  template <class Produce, class Undo>
  void send_next(const Produce&, const Undo&, step_scalars*) {}

  /// Collective; waits, unless the backend is deferred.
  template <class Produce, class Undo>
  outcome agree(const Produce& produce, const Undo& undo, step_scalars* now) {
    encoded_ = true;
    worker_.encode(produce, undo, now, own_.data(), 0);
    transport_->all_gather(own_.data(), pending_.data(), worker_.format().slot_bytes);
    const auto w = static_cast<std::uint32_t>(transport_->size());
    worker_.backend().launch(1, check_kernel{now, pending_.data(), worker_.format(), w, w});
    const outcome o = so_far(now);
    if (o == outcome::skipped) return o;
    require_finite_mean(now);
    return so_far(now);
  }
  void commit(const step_scalars* now) {
    worker_.commit(now);
    if constexpr (B::deferred) {
      commit_copy(worker_.backend(), now, pending_, agreed_);
    } else {
      std::swap(agreed_, pending_);
    }
    encoded_ = false;
  }
  template <class Undo>
  void rollback(const Undo& undo, const step_scalars* now, bool if_skipped) {
    if (encoded_) worker_.rollback(undo, now, 0, if_skipped);
    encoded_ = false;
  }

  void start_empty() {
    prepare();
    worker_.carry_nothing();
  }
  void clear_residuals() {
    worker_.carry_nothing();
    worker_.hold_residual();
  }
  /// As two_phase::adopt.
  void adopt(handover<buffer<float>>&& given) {
    prepare();
    worker_.backend().launch(worker_.axis().tiles().size(),
                             detail::scale_in_place_kernel{given.momentum.data(), worker_.tiles(),
                                                           given.factors, given.decay});
    worker_.carry(std::move(given.momentum));
  }

  [[nodiscard]] std::span<const float> server_residual() const { return {}; }
  [[nodiscard]] std::size_t state_bytes() const { return worker_.state_bytes() + agreed_.bytes(); }
  [[nodiscard]] std::size_t work_bytes() const {
    return worker_.work_bytes() + pending_.bytes() + own_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    worker_.archive(a);
    a.buffer(agreed_, worker_.backend());
    if (Archive::reading && agreed_.size() > 0) {
      auto agreed = std::move(agreed_);
      prepare();
      agreed_ = std::move(agreed);
    }
  }

 private:
  /// Can the sum of finite messages overflow? All ranks hold the same messages and decide alike.
  void require_finite_mean(step_scalars* now) {
    if constexpr (!worker::has_scales()) {
      worker_.require_finite(pending(), now);
    } else {
      worker_.backend().launch(
          worker_.axis().slot_segments(),
          detail::finite_scales_kernel{now, pending_.data(), worker_.format(),
                                       static_cast<std::uint32_t>(transport_->size())});
    }
  }
  [[nodiscard]] outcome so_far(step_scalars* now) {
    return outcome_so_far(worker_.backend(), now, transport_->rank(), transport_->size());
  }
  [[nodiscard]] view view_of(const std::byte* slots) {
    const int w = transport_->size();
    return {worker_.codec(), worker_.format(), slots, w, 1.0F / static_cast<float>(w),
            worker_.live()};
  }

  T* transport_;
  worker worker_;
  buffer<std::byte> agreed_;
  buffer<std::byte> pending_;
  buffer<std::byte> own_;
  bool encoded_ = false;  ///< in this step
};

/// Collective policy: compressed all-gather. With one rank the exchange is exact.
template <class C>
struct all_gather {
  static_assert((check_compressor<C>(), true));
  C codec{};

  [[nodiscard]] std::string name() const { return "all_gather of " + policy_name(codec); }

  template <class T, class B, bool Accumulates>
  auto bind(T& transport, const B& backend, std::span<const std::size_t> sizes) const {
    return exchange_for_ranks<one_phase<C, T, B>, Accumulates, T, B>(codec, transport, backend,
                                                                     sizes);
  }
};

template <class C>
all_gather(C) -> all_gather<C>;

}  // namespace onebit
