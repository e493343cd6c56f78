// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <type_traits>
#include <utility>

struct __nv_bfloat16;  // of <cuda_bf16.h>
struct __half;         // of <cuda_fp16.h>

/// CUDA's memory, streams and graphs, with checked calls. No kernels.
namespace onebit::inline v0_2 {

template <>
struct same_memory<__nv_bfloat16> : std::type_identity<bf16> {};
template <>
struct same_memory<__half> : std::type_identity<fp16> {};

namespace detail {

/// Throws backend_error unless a call of the CUDA runtime succeeded.
inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // it is told here: the next call must not report it again
  throw backend_error(message("cuda: ", call, " gave error ", static_cast<int>(code), " (",
                              cudaGetErrorName(code), "): ", cudaGetErrorString(code)));
}

}  // namespace detail

/// The number of CUDA devices that this process can use; 0 also where there is no driver.
[[nodiscard]] inline int cuda_device_count() noexcept {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  (void)cudaGetLastError();
  return 0;
}

/// Where a backend's device memory comes from. Derive from it to use a framework's allocator.
class cuda_memory_resource {
 public:
  virtual ~cuda_memory_resource() = default;
  /// `bytes` > 0 of device memory, 256-byte aligned, usable in the order of `stream`. Throws when
  /// there is none.
  virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  /// Takes back what `allocate` gave, in the order of `stream`.
  virtual void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept = 0;
};

/// A stream-ordered resource as CCCL has them (cuda::mr::async_resource: RMM's, a framework's) as a
/// backend's: keeps a copy of it. The backend's own interface stays the two functions above: CCCL's
/// are called experimental in CUDA 13, must be switched on by a macro in every file, and have
/// changed their names since.
template <class Resource>
class cuda_resource_of final : public cuda_memory_resource {
 public:
  /// Over a copy of this resource.
  explicit cuda_resource_of(Resource resource) : resource_(std::move(resource)) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    return resource_.allocate_async(bytes, alignment, stream);
  }
  void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept override {
    resource_.deallocate_async(p, bytes, alignment, stream);
  }

 private:
  static constexpr std::size_t alignment = 256;
  Resource resource_;
};

namespace detail {

/// A device's pool, or, where it has none, cudaMalloc; cudaFree waits for the device.
class cuda_own_memory final : public cuda_memory_resource {
 public:
  explicit cuda_own_memory(bool pool) : pool_(pool) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    void* p = nullptr;
    if (pool_) {
      check_cuda(cudaMallocAsync(&p, bytes, stream), "cudaMallocAsync");
    } else {
      check_cuda(cudaMalloc(&p, bytes), "cudaMalloc");
    }
    return p;
  }
  void deallocate(void* p, std::size_t, cudaStream_t stream) noexcept override {
    if ((pool_ ? cudaFreeAsync(p, stream) : cudaFree(p)) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  bool pool_;
};

}  // namespace detail

/// The resource for the current device: its stream-ordered pool, or cudaMalloc where it has none.
/// Throws backend_error where there is no device.
[[nodiscard]] inline cuda_memory_resource& default_cuda_memory() {
  static detail::cuda_own_memory pool(true), heap(false);
  int device = 0, has_pool = 0;
  detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  detail::check_cuda(cudaDeviceGetAttribute(&has_pool, cudaDevAttrMemoryPoolsSupported, device),
                     "cudaDeviceGetAttribute(cudaDevAttrMemoryPoolsSupported)");
  if (has_pool != 0) return pool;
  return heap;
}

/// How a transport that knows nothing of CUDA reaches device memory: copies in the order of a
/// stream, and host memory for them to go through.
class cuda_memory {
 public:
  /// The host cannot read or write what the backend's pointers point to.
  static constexpr bool host_can_touch = false;

  /// In the order of that stream.
  explicit cuda_memory(cudaStream_t stream = nullptr) : stream_(stream) {}
  [[nodiscard]] cudaStream_t stream() const { return stream_; }  ///< that one

