// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/transport/nccl_family.hpp>
#include <utility>
#include <vector>

/// Ranks as CUDA devices, one process or thread for each.
namespace onebit::inline v0_1 {

/// A collective under way on the second stream. The host waits in none of its members; its buffers
/// may be used by what is enqueued on the transport's stream after wait(). Destroyed unfinished, it
/// does what wait() does.
class nccl_request {
 public:
  /// Done already.
  nccl_request() = default;
  /// @{
  /// Of the transport's own making; moved from, it is done.
  nccl_request(std::shared_ptr<detail::nccl_member> member, cudaEvent_t done)
      : member_(std::move(member)), done_(done), captured_(member_->family->is_capturing()) {}
  nccl_request(nccl_request&& other) noexcept
      : member_(std::move(other.member_)), done_(other.done_), captured_(other.captured_) {}
  nccl_request& operator=(nccl_request&& other) noexcept {
    if (this == &other) return *this;
    finish();
    member_ = std::move(other.member_);
    done_ = other.done_;
    captured_ = other.captured_;
    return *this;
  }
  ~nccl_request() { finish(); }
  /// @}

  /// Makes the transport's stream wait until it is done. Nothing where it was captured, and the
  /// capture has ended since: it was thrown away, and nothing runs. Throws transport_error.
  void wait() {
    if (!member_) return;
    const auto member = std::move(member_);
    member->family->give(done_);
    member->family->check_alive(member->suffix());
    if (captured_ && !member->family->is_capturing()) return;
    member->check(cudaStreamWaitEvent(member->family->stream(), done_, 0), "cudaStreamWaitEvent");
  }

  /// True when it is done. Not while a graph is captured. Throws transport_error as nccl::wait
  /// does.
  [[nodiscard]] bool test() {
    if (!member_) return true;
    auto& family = *member_->family;
    family.check_alive(member_->suffix());
    const cudaError_t state = cudaEventQuery(done_);
    if (state == cudaErrorNotReady) (void)cudaGetLastError();  // it is no error, but is kept as one
    if (state != cudaErrorNotReady) member_->check(state, "cudaEventQuery");
    family.watch_errors(member_->suffix());
    if (state == cudaErrorNotReady) return false;
    family.give(done_);
    member_.reset();
    return true;
  }

 private:
  void finish() noexcept {
    try {
      wait();
    } catch (...) {  // the next call of the transport tells
    }
  }

  std::shared_ptr<detail::nccl_member> member_;
  cudaEvent_t done_ = nullptr;
  bool captured_ = false;
};

/// The transport of an NCCL communicator, carrying device memory: a handle, cheap to copy. Its
/// collectives enqueue on the stream and do not wait; they can be captured in a CUDA graph. One
/// thread at a time uses it. The communicator stays the caller's and outlives the transport.
///
/// Cost: what NCCL makes of ncclAlltoAll (before NCCL 2.28 a group of ncclSend and ncclRecv),
/// ncclAllGather and ncclAllReduce. Throws transport_error, with NCCL's own text, for every code
/// but ncclSuccess. An error that a communicator meets on its way, or a wait beyond the time-out,
/// calls ncclCommAbort on it and on all split from it or with it, once: the caller's communicator is then gone (do not destroy it),
/// and every later call throws.
class nccl {
 public:
  /// Allocates a second stream and some events. `stream` is of the communicator's device.
  nccl(ncclComm_t communicator, cudaStream_t stream, nccl_options options = {})
      : nccl(make_family(communicator, stream, options), communicator, false) {}

