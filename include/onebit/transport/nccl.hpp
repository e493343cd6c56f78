// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>  // before nccl.h: some of its versions have ncclBfloat16 only then
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks as CUDA devices, one process or thread for each. The only header that includes nccl.h,
/// which brings the CUDA runtime with it; needs no nvcc. NCCL 2.18 or later.
namespace onebit::inline v0_2 {

/// Options of `nccl`.
struct nccl_options {
  /// How long a wait of the host may take before the ranks are given up.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

namespace detail {

/// The current device, for a scope.
class cuda_device_scope {
 public:
  explicit cuda_device_scope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) cudaSetDevice(device);
  }
  cuda_device_scope(const cuda_device_scope&) = delete;
  cuda_device_scope& operator=(const cuda_device_scope&) = delete;
  ~cuda_device_scope() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

inline void check_cuda(cudaError_t code, const char* call, const std::string& suffix) {
  if (code == cudaSuccess) return;
  throw transport_error(message("nccl: ", call, " failed with code ", static_cast<int>(code), ": ",
                                cudaGetErrorString(code), suffix));
}

/// What the transports that were split from one another have in common: the rank's stream and a
/// second one beside it. Their kernels queue behind each other there, so that one communicator that
/// is stuck holds up all: they are watched, and aborted, together.
class nccl_family {
 public:
  nccl_family(int device, cudaStream_t stream, nccl_options options)
      : device_(device), stream_(stream), options_(options) {
    const cuda_device_scope current(device_);
    check_cuda(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags", "");
    for (int i = 0; i < 4; ++i) give(new_event());
  }
  nccl_family(const nccl_family&) = delete;
  nccl_family& operator=(const nccl_family&) = delete;
  ~nccl_family() {
    for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
    cudaStreamDestroy(side_);
  }

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] cudaStream_t side() const { return side_; }

  /// Is what the stream is given recorded, instead of done?
  [[nodiscard]] bool is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess) {
      return status != cudaStreamCaptureStatusNone;
    }
    (void)cudaGetLastError();  // the default stream, while another one captures
    return false;
  }

  /// An event that no request uses. Allocates only when more than ever are in use.
  [[nodiscard]] cudaEvent_t take() {
    if (spare_.empty()) return new_event();
    const cudaEvent_t event = spare_.back();
    spare_.pop_back();
    return event;
  }
  void give(cudaEvent_t event) { spare_.push_back(event); }

  [[nodiscard]] const nccl_options& options() const { return options_; }
  [[nodiscard]] bool failed() const { return failed_; }

  void watch(ncclComm_t comm) { comms_.push_back(comm); }
  void forget(ncclComm_t comm) { std::erase(comms_, comm); }

  /// Throws when the communicators are gone.
  void check_alive(const std::string& suffix) const {
    if (!failed_) return;
    throw transport_error(message("nccl: the communicators have failed: ", why_, suffix));
  }

  /// Waits, as wait_until does, for the stream.
  void wait(const std::string& suffix) {
    check_alive(suffix);
    wait_until(
        [&] {
          const cudaError_t state = cudaStreamQuery(stream_);
          const bool done = state != cudaErrorNotReady;
          if (done) check_cuda(state, "cudaStreamQuery", suffix);
          if (!done) (void)cudaGetLastError();  // it is no error, but is kept as one
          watch_errors(suffix);
          return done;
        },
        "the stream", suffix);
  }

  /// Passes a result on as an exception. A communicator that does not block says ncclInProgress,
  /// and takes no other call until that is over.
  void check(ncclComm_t comm, ncclResult_t code, const char* call, const std::string& suffix) {
    if (code == ncclInProgress) {
      wait_until(
          [&] {
            const ncclResult_t asked = ncclCommGetAsyncError(comm, &code);
            if (asked != ncclSuccess) code = asked;
            return code != ncclInProgress;
          },
          call, suffix);
      if (code != ncclSuccess) abort(failure(comm, code, call), suffix);
    }
    if (code != ncclSuccess)
      throw transport_error(message("nccl: ", failure(comm, code, call), suffix));
  }

