// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/dense_average.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

/// What a refresh of v does to a step.
///
///     average   before parameters change: what the ranks' own v have taken in, in 6 bits, and
///               sketches of their gradients beside; from these rho and the mean gradient's norm
///     refresh   after they have: v, and the ranks' own v anew, with this step's gradient; which
///               elements are active; what is carried of elements that become active
namespace onebit { inline namespace v0_3 { namespace detail {

/// Message that leaves a residual as it is, except in elements that become active. These had no
/// part in m, the previous mean message; yet the next message adds beta1 m. So beta1 m is taken off
/// their residual.
template <class View>
struct woken_message {
  View previous;              ///< of all elements, active or not
  active_mask active, after;  ///< before and after the refresh
  const tensor_scalars* scalars;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    active_mask active, after;
    std::size_t word;
    float beta1;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto without = L::sub(base, L::mul(previous(k), L::set(beta1)));
      return active.template select<L>(word + k, base,
                                       after.template select<L>(word + k, without, base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {previous.template at<L>(t, index), active, after, t.word, scalars[t.tensor].own_beta1};
  }
};

/// Swaps the mask before a refresh with the one after it. One call handles 1024 words.
struct swap_masks_kernel {
  static constexpr bool one_isa = true;
  static constexpr std::size_t words_at_once = 1024;
  std::uint32_t *a, *b;
  std::size_t n_words;

  [[nodiscard]] ONEBIT_HD std::size_t launches() const {
    return (n_words + words_at_once - 1) / words_at_once;
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t first = i * words_at_once, left = n_words - first;
    const std::size_t end = first + (left < words_at_once ? left : words_at_once);
    for (std::size_t k = first + L::own_index(); k < end; k += L::n_indices()) {
      const std::uint32_t was = a[k];
      a[k] = b[k];
      b[k] = was;
    }
  }
};

/// Message that leaves a sum of local steps as it is: it has no part of the previous mean.
struct unchanged_message {
  template <class L>
  struct reader {
    ONEBIT_HD typename L::value operator()(std::uint32_t, const typename L::value& base) const {
      return base;
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile&, std::size_t) const {
    return {};
  }
};

/// Averages squares of the ranks' gradients, in 6 bits (5, and an exponent for 32 elements), and
/// floats beside them, in 16 bits.
///
/// Cost: 2 collectives per bucket, and 2 for the floats beside; 2 (W-1)/W 0.75 bytes per element,
/// 4 (W-1)/W bytes per float beside. Memory while in use: 0.75 bytes per element for the mean,
/// 0.75 (1 + 1/W) for messages of up to 4 buckets, 4 + 2/W per float beside; and `work`, 4 bytes
/// per float beside and at home.
template <class B>
class squares_average {
 public:
  /// Takes the sizes of tensors, the number of floats that travel beside squares and of those
  /// that do not, and the bucket size of dense averages. Not collective.
  squares_average(const communicator& w, const B& backend, std::span<const std::size_t> sizes,
                  std::size_t n_beside, std::size_t n_at_home, std::size_t bucket_elements)
      : squares_(rounded::to_powers_of_two(), w, backend, sizes,  // must sum values: see rounded
                 buckets_of_means(sizes, bucket_elements)),
        beside_(rounded::to_roots(), w, backend, std::span(&n_beside, 1), 1),
        n_work_(n_beside + n_at_home) {}

  [[nodiscard]] rounded_exchange<B>& squares() { return squares_; }  ///< holds the mean squares
  [[nodiscard]] rounded_exchange<B>& beside() { return beside_; }    ///< mean floats beside
  /// Collective; blocks, unless the backend is deferred.
  template <class Squares, class Beside>
  [[gnu::cold]] void all_reduce(const Squares& squares, const Beside& beside, step_scalars* now) {
    squares_.all_reduce(squares, now, detail::no_consumer);
    // a rank that is out of step may not join a second collective
    if (const step_scalars* const seen = host_view<B>(now);
        seen && seen->verdict.mismatched_rank != 0)
      return;
    beside_.all_reduce(beside, now, detail::no_consumer);
  }
  /// Ends the step. Keeps nothing but the memory.
  void finish() {
    squares_.finish();
    beside_.finish();
  }
  /// Work space that the rule uses: refresh_floats (rule/sketch.hpp).
  [[nodiscard]] float* work() { return work_.data(); }
  /// Allocates the memory, unless it is there. Returns true if it allocated.
  [[gnu::cold]] bool prepare() {
    if (work_.size() > 0) return false;
    auto work = squares_.sender().backend().template make_buffer<float>(n_work_);
    squares_.allocate(rounded_exchange<B>::use::whole);
    beside_.allocate(rounded_exchange<B>::use::whole);
    work_ = std::move(work);
    return true;
  }
  /// Frees the memory.
  void release() noexcept {
    squares_.release();
    beside_.release();
    work_ = {};
  }
  /// Bytes of tables and of the memory that is allocated now.
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return squares_.work_bytes() + beside_.work_bytes() + work_.bytes();
  }