  /// Enqueues a copy between any two places. Does not wait: neither place may change before `wait`.
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_),
                       "cudaMemcpyAsync");
  }
  /// Waits for everything on the stream.
  void wait() const { detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  /// Pinned host memory, which copies run at full speed from; free with free_host. Null for 0.
  [[nodiscard]] void* allocate_host(std::size_t bytes) const {
    void* p = nullptr;
    if (bytes > 0) detail::check_cuda(cudaMallocHost(&p, bytes), "cudaMallocHost");
    return p;
  }
  /// What allocate_host gave.
  void free_host(void* p) const noexcept {
    if (p != nullptr && cudaFreeHost(p) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  cudaStream_t stream_;
};

/// Work captured once from a stream, launched many times for the price of one launch: for steps
/// whose calls are the same every time.
class cuda_graph {
 public:
  cuda_graph() = default;
  /// Calls f(), which must use `stream` (not the default one) without waiting for it or allocating,
  /// and keeps what it enqueued; nothing runs. Throws backend_error, and what f throws.
  template <class F>
  cuda_graph(cudaStream_t stream, F&& f) {
    detail::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      std::forward<F>(f)();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    detail::check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
    (void)cudaGraphDestroy(graph);
    detail::check_cuda(code, "cudaGraphInstantiate");
    executable_.reset(executable);
  }
  /// `cuda_graph(stream, f)`, in words.
  template <class F>
  [[nodiscard]] static cuda_graph capture(cudaStream_t stream, F&& f) {
    return cuda_graph(stream, std::forward<F>(f));
  }

  /// False before something was captured, and after a move from it.
  [[nodiscard]] explicit operator bool() const { return executable_ != nullptr; }

  /// Enqueues all of it. Does not wait. Throws invalid_input where nothing was captured.
  void launch(cudaStream_t stream) const {
    if (executable_ == nullptr) {
      throw invalid_input(detail::message("cuda_graph: launched, but nothing was captured"));
    }
    detail::check_cuda(cudaGraphLaunch(executable_.get(), stream), "cudaGraphLaunch");
  }

 private:
  struct destroy {
    void operator()(cudaGraphExec_t graph) const noexcept {
      if (cudaGraphExecDestroy(graph) != cudaSuccess) (void)cudaGetLastError();
    }
  };
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, destroy> executable_;
};

/// Captured work by key, for optimizer::step_with: what comes with a key for the first time runs as
/// it is (and may allocate), the second time it is captured, from then on the graph is launched.
/// Transports must enqueue only, as NCCL's does. Reports of launched graphs count no bytes. Graphs
/// of memory that steps no longer use are destroyed when the first of the new keys comes: one for
/// each optimizer.
class cuda_graphs {
 public:
  static constexpr std::uint64_t keys_at_once = 8;  ///< see step_in_progress::key

  /// Not the default stream, which cannot be captured.
  explicit cuda_graphs(cudaStream_t stream) : stream_(stream) {}

  /// What optimizer::step_with calls.
  template <class F>
  void operator()(std::uint64_t key, const F& enqueue) {
    // keys grow with each change of memory: those of before do not come again
    entries_.erase(entries_.begin(), entries_.lower_bound(key / keys_at_once * keys_at_once));
    entry& e = entries_[key];
    if (!e.seen) {
      enqueue();
      e.seen = true;  // one that throws has not allocated all, and is no first call
      return;
    }
    if (!e.graph) e.graph = cuda_graph::capture(stream_, enqueue);
    e.graph.launch(stream_);
  }
  /// Graphs that it holds.
  [[nodiscard]] std::size_t size() const {
    std::size_t n = 0;
    for (const auto& [key, e] : entries_) n += e.graph ? 1 : 0;
    return n;
  }

 private:
  struct entry {
    bool seen = false;
    cuda_graph graph;
  };
  cudaStream_t stream_;
  std::map<std::uint64_t, entry> entries_;
};

}  // namespace onebit::inline v0_2
