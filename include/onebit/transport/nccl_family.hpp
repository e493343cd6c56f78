// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>  // before nccl.h: some of its versions have ncclBfloat16 only then
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <onebit/error.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// NCCL's communicators, and what becomes of them. The only header that includes nccl.h, which
/// brings the CUDA runtime with it; needs no nvcc. NCCL 2.18 or later.
namespace onebit::inline v0_1 {

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

  [[nodiscard]] bool watches(ncclComm_t comm) const {
    return std::find(comms_.begin(), comms_.end(), comm) != comms_.end();
  }
  [[nodiscard]] const nccl_options& options() const { return options_; }
  [[nodiscard]] bool failed() const { return failed_; }

  void watch(ncclComm_t comm) { comms_.push_back(comm); }
  void forget(ncclComm_t comm) { std::erase(comms_, comm); }

  /// Throws when the communicators are gone.
  void check_alive(const std::string& suffix) const {
    if (!failed_) return;
    throw transport_error(
        message("nccl: the communicators were aborted: ", why_, suffix));
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

  /// In one group, so that all kernels are told to end before one is waited for.
  void end() noexcept {
    ncclGroupStart();
    for (const ncclComm_t comm : std::exchange(comms_, {})) ncclCommAbort(comm);
    ncclGroupEnd();
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
    end();
    throw transport_error(message("nccl: ", why, "; the communicators were aborted", suffix));
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
  bool failed_ = false;
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
}  // namespace onebit::inline v0_1