  /// @{
  /// See Transport.
  [[nodiscard]] int rank() const { return member_->rank; }
  [[nodiscard]] int size() const { return member_->size; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    family().check_alive(member_->suffix());
    enqueue_all_to_all(send, receive, slot_bytes, family().stream());
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    family().check_alive(member_->suffix());
    enqueue_all_gather(send, receive, slot_bytes, family().stream());
  }
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n, ncclFloat); }
  void all_reduce_sum(bf16* data, std::size_t n) { reduce(data, n, ncclBfloat16); }
  /// @}

  /// Collective, does not wait: on a second stream, behind what the first one has at this moment.
  /// All ranks start all their collectives in the same order.
  [[nodiscard]] nccl_request start_all_to_all(const void* send, void* receive,
                                              std::size_t slot_bytes) {
    return start(slot_bytes,
                 [&](cudaStream_t side) { enqueue_all_to_all(send, receive, slot_bytes, side); });
  }
  /// Collective, does not wait: as start_all_to_all.
  [[nodiscard]] nccl_request start_all_gather(const void* send, void* receive,
                                              std::size_t slot_bytes) {
    return start(slot_bytes,
                 [&](cudaStream_t side) { enqueue_all_gather(send, receive, slot_bytes, side); });
  }

  /// Makes the host wait until all that the stream has is done. Throws transport_error, after an
  /// abort, for an error met on the way or a wait beyond the time-out.
  void wait() { family().wait(member_->suffix()); }

  /// Collective, waits: all_gather on host memory, for small messages between the ranks' hosts.
  /// Allocates when a message is larger than all before. Not while a graph is captured.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    wait();
    const std::size_t all_bytes = static_cast<std::size_t>(size()) * slot_bytes;
    std::byte* const own = control(slot_bytes + all_bytes);
    std::byte* const all = own + slot_bytes;
    member_->check(
        cudaMemcpyAsync(own, send, slot_bytes, cudaMemcpyHostToDevice, family().stream()),
        "cudaMemcpyAsync");
    all_gather(own, all, slot_bytes);
    wait();  // a copy to plain host memory would wait itself, whatever becomes of the ranks
    member_->check(
        cudaMemcpyAsync(receive, all, all_bytes, cudaMemcpyDeviceToHost, family().stream()),
        "cudaMemcpyAsync");
    wait();
  }

  /// Collective over all ranks, waits: the transport over the ranks that gave the same color,
  /// ordered by key, then rank, on the same streams. Throws invalid_input, on all ranks, for a
  /// negative color.
  [[nodiscard]] nccl split(int color, int key) const {
    std::vector<int> colors(static_cast<std::size_t>(size()));
    nccl(*this).host_all_gather(&color, colors.data(), sizeof color);
    const auto least = std::min_element(colors.begin(), colors.end());
    if (*least < 0) {
      throw invalid_input(detail::message("nccl: split: rank ", least - colors.begin(),
                                          " has color ", *least, "; must not be negative",
                                          member_->suffix()));
    }
    ncclComm_t part = nullptr;
    member_->check(ncclCommSplit(member_->comm, color, key, &part, nullptr), "ncclCommSplit");
    return nccl(member_->family, part, true);
  }

 private:
  nccl(std::shared_ptr<detail::nccl_family> family, ncclComm_t communicator, bool owned)
      : member_(std::make_shared<detail::nccl_member>(std::move(family), communicator, owned)) {}

  static std::shared_ptr<detail::nccl_family> make_family(ncclComm_t communicator,
                                                          cudaStream_t stream,
                                                          nccl_options options) {
    if (communicator == nullptr) {
      throw transport_error(detail::message("nccl: the communicator is null"));
    }
    int device = 0;
    const ncclResult_t code = ncclCommCuDevice(communicator, &device);
    if (code != ncclSuccess) {
      throw transport_error(detail::message("nccl: ncclCommCuDevice failed with code ",
                                            static_cast<int>(code), ": ",
                                            ncclGetErrorString(code)));
    }
    return std::make_shared<detail::nccl_family>(device, stream, options);
  }

  [[nodiscard]] detail::nccl_family& family() const { return *member_->family; }

  void reduce(void* data, std::size_t n, ncclDataType_t of) {
    family().check_alive(member_->suffix());
    if (n == 0) return;
    member_->check(ncclAllReduce(data, data, n, of, ncclSum, member_->comm, family().stream()),
                   "ncclAllReduce");
  }
  /// Slots of the library are whole words.
  static ncclDataType_t type(std::size_t bytes) { return bytes % 4 == 0 ? ncclUint32 : ncclUint8; }
  static std::size_t count(std::size_t bytes) { return bytes % 4 == 0 ? bytes / 4 : bytes; }

  void enqueue_all_to_all(const void* send, void* receive, std::size_t slot_bytes,
                          cudaStream_t stream) {
    if (slot_bytes == 0) return;
#if NCCL_VERSION_CODE >= 22800
    member_->check(
        ncclAlltoAll(send, receive, count(slot_bytes), type(slot_bytes), member_->comm, stream),
        "ncclAlltoAll");
#else
    member_->check(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t code = ncclSuccess;
    for (int r = 0; r < size() && code == ncclSuccess; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * slot_bytes;
      code = ncclSend(static_cast<const std::byte*>(send) + at, count(slot_bytes), type(slot_bytes),
                      r, member_->comm, stream);
      if (code != ncclSuccess) break;
      code = ncclRecv(static_cast<std::byte*>(receive) + at, count(slot_bytes), type(slot_bytes), r,
                      member_->comm, stream);
    }
    const ncclResult_t end = ncclGroupEnd();  // also after a failure: groups must be closed
    member_->check(code, "ncclSend or ncclRecv");
    member_->check(end, "ncclGroupEnd");
#endif
  }

  void enqueue_all_gather(const void* send, void* receive, std::size_t slot_bytes,
                          cudaStream_t stream) {
    if (slot_bytes == 0) return;
    member_->check(
        ncclAllGather(send, receive, count(slot_bytes), type(slot_bytes), member_->comm, stream),
        "ncclAllGather");
  }

  template <class Enqueue>
  nccl_request start(std::size_t slot_bytes, const Enqueue& enqueue) {
    family().check_alive(member_->suffix());
    if (slot_bytes == 0) return {};
    const cudaEvent_t event = family().take();
    try {  // one event serves twice: whoever waits for it waits for what it stood for at that time
      member_->check(cudaEventRecord(event, family().stream()), "cudaEventRecord");
      member_->check(cudaStreamWaitEvent(family().side(), event, 0), "cudaStreamWaitEvent");
      enqueue(family().side());
      member_->check(cudaEventRecord(event, family().side()), "cudaEventRecord");
    } catch (...) {
      family().give(event);
      throw;
    }
    return {member_, event};
  }

  [[nodiscard]] std::byte* control(std::size_t bytes) {
    if (bytes > member_->control_bytes) {
      const detail::cuda_device_scope current(family().device());
      if (member_->control != nullptr) {
        member_->check(cudaFree(std::exchange(member_->control, nullptr)), "cudaFree");
      }
      member_->control_bytes = 0;
      void* p = nullptr;
      member_->check(cudaMalloc(&p, bytes), "cudaMalloc");
      member_->control = static_cast<std::byte*>(p);
      member_->control_bytes = bytes;
    }
    return member_->control;
  }

  std::shared_ptr<detail::nccl_member> member_;
};

static_assert(StartingTransport<nccl> && SplittingTransport<nccl> && HostGatheringTransport<nccl> &&
              WaitingTransport<nccl>);

}  // namespace onebit::inline v0_1
