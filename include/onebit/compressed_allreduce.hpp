// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <onebit/backend/host.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/stateful_exchange.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/mismatch.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/restore.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Compressed mean without an optimizer, for trainers that have their own.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Writes a mean over the data of each tensor. Values beyond the range of fp16 become its largest.
template <class View, class T>
struct store_mean_kernel {
  View mean;
  const tile* tiles;
  const tensor_entry<T, T>* tensors;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tiles[i];
    const auto value = mean.template at<L>(t, i);
    const parameters_of<L, T> data(tensors[t.tensor], t);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto v = value(k);
      data.store(k, std::is_same_v<T, fp16> ? L::bound(v, 65504) : v);
    }
  }
};

/// State of a compressed_allreduce that lasts from call to call.
template <class C, class T, class B>
struct allreduce_state {
  using exchange_type = stateful_exchange<typename C::template exchange<B>>;

  [[gnu::cold]] allreduce_state(communicator w, std::vector<std::size_t> of, const C& collective,
                                B own_backend)
      : comm(std::move(w)),
        sizes(std::move(of)),
        name("compressed_allreduce, " + element_name() + ", " + policy_name(collective) + ", " +
             collective.agreement()),
        backend(std::move(own_backend)),
        exchange(collective_try(comm,
                                [&] {
                                  check_streams(comm, backend);
                                  return collective.bind(comm, backend, checked());
                                })),
        now(to_buffer(backend, std::vector<step_scalars>(1))),
        entries(sizes.size()),
        table(to_buffer(backend, entries)),
        announced(sizes.size(), 0) {
    rank_fingerprint own = fingerprint();
    own.number = next_number();
    const step_scalars s = first_scalars(comm, compare_fingerprints(comm, own, sizes));
    backend.copy_in(now.data(), &s, 1);
    if (has_other_ranks()) exchange.start_from_nothing({});
  }
  /// True if there are other ranks, even if all share the only node of a hierarchy.
  [[nodiscard]] bool has_other_ranks() const { return comm.size() > 1; }
  [[nodiscard]] static std::string element_name() {
    return std::is_same_v<T, float> ? "float" : std::is_same_v<T, bf16> ? "bf16" : "fp16";
  }
  /// Returns the sizes. Throws invalid_input if memory cannot hold them.
  [[nodiscard]] std::span<const std::size_t> checked() const {
    std::size_t left = PTRDIFF_MAX / sizeof(float);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      if (sizes[t] > left) {
        throw invalid_input(error_text("compressed_allreduce: tensor ", t, " has ", sizes[t],
                                       " elements, more than memory can hold", comm.where()));
      }
      left -= sizes[t];
    }
    return sizes;
  }
  /// Returns true if data lie elsewhere than in the last call. Throws invalid_input if they have
  /// other sizes, overlap or are null.
  [[nodiscard]] bool fits(std::span<const std::span<T>> data) const {
    if (data.size() != sizes.size()) {
      throw invalid_input(error_text("compressed_allreduce: data of ", data.size(),
                                     " tensors, built for ", sizes.size(), comm.where()));
    }
    bool moved = false;
    for (std::size_t t = 0; t < data.size(); ++t) {
      if (data[t].size() != sizes[t]) {
        throw invalid_input(error_text("compressed_allreduce: tensor ", t, " has ", data[t].size(),
                                       " elements, built for ", sizes[t], comm.where()));
      }
      moved = moved || data[t].data() == nullptr || entries[t].params != data[t].data();
    }
    if (!moved) return false;
    std::vector<memory_range> ranges;
    for (std::size_t t = 0; t < data.size(); ++t) {
      if (sizes[t] == 0) continue;
      const char* const first = reinterpret_cast<const char*>(data[t].data());
      ranges.push_back({first, first, t, sizes[t], "data", true});
      check_range(ranges.back(), sizeof(T), "compressed_allreduce", comm.where());
      ranges.back().end += sizes[t] * sizeof(T);
    }
    check_overlap(std::move(ranges), "compressed_allreduce", comm.where());
    return true;
  }
  [[nodiscard]] rank_fingerprint fingerprint() const {
    return make_fingerprint(name, sizes, 0, exchange.slot_bytes());
  }
  [[nodiscard]] checkpoint_header header() const {
    return header_of(comm, fingerprint(), step, exchange.ranks_per_node());
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a) {
    a.scalar(step);
    exchange.archive(a, {});
    if (Archive::reading) {
      if (exchange.started()) exchange.allocate_undo({});
    }
  }
  void check_read(resume_with) const {}
  void restore_options(resume_with) const {}
  [[gnu::cold]] void adopt() {
    if (exchange.active().size() > 0) exchange.count_active(exchange.mask());
  }

  communicator comm;
  std::vector<std::size_t> sizes;
  std::string name;
  B backend;
  exchange_type exchange;
  buffer_of<B, step_scalars> now;  ///< one element: numbers of the call in progress
  std::vector<tensor_entry<T, T>> entries;
  buffer_of<B, tensor_entry<T, T>> table;  ///< `entries` in the backend's memory
  std::vector<char> announced;             ///< by tensor: 1 if its data are final
  std::uint64_t step = 0;                  ///< number of calls that ended
  bool begun = false;
};

}  // namespace detail

