// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <onebit/concepts/stand_ins.hpp>

/// How bytes travel. A transport has five members; the others are optional, each with a concept.
namespace onebit { inline namespace v0_3 {

/// Carries bytes between `size()` ranks. The three operations are collective and take buffers that
/// do not overlap. A call blocks until its buffers may be used again or, with a deferred backend,
/// is ordered with the backend's kernels. If a rank is lost, calls must throw in the end. There is
/// no send and receive: neighbours talk through a SplittingTransport.
template <class T>
concept Transport = requires(T transport, const void* send, void* receive, std::size_t slot_bytes,
                             float* data, std::size_t n) {
  { transport.rank() } -> std::convertible_to<int>;  // this rank, from 0
  { transport.size() } -> std::convertible_to<int>;  // number of ranks
  transport.all_to_all(send, receive, slot_bytes);   // slot i goes to rank i, or came from rank i
  transport.all_gather(send, receive, slot_bytes);   // one slot goes to all; slot i is from rank i
  transport.all_reduce_sum(data, n);                 // sum over the ranks, in place
};

namespace detail {

/// Name of the call that a gather is part of. A transport whose all_gather or host_all_gather takes
/// one as its last argument has it in its errors.
struct call_name {
  const char* text = "all_gather";
};

/// A transport that can also start collectives and wait for them later. gather_scatter and dense
/// averages compute while other buckets travel. All ranks start the collectives of a communicator
/// in one order; several of both kinds may be in flight. A request is movable; test() is true once
/// it is done. A second wait() does nothing. An error is thrown once. The destructor waits.
template <class T>
concept StartingTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t n) {
  t.start_all_gather(send, receive, n).wait();
  { t.start_all_gather(send, receive, n).test() } -> std::convertible_to<bool>;
  requires std::move_constructible<decltype(t.start_all_gather(send, receive, n))>;
  requires std::same_as<decltype(t.start_all_to_all(send, receive, n)),
                        decltype(t.start_all_gather(send, receive, n))>;
};

/// A transport that also sums bf16.
template <class T>
concept HalfSummingTransport = Transport<T> && requires(T t, bf16* data) {
  t.all_reduce_sum(data, 1);
};

/// A transport that can be split: the ranks that pass an equal `color`, at least 0, form a new
/// transport, in the order of their keys, then of their ranks. Collective over all ranks: a rank
/// that needs no part passes a color of its own.
template <class T>
concept SplittingTransport = Transport<T> && requires(const T t, int color, int key) {
  { t.split(color, key) } -> std::convertible_to<T>;
};

/// A transport that matches collectives by their order on a channel (an MPI communicator):
/// `duplicate` returns a transport of the same ranks with a channel of its own. Each optimizer
/// takes a duplicate at construction, so that ranks may interleave optimizers in different orders.
/// Collective over all ranks.
template <class T>
concept DuplicatingTransport = Transport<T> && requires(const T t) {
  { t.duplicate() } -> std::convertible_to<T>;
};

/// A transport that knows how many ranks share a node. Collective.
template <class T>
concept NodeAwareTransport = Transport<T> && requires(const T t) {
  { t.ranks_per_node() } -> std::convertible_to<int>;
};

/// A transport of device memory with an all_gather for host memory, for small messages. Blocks.
template <class T>
concept HostGatheringTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t slot_bytes) {
  t.host_all_gather(send, receive, slot_bytes);
};

/// A transport whose collectives only enqueue work. `wait()` waits for it, and throws its errors.
template <class T>
concept WaitingTransport = Transport<T> && requires(T t) {
  t.wait();
};

/// A transport that tells whether it accepts pointers to device memory (see `staged`).
template <class T>
concept DeviceAwareTransport = Transport<T> && requires(const T t) {
  { t.device_aware() } -> std::convertible_to<bool>;
};

}  // namespace detail

/// Access of a transport to the memory of buffers: a handle, cheap to copy. Copies run in order,
/// after the work that the handle stands for (on CUDA: its stream), fast from allocate_host memory.
template <class M>
concept Memory = std::copy_constructible<M> &&
    requires(M memory, void* to, const void* from, std::size_t bytes) {
  memory.copy(to, from, bytes);  // either side may be host memory, not to be used before wait()
  memory.wait();                 // waits for all copies, and for all work before them
  { memory.allocate_host(bytes) } -> std::same_as<void*>;  // 64-byte aligned; on CUDA pinned
  memory.free_host(to);  // frees memory of allocate_host; no copy of it may be in flight
  { M::host_can_touch } -> std::convertible_to<bool>;  // true: the host may access it; copy blocks
};

namespace detail {

#define ONEBIT_NEEDS(type, member, ...) \
  static_assert(__VA_ARGS__, "onebit: this type is no " type ": " member " is missing or differs")
/// Checks a transport: one assertion per member, so that the compiler names the one that is
/// missing.
template <class T>
consteval void check_transport() {
  using size = std::size_t;
  ONEBIT_NEEDS(
      "Transport", "int rank()", requires(T t) {
        { t.rank() } -> std::convertible_to<int>;
      });
  ONEBIT_NEEDS(
      "Transport", "int size()", requires(T t) {
        { t.size() } -> std::convertible_to<int>;
      });
  ONEBIT_NEEDS(
      "Transport", "all_to_all(const void* send, void* receive, std::size_t slot_bytes)",
      requires(T t, const void* s, void* r, size n) { t.all_to_all(s, r, n); });
  ONEBIT_NEEDS(
      "Transport", "all_gather(const void* send, void* receive, std::size_t slot_bytes)",
      requires(T t, const void* s, void* r, size n) { t.all_gather(s, r, n); });
  ONEBIT_NEEDS(
      "Transport", "all_reduce_sum(float* data, std::size_t n)",
      requires(T t, float* d, size n) { t.all_reduce_sum(d, n); });
}
#undef ONEBIT_NEEDS

}  // namespace detail

}}  // namespace onebit