 private:
  rounded_exchange<B> squares_, beside_;
  std::size_t n_work_;
  buffer_of<B, float> work_;
};

/// Refresh of v by a RefreshingRule R. `E` is an engine.
///
/// Cost: 2 collectives per bucket and 2 for the floats beside; 2 (W-1)/W bytes times 0.75 per
/// element and 0.02 (LAMB: 0.05 to 0.14) beside. Passes: 2 bytes per element to encode, 6 for v and
/// its squares, 8 for what is carried, and the gradients twice. Memory while in use: see
/// squares_average; a bit per element from the first refresh on.
template <class B, class R, bool Refreshes>
class variance_refresh {
 public:
  variance_refresh(const communicator& w, R& rule, const std::vector<std::size_t>& sizes,
                   const layout& messages, std::size_t bucket_elements)
      : average_(w, rule.backend(), sizes, R::n_floats_beside(messages),
                 R::n_floats_at_home(messages), bucket_elements) {}

  /// Allocates the memory, unless it is there. Returns true if it allocated.
  template <class E>
  [[gnu::cold]] bool prepare(E& e) {
    if (active_.size() > 0 || e.exchange.axis().n_words() == 0) return average_.prepare();
    auto active = e.exchange.make_mask();
    const bool allocated = average_.prepare();
    active_ = std::move(active);
    return allocated;
  }
  /// Frees the memory, but for the mask: a bit per element.
  void release() noexcept { average_.release(); }
  /// Forgets the elements that were active before the last refresh: after a load.
  void forget() noexcept { active_ = {}; }
  [[nodiscard]] std::size_t work_bytes() const { return average_.work_bytes() + active_.bytes(); }

  /// Averages the ranks' squares, and the floats beside. Collective.
  template <class E, class At>
  void average(E& e, const At& at) {
    float* const work = average_.work();
    average_.all_reduce(e.rule.own_squares(), e.rule.floats_beside(at, work), e.now());
    e.rule.take_floats_beside(average_.beside().latest(), on_axis_of(average_.beside(), e), at,
                              e.now(), work);
  }
  /// Ends the step for the collectives. Keeps nothing but the memory.
  void finish() { average_.finish(); }
  /// Active elements before the last refresh; null if nobody knows, as after a load.
  [[nodiscard]] active_mask before() const { return {active_.data()}; }
  /// Updates v and the active elements, once the step is kept.
  template <class E, class At, class Args>
  void refresh(E& e, const At& at, const Args& args) {
    const active_mask after{active_.data()};
    e.rule.refresh_variance(average_.squares().latest(), on_axis_of(average_.squares(), e), at,
                            active_.data(), average_.work());
    if constexpr (R::accumulates) {
      e.exchange.fold_in(detail::unchanged_message{}, args);
    } else {
      const auto previous = e.exchange.previous({});
      using message = detail::woken_message<std::remove_const_t<decltype(previous)>>;
      e.exchange.fold_in(message{previous, e.mask(), after, at.scalars}, args);
    }
    const swap_masks_kernel swap{active_.data(), e.exchange.active().data(), active_.size()};
    at.launch(swap.launches(), swap);
    at.launch(e.tensors.size(), detail::begin_since_kernel{e.tensors.scalars.data()});
    e.exchange.count_active(e.mask());
  }

 private:
  template <class E>
  [[nodiscard]] static auto on_axis_of(rounded_exchange<B>& x, E& e) {
    return x.sender().at(e.tensors.table.data(), e.tensors.scalars.data(), e.now(), e.mask());
  }

  detail::squares_average<B> average_;
  buffer_of<B, std::uint32_t> active_;  ///< in a refresh: mask after it; then: before it
};

/// Stand-in where v is never refreshed: does nothing.
template <class B, class R>
class variance_refresh<B, R, false> {
 public:
  template <class... Unused>
  explicit variance_refresh(const Unused&...) {}
  template <class E>
  [[nodiscard]] bool prepare(E&) {
    return false;
  }
  template <class... Unused>
  void average(const Unused&...) {}
  template <class... Unused>
  void refresh(const Unused&...) {}
  void finish() noexcept {}
  [[nodiscard]] active_mask before() const { return {}; }
  void release() noexcept {}
  void forget() noexcept {}
  [[nodiscard]] std::size_t work_bytes() const { return 0; }
};

}  // namespace detail

}}  // namespace onebit