/// Compressed mean over all ranks, with error feedback: the exchange of 1-bit optimizers, for data
/// of any meaning. The part of the data that compression drops in a call, the residual, is added to
/// the data of the next call. So the sum of all means is the sum of the exact means, minus the last
/// residuals. If data shrink from call to call, early residuals exceed later data: `sign` drops
/// more than it sends, quantized<4> little.
///
/// A single mean is not the exact mean. With sign<> the first means of ones are 1.571,
/// 0.775, 1.077, 0.975, 1.008: values of one size suit scales worst, which are 1.25 times a root
/// mean square. What one mean has too much the next ones lack, so that their sum is right.
///
/// Built once, collectively by all ranks over tensors of equal sizes, and called in each step.
/// Movable; a moved-from object may only be assigned to or destroyed.
///
/// C: a Collective (gather_scatter, all_gather, hierarchical) with a compressor
/// T: float, bf16 or fp16, to which means are rounded
/// B: a Backend, in whose memory the data lie
///
/// Memory with gather_scatter of `sign`: 4 + 4/W bytes and 1 bit per element that last, and the
/// messages. Source: 1-bit Adam (arXiv 2102.02888), section 4.2, with data as the momentum.
template <class C = gather_scatter<sign<>>, class T = float, class B = host>
class compressed_allreduce {
  static_assert(detail::Element<T>, "onebit: data must be float, bf16 or fp16");
  using state = detail::allreduce_state<detail::collective_for<C>, T, B>;

 public:
  using tensors = std::span<const std::span<T>>;  ///< data, in the order of the sizes

  /// Collective: compares sizes, collective and compressor of the ranks, and throws on all ranks if
  /// one differs. Throws invalid_input, rank_mismatch.
  template <class Transport>
  [[gnu::cold]] compressed_allreduce(Transport transport, std::vector<std::size_t> sizes,
                                     const C& collective = {}, B backend = B())
      : state_(std::make_unique<state>(detail::communicator_of<C>(std::move(transport)),
                                       std::move(sizes), detail::checked_collective(collective),
                                       std::move(backend))) {}

  /// Replaces the data on each rank by the compressed mean over the ranks of data plus residual:
  /// equal bits on all ranks. With one rank data stay unchanged, even non-finite ones.
  ///
  /// Collective; blocks unless the backend is deferred. Cost with gather_scatter: 2 collectives per
  /// bucket, 2 (W-1)/W n/8 bytes sent for `sign`, plus scales and status words; 2 passes over the
  /// data and residuals, and the passes of the server over its chunk. If data on any rank are not
  /// finite (or beyond gradient_limit) no rank changes anything: `skipped`. On a deferred backend
  /// the outcome is `pending`, and `settle` returns it. Throws rank_mismatch if another rank is in
  /// another call, errors of the transport, and, on this rank alone, invalid_input for data that
  /// are null, overlap or have other sizes: the others wait for it. Then nothing has changed here.
  outcome mean(tensors data) {
    begin(data);
    return wait();
  }
  outcome mean(std::span<T> data) { return mean(tensors(&data, 1)); }  ///< one tensor

