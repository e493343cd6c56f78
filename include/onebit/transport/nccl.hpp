// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>  // before nccl.h: some NCCL versions declare ncclBfloat16 only then
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks as CUDA devices, one process or thread per device. Needs NCCL 2.18 or later, but not nvcc.
/// The only header that includes nccl.h, which includes the CUDA runtime.
namespace onebit { inline namespace v0_3 {

/// Options of `nccl`.
struct nccl_options {
  /// Longest wait of the host. After a longer one the communicators are aborted.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

namespace detail {

/// Sets the current device for a scope.
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
  throw transport_error(error_text("nccl: ", call, " failed with code ", static_cast<int>(code),
                                   ": ", cudaGetErrorString(code), suffix));
}

/// State shared by a transport and all transports split from it: the stream of the rank and a side
/// stream. The kernels of all their communicators queue there, so a stuck communicator blocks the
/// others. All communicators are therefore checked for errors, and aborted, together.
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

  /// Returns true if the stream is being captured into a graph.
  [[nodiscard]] bool is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess) {
      return status != cudaStreamCaptureStatusNone;
    }
    (void)cudaGetLastError();  // fails on the default stream while another one captures
    return false;
  }

  /// Returns an unused event. Allocates only if more events than ever before are in use.
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

  /// Throws transport_error if the communicators have failed.
  void check_alive(const std::string& suffix) const {
    if (!failed_) return;
    throw transport_error(error_text("nccl: the communicators have failed: ", why_, suffix));
  }

  /// Waits for the stream. Throws transport_error on errors and on a time-out.
  void wait(const std::string& suffix) {
    check_alive(suffix);
    wait_until(
        [&] {
          const cudaError_t state = cudaStreamQuery(stream_);
          const bool done = state != cudaErrorNotReady;
          if (done) check_cuda(state, "cudaStreamQuery", suffix);
          if (!done) (void)cudaGetLastError();  // clears cudaErrorNotReady, which is no error
          watch_errors(suffix);
          return done;
        },
        "the stream", suffix);
  }

  /// Throws transport_error unless the call succeeded. A non-blocking communicator may return
  /// ncclInProgress: then waits until the call is done, since it accepts no other call before.
  void require(ncclComm_t comm, ncclResult_t code, const char* call, const std::string& suffix) {
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
      throw transport_error(error_text("nccl: ", failure(comm, code, call), suffix));
  }