  /// Throws, after an abort, when a communicator met an error on its way.
  void watch_errors(const std::string& suffix) {
    for (const ncclComm_t comm : comms_) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
      if (asked != ncclSuccess) state = asked;
      if (state == ncclSuccess || state == ncclInProgress) continue;
      abort(failure(comm, state, "a collective"), suffix);
    }
  }

  /// A collective is enqueued. Graphs that captured one hold the communicators: NCCL would wait for
  /// them in an abort, for ever.
  void enqueues() { captured_ = captured_ || is_capturing(); }

  /// In one group, so that all kernels are told to end before one is waited for.
  void end() noexcept {
    ncclGroupStart();
    for (const ncclComm_t comm : std::exchange(comms_, {})) ncclCommAbort(comm);
    ncclGroupEnd();
  }

  void give_up() noexcept {
    if (!failed_) why_ = "abort() was called";
    failed_ = true;
    end();
  }

  /// What a call that failed is told by.
  static std::string failure(ncclComm_t comm, ncclResult_t code, const char* call) {
    const char* const last = ncclGetLastError(comm);
    return std::string(call) + " failed with code " + std::to_string(code) + ": " +
           ncclGetErrorString(code) + (last != nullptr && *last != 0 ? ": " : "") +
           (last != nullptr ? last : "");
  }

 private:
  template <class Done>
  void wait_until(const Done& done, const char* what, const std::string& suffix) {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    for (int polls = 0; !done(); ++polls) {
      if (clock::now() - start > options_.timeout) {
        abort("waited " + std::to_string(options_.timeout.count()) + " ms for " + what, suffix);
      }
      if (polls < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  [[noreturn]] void abort(const std::string& why, const std::string& suffix) {
    why_ = why;
    failed_ = true;
    if (!captured_) end();
    throw transport_error(message(
        "nccl: ", why, "; the communicators were ",
        captured_ ? "not aborted, since captured graphs hold them: destroy these, then call abort()"
                  : "aborted",
        suffix));
  }

  [[nodiscard]] cudaEvent_t new_event() const {
    const cuda_device_scope current(device_);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags",
               "");
    return event;
  }

  int device_;
  cudaStream_t stream_;
  cudaStream_t side_ = nullptr;
  nccl_options options_;
  std::vector<cudaEvent_t> spare_;
  std::vector<ncclComm_t> comms_;
  bool failed_ = false, captured_ = false;
  std::string why_;
};

/// One communicator of a family, with memory on the device for small messages.
struct nccl_member {
  nccl_member(std::shared_ptr<nccl_family> of, ncclComm_t communicator, bool is_owned)
      : family(std::move(of)), comm(communicator), owned(is_owned) {
    family->watch(comm);
    try {
      ncclResult_t state = ncclSuccess;  // one that does not block may still be in the making
      check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      check(state, "the communicator's initialisation");
      check(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
      check(ncclCommCount(comm, &size), "ncclCommCount");
    } catch (...) {
      family->forget(comm);
      throw;
    }
  }
  nccl_member(const nccl_member&) = delete;
  nccl_member& operator=(const nccl_member&) = delete;
  ~nccl_member() {
    try {  // with work left ncclCommDestroy would wait, for ever if a peer is gone
      if (owned) family->wait(suffix());
    } catch (...) {  // aborted now
    }
    if (!family->failed()) {
      family->forget(comm);
      if (owned) ncclCommDestroy(comm);
    }
    if (control != nullptr) cudaFree(control);
  }

  [[nodiscard]] std::string suffix() const { return rank_suffix(rank, size); }
  void check(ncclResult_t code, const char* call) const {
    if (code != ncclSuccess) family->check(comm, code, call, suffix());
  }
  void check(cudaError_t code, const char* call) const {
    if (code != cudaSuccess) check_cuda(code, call, suffix());
  }

  std::shared_ptr<nccl_family> family;
  ncclComm_t comm;
  bool owned;
  int rank = 0, size = 1;
  std::byte* control = nullptr;
  std::size_t control_bytes = 0;
};

}  // namespace detail
// Ranks as CUDA devices, one process or thread for each.

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
/// calls ncclCommAbort on it and on all split from it or with it, once: the caller's communicator
/// is then gone (do not destroy it), and every later call throws. Where a CUDA graph has captured a
/// collective NCCL would wait for that graph, for ever: then the communicators are left, and
/// `abort`, called when the graphs are gone, ends them. Destroy graphs before transports
/// that were split off. (Nobody tells when graphs end: once there was one, `abort` must be called.)
class nccl {
 public:
  /// Allocates a second stream and some events. `stream` is of the communicator's device.
  nccl(ncclComm_t communicator, cudaStream_t stream, nccl_options options = {})
      : nccl(make_family(communicator, stream, options), communicator, false) {}

  /// @{
  /// See Transport.
  [[nodiscard]] int rank() const { return member_->rank; }
  [[nodiscard]] int size() const { return member_->size; }
  /// The one it was given.
  [[nodiscard]] cudaStream_t stream() const { return member_->family->stream(); }

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

  /// Aborts the communicators of this and all split from it or with it: after a failure that a
  /// captured graph kept from doing so, when the graphs are gone. Not collective.
  void abort() noexcept { family().give_up(); }

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
    family().enqueues();
    member_->check(ncclAllReduce(data, data, n, of, ncclSum, member_->comm, family().stream()),
                   "ncclAllReduce");
  }
  /// Slots of the library are whole words.
  static ncclDataType_t type(std::size_t bytes) { return bytes % 4 == 0 ? ncclUint32 : ncclUint8; }
  static std::size_t count(std::size_t bytes) { return bytes % 4 == 0 ? bytes / 4 : bytes; }

  void enqueue_all_to_all(const void* send, void* receive, std::size_t slot_bytes,
                          cudaStream_t stream) {
    if (slot_bytes == 0) return;
    family().enqueues();
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
    family().enqueues();
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

}  // namespace onebit::inline v0_2