  /// Begins a call in parts. The data belong to this object until wait(). Not collective.
  void begin(tensors data);
  void begin(std::span<T> data) { begin(tensors(&data, 1)); }  ///< one tensor
  /// Marks the data of one tensor as final. Buckets of final data are sent, the last bucket first.
  /// All ranks must announce the same tensors in the same order. May wait for other ranks.
  void ready(std::size_t tensor);
  /// Begins a call with final data: buckets travel while the caller computes, if the transport can.
  void start(tensors data) {
    begin(data);
    for (std::size_t t = 0; t < data.size(); ++t) ready(t);
  }
  void start(std::span<T> data) { start(tensors(&data, 1)); }  ///< one tensor
  /// Ends the call: then data hold the means. Collective, in one order with the calls of other
  /// objects, and like `mean` otherwise.
  outcome wait();

  /// Returns the outcome of the last call that ended, on a deferred backend too; waits. Not
  /// collective. Throws rank_mismatch like `mean`; invalid_input during a call and before the
  /// first.
  outcome settle() {
    state& own = between_calls("settle");
    if (own.step == 0) {
      throw invalid_input(
          detail::error_text("compressed_allreduce: settle before any call", own.comm.where()));
    }
    return fetch_outcome();
  }
  /// Clears the residuals. All ranks should do so together. Does not repair ranks that are out of
  /// step after a failure on some of them: build a new object, or load. Throws invalid_input during
  /// a call.
  [[gnu::cold]] void reset() {
    state& own = between_calls("reset");
    if (own.has_other_ranks()) own.exchange.start_from_nothing({});
  }
  /// Writes the residuals of this rank. Not collective. Throws checkpoint_error.
  [[gnu::cold]] void save(std::ostream& out) {
    state& own = between_calls("save");
    detail::save_checkpoint(own, out, own.header());
  }
  /// Reads what `save` wrote on this rank, in a job with equally many ranks. (With another number
  /// of ranks start anew: only the residuals of one call are lost.) Collective: throws
  /// checkpoint_error on all ranks if one fails; then nothing has changed.
  [[gnu::cold]] void load(std::istream& in) {
    const detail::standard_arithmetic arithmetic;
    detail::load_checkpoint(
        s(), in, [&] { return s().header(); }, resume_with::same_options,
        s().begun ? "compressed_allreduce: load between begin() and wait()" : "");
  }

  [[nodiscard]] int rank() const { return state_->comm.rank(); }      ///< number of this rank
  [[nodiscard]] int size() const { return state_->comm.size(); }      ///< number of ranks
  [[nodiscard]] std::uint64_t steps() const { return state_->step; }  ///< calls, skipped ones too
  /// Traffic that this rank has sent, the comparison at construction included.
  [[nodiscard]] const traffic& sent() const { return state_->comm.sent(); }
  /// Bytes of state that lasts from call to call.
  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return state_->exchange.state_bytes();
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {  ///< bytes used during a call
    return state_->exchange.work_bytes();
  }
  [[nodiscard]] auto& exchange() { return state_->exchange; }  ///< the compressed exchange