  /// Aborts all communicators and throws if one of them has an asynchronous error.
  void watch_errors(const std::string& suffix) {
    for (const ncclComm_t comm : comms_) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
      if (asked != ncclSuccess) state = asked;
      if (state == ncclSuccess || state == ncclInProgress) continue;
      abort(failure(comm, state, "a collective"), suffix);
    }
  }

  /// Records whether a graph captures the next collective. Such a graph holds the communicators:
  /// ncclCommAbort would wait for the graph, for ever.
  void enqueues() { captured_ = captured_ || is_capturing(); }

  /// Aborts all communicators, in one group: NCCL ends all kernels before it waits for one of them.
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

  /// Returns the text of the error of a failed call.
  static std::string failure(ncclComm_t comm, ncclResult_t code, const char* call) {
    const char* const last = ncclGetLastError(comm);
    return std::string(call) + " failed with code " + number_text(static_cast<int>(code)) + ": " +
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
        abort("waited " + number_text(options_.timeout.count()) + " ms for " + what, suffix);
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
    throw transport_error(error_text(
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

/// One communicator of a family, with device memory for host_all_gather.
struct nccl_member {
  nccl_member(std::shared_ptr<nccl_family> of, ncclComm_t communicator, bool is_owned)
      : family(std::move(of)), comm(communicator), owned(is_owned) {
    family->watch(comm);
    try {
      ncclResult_t state = ncclSuccess;  // non-blocking: initialisation may be in progress
      require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      require(state, "the communicator's initialisation");
      require(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
      require(ncclCommCount(comm, &size), "ncclCommCount");
    } catch (...) {
      family->forget(comm);
      throw;
    }
  }
  nccl_member(const nccl_member&) = delete;
  nccl_member& operator=(const nccl_member&) = delete;
  ~nccl_member() {
    try {  // with pending work, ncclCommDestroy would wait, for ever if a peer is lost
      if (owned) family->wait(suffix());
    } catch (...) {  // `failed` is set if the communicators were aborted
    }
    if (!family->failed()) {
      family->forget(comm);
      if (owned) ncclCommDestroy(comm);
    }
    if (control != nullptr) cudaFree(control);
  }

  [[nodiscard]] std::string suffix() const { return rank_suffix(rank, size); }
  void require(ncclResult_t code, const char* call) const {
    if (code != ncclSuccess) family->require(comm, code, call, suffix());
  }
  void require(cudaError_t code, const char* call) const {
    if (code != cudaSuccess) check_cuda(code, call, suffix());
  }

  std::shared_ptr<nccl_family> family;
  ncclComm_t comm;
  bool owned;
  int rank = 0, size = 1;
  std::byte* control = nullptr;
  std::size_t control_bytes = 0;
};

/// Handle of a collective on the side stream. No member blocks the host. Work that is enqueued on
/// the transport's stream after wait() may use the buffers. The destructor calls wait() if needed.
class nccl_request {
 public:
  /// Constructs a request that is done.
  nccl_request() = default;
  /// @{
  /// Constructed by the transport. A moved-from request is done.
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

  /// Makes the transport's stream wait for the collective. Throws transport_error. Does nothing if
  /// the collective was captured and the capture has ended: the capture was discarded.
  void wait() {
    if (!member_) return;
    const auto member = std::move(member_);
    member->family->give(done_);
    member->family->check_alive(member->suffix());
    if (captured_ && !member->family->is_capturing()) return;
    member->require(cudaStreamWaitEvent(member->family->stream(), done_, 0), "cudaStreamWaitEvent");
  }

  /// Returns true if the collective is done. Must not be called while a graph is captured. Throws
  /// transport_error as nccl::wait does.
  [[nodiscard]] bool test() {
    if (!member_) return true;
    auto& family = *member_->family;
    family.check_alive(member_->suffix());
    const cudaError_t state = cudaEventQuery(done_);
    if (state == cudaErrorNotReady) (void)cudaGetLastError();  // clears it: it is no error
    if (state != cudaErrorNotReady) member_->require(state, "cudaEventQuery");
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
    } catch (...) {  // the next call of the transport throws again
    }
  }

  std::shared_ptr<detail::nccl_member> member_;
  cudaEvent_t done_ = nullptr;
  bool captured_ = false;
};

}  // namespace detail

/// Transport of device memory over an NCCL communicator: a handle, cheap to copy. Collectives are
/// enqueued on the stream, do not block, and can be captured into a CUDA graph. Only one thread at
/// a time may use a transport. The caller owns the communicator, which must outlive the transport.
///
/// Cost: that of ncclAlltoAll (before NCCL 2.28 a group of ncclSend and ncclRecv), ncclAllGather
/// and ncclAllReduce. Throws transport_error, with NCCL's text, for every code other than
/// ncclSuccess. An asynchronous error or a time-out calls ncclCommAbort, once, on the communicator
/// and on all communicators related to it by splits. The caller must then not destroy the
/// communicator, and all later calls throw. After a CUDA graph has captured a collective, errors
/// never abort: NCCL would wait for the graph, for ever, and the transport cannot know when graphs
/// are destroyed. Then destroy the graphs, and call `abort`. Destroy graphs before transports that
/// were split off.
class nccl {
 public:
  /// Allocates a side stream and some events. `stream` must be on the device of the communicator.
  nccl(ncclComm_t communicator, cudaStream_t stream, nccl_options options = {})
      : nccl(make_family(communicator, stream, options), communicator, false) {}

  /// @{
  /// Operations of the Transport concept.
  [[nodiscard]] int rank() const { return member_->rank; }
  [[nodiscard]] int size() const { return member_->size; }
  /// Returns the stream passed to the constructor.
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

  /// Starts an all_to_all on the side stream, after all work enqueued on the stream so far.
  /// Collective, non-blocking. All ranks must start all their collectives in the same order.
  [[nodiscard]] detail::nccl_request start_all_to_all(const void* send, void* receive,
                                                      std::size_t slot_bytes) {
    return start(slot_bytes,
                 [&](cudaStream_t side) { enqueue_all_to_all(send, receive, slot_bytes, side); });
  }
  /// Starts an all_gather, as start_all_to_all does. Collective, non-blocking.
  [[nodiscard]] detail::nccl_request start_all_gather(const void* send, void* receive,
                                                      std::size_t slot_bytes) {
    return start(slot_bytes,
                 [&](cudaStream_t side) { enqueue_all_gather(send, receive, slot_bytes, side); });
  }

  /// Makes the host wait for all work on the stream. On an asynchronous error or a time-out, aborts
  /// the communicators and throws transport_error.
  void wait() { family().wait(member_->suffix()); }

  /// Aborts this communicator and all related to it by splits. Needed after an error if graphs have
  /// captured collectives: destroy the graphs first. Not collective.
  void abort() noexcept { family().give_up(); }

  /// all_gather on host memory, for small messages between hosts. Collective, blocking. Allocates
  /// if slot_bytes is larger than ever before. Must not be called while a graph is captured.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    wait();
    const std::size_t all_bytes = static_cast<std::size_t>(size()) * slot_bytes;
    std::byte* const own = control(slot_bytes + all_bytes);
    std::byte* const all = own + slot_bytes;
    member_->require(
        cudaMemcpyAsync(own, send, slot_bytes, cudaMemcpyHostToDevice, family().stream()),
        "cudaMemcpyAsync");
    all_gather(own, all, slot_bytes);
    wait();  // has a time-out; the copy below, to pageable memory, blocks without one
    member_->require(
        cudaMemcpyAsync(receive, all, all_bytes, cudaMemcpyDeviceToHost, family().stream()),
        "cudaMemcpyAsync");
    wait();
  }

  /// Returns the transport of the ranks that passed the same color, ordered by key, then rank, on
  /// the same streams. Collective over all ranks, blocking. Throws invalid_input, on all ranks, for
  /// a negative color.
  [[nodiscard]] nccl split(int color, int key) const {
    std::vector<int> colors(static_cast<std::size_t>(size()));
    nccl(*this).host_all_gather(&color, colors.data(), sizeof color);
    const auto least = std::min_element(colors.begin(), colors.end());
    if (*least < 0) {
      throw invalid_input(detail::error_text("nccl: split: rank ", least - colors.begin(),
                                             " has color ", *least, "; must not be negative",
                                             member_->suffix()));
    }
    ncclComm_t part = nullptr;
    member_->require(ncclCommSplit(member_->comm, color, key, &part, nullptr), "ncclCommSplit");
    return nccl(member_->family, part, true);
  }

 private:
  nccl(std::shared_ptr<detail::nccl_family> family, ncclComm_t communicator, bool owned)
      : member_(std::make_shared<detail::nccl_member>(std::move(family), communicator, owned)) {}

  static std::shared_ptr<detail::nccl_family> make_family(ncclComm_t communicator,
                                                          cudaStream_t stream,
                                                          nccl_options options) {
    if (communicator == nullptr) {
      throw transport_error(detail::error_text("nccl: the communicator is null"));
    }
    int device = 0;
    const ncclResult_t code = ncclCommCuDevice(communicator, &device);
    if (code != ncclSuccess) {
      throw transport_error(detail::error_text("nccl: ncclCommCuDevice failed with code ",
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
    member_->require(ncclAllReduce(data, data, n, of, ncclSum, member_->comm, family().stream()),
                     "ncclAllReduce");
  }
  /// NCCL element type of a slot: uint32 for a multiple of 4 bytes, as in slots of the library.
  static ncclDataType_t type(std::size_t bytes) { return bytes % 4 == 0 ? ncclUint32 : ncclUint8; }
  static std::size_t count(std::size_t bytes) { return bytes % 4 == 0 ? bytes / 4 : bytes; }

  void enqueue_all_to_all(const void* send, void* receive, std::size_t slot_bytes,
                          cudaStream_t stream) {
    if (slot_bytes == 0) return;
    family().enqueues();
#if NCCL_VERSION_CODE >= 22800
    member_->require(
        ncclAlltoAll(send, receive, count(slot_bytes), type(slot_bytes), member_->comm, stream),
        "ncclAlltoAll");
#else
    member_->require(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t code = ncclSuccess;
    for (int r = 0; r < size() && code == ncclSuccess; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * slot_bytes;
      code = ncclSend(static_cast<const std::byte*>(send) + at, count(slot_bytes), type(slot_bytes),
                      r, member_->comm, stream);
      if (code != ncclSuccess) break;
      code = ncclRecv(static_cast<std::byte*>(receive) + at, count(slot_bytes), type(slot_bytes), r,
                      member_->comm, stream);
    }
    const ncclResult_t end = ncclGroupEnd();  // a group must be closed even after an error
    member_->require(code, "ncclSend or ncclRecv");
    member_->require(end, "ncclGroupEnd");
#endif
  }

  void enqueue_all_gather(const void* send, void* receive, std::size_t slot_bytes,
                          cudaStream_t stream) {
    if (slot_bytes == 0) return;
    family().enqueues();
    member_->require(
        ncclAllGather(send, receive, count(slot_bytes), type(slot_bytes), member_->comm, stream),
        "ncclAllGather");
  }

  template <class Enqueue>
  detail::nccl_request start(std::size_t slot_bytes, const Enqueue& enqueue) {
    family().check_alive(member_->suffix());
    if (slot_bytes == 0) return {};
    const cudaEvent_t event = family().take();
    try {  // the event is recorded twice: a stream waits for the record current at its wait call
      member_->require(cudaEventRecord(event, family().stream()), "cudaEventRecord");
      member_->require(cudaStreamWaitEvent(family().side(), event, 0), "cudaStreamWaitEvent");
      enqueue(family().side());
      member_->require(cudaEventRecord(event, family().side()), "cudaEventRecord");
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
        member_->require(cudaFree(std::exchange(member_->control, nullptr)), "cudaFree");
      }
      member_->control_bytes = 0;
      void* p = nullptr;
      member_->require(cudaMalloc(&p, bytes), "cudaMalloc");
      member_->control = static_cast<std::byte*>(p);
      member_->control_bytes = bytes;
    }
    return member_->control;
  }

  std::shared_ptr<detail::nccl_member> member_;
};

static_assert(detail::StartingTransport<nccl> && detail::SplittingTransport<nccl> &&
              detail::HostGatheringTransport<nccl> && detail::WaitingTransport<nccl>);

}}  // namespace onebit