 private:
  [[nodiscard]] state& s() { return *state_; }
  [[nodiscard]] state& between_calls(const char* what) {
    if (!s().begun) return s();
    throw invalid_input(detail::error_text("compressed_allreduce: ", what,
                                           " between begin() and wait()", s().comm.where()));
  }
  [[nodiscard]] outcome fetch_outcome() {
    s().comm.wait();
    return detail::outcome_of(detail::fetch_scalars(s().backend, s().now.data(), rank(), size()));
  }
  [[nodiscard]] auto args() { return s().exchange.args(s().now.data(), s().exchange.mask()); }
  [[nodiscard]] auto message() { return gradient_message<T, T>{s().table.data(), s().now.data()}; }
  /// Stores the addresses of the data of this call.
  [[gnu::cold]] void take(tensors data);
  void end() {
    state& own = s();
    own.exchange.finish(args());
    own.begun = false;
  }
  [[gnu::cold]] void take_back() noexcept {
    try {
      s().backend.launch(1, detail::call_off_kernel{s().now.data()});
      end();
    } catch (...) {
    }
    s().begun = false;
  }

  std::unique_ptr<state> state_;  ///< on the heap: stays in place in a move
};

/// @{
/// Defaults: floats, gather_scatter of `sign`, the host.
template <class Transport>
compressed_allreduce(Transport, std::vector<std::size_t>)
    -> compressed_allreduce<gather_scatter<sign<>>, float, host>;
template <class Transport, class C>
compressed_allreduce(Transport, std::vector<std::size_t>, C)
    -> compressed_allreduce<C, float, host>;
template <class Transport, class C, class B>
compressed_allreduce(Transport, std::vector<std::size_t>, C, B)
    -> compressed_allreduce<C, float, B>;
/// @}

template <class C, class T, class B>
void compressed_allreduce<C, T, B>::take(tensors data) {
  state& own = between_calls("begin");
  if (!own.fits(data)) return;
  auto entries = own.entries;
  for (std::size_t t = 0; t < data.size(); ++t)
    entries[t].params = entries[t].grads = data[t].data();
  own.backend.copy_in(own.table.data(), entries.data(), entries.size());
  own.entries = std::move(entries);
}

template <class C, class T, class B>
void compressed_allreduce<C, T, B>::begin(tensors data) {
  const detail::standard_arithmetic arithmetic;
  take(data);
  state& own = s();
  own.announced.assign(own.sizes.size(), 0);
  own.backend.launch(
      1, detail::begin_step_kernel{own.now.data(),
                                   {},
                                   0.0F,
                                   1.0F,
                                   static_cast<std::uint32_t>(own.step % detail::status_steps),
                                   0,
                                   false});
  own.begun = true;
}

template <class C, class T, class B>
void compressed_allreduce<C, T, B>::ready(std::size_t tensor) {
  const detail::standard_arithmetic arithmetic;
  state& own = s();
  if (!own.begun || tensor >= own.sizes.size() || own.announced[tensor] != 0) {
    throw invalid_input(detail::error_text(
        "compressed_allreduce: ready(", tensor, ") of ", own.sizes.size(), " tensors ",
        own.begun ? "(once each)" : "without begin()", own.comm.where()));
  }
  own.announced[tensor] = 1;
  if (!own.has_other_ranks()) return;
  try {
    for (int b = own.exchange.n_unsent() - 1;
         b >= 0 && own.exchange.axis().bucket_is_known(b, own.announced);
         b = own.exchange.n_unsent() - 1) {
      own.exchange.send_next(message(), args());
    }
  } catch (...) {
    take_back();
    throw;
  }
}

template <class C, class T, class B>
outcome compressed_allreduce<C, T, B>::wait() {
  const detail::standard_arithmetic arithmetic;
  state& own = s();
  if (!own.begun) {
    throw invalid_input(
        detail::error_text("compressed_allreduce: wait() without begin()", own.comm.where()));
  }
  try {
    if (own.has_other_ranks()) {
      own.exchange.all_reduce(message(), args());
      const auto latest = own.exchange.latest();
      own.exchange.updates_after(message(), args())(detail::store_mean_kernel<decltype(latest), T>{
          latest, own.exchange.sender().tiles(), own.table.data()});
      end();
    }
  } catch (...) {
    take_back();
    throw;
  }
  own.begun = false;
  outcome result = outcome::pending;
  if (!B::deferred) result = fetch_outcome();
  ++own.step;
  return result;
}

}}  // namespace onebit
