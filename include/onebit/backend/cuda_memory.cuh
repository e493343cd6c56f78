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

struct __nv_bfloat16;  // defined in <cuda_bf16.h>
struct __half;         // defined in <cuda_fp16.h>

/// CUDA memory, streams and graphs, with error checks. Contains no kernels.
namespace onebit { inline namespace v0_3 {

namespace detail {

template <>
struct same_memory<__nv_bfloat16> : std::type_identity<bf16> {};

template <>
struct same_memory<__half> : std::type_identity<fp16> {};

/// Throws backend_error unless a call of the CUDA runtime succeeded.
inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error: the next call must not report it again
  throw backend_error(error_text("cuda: ", call, " gave error ", static_cast<int>(code), " (",
                                 cudaGetErrorName(code), "): ", cudaGetErrorString(code)));
}

}  // namespace detail

/// Returns the number of CUDA devices that this process can use; 0 if there is no driver.
[[nodiscard]] inline int cuda_device_count() noexcept {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  (void)cudaGetLastError();
  return 0;
}

/// Allocator of a backend's device memory. Derive from this class to use a framework's allocator.
class cuda_memory_resource {
 public:
  virtual ~cuda_memory_resource() = default;
  /// Allocates `bytes` > 0 of device memory, 256-byte aligned, usable in the order of `stream`.
  /// Throws if the memory is exhausted.
  virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  /// Frees memory of `allocate`, in the order of `stream`.
  virtual void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept = 0;
};

/// Adapts a stream-ordered resource of CCCL (cuda::mr::async_resource: RMM, frameworks), and keeps
/// a copy of it. Backends do not use the interface of CCCL directly: it is marked experimental in
/// CUDA 13, a macro must enable it in every file, and its functions have been renamed since.
template <class Resource>
class cuda_resource_of final : public cuda_memory_resource {
 public:
  /// Copies `resource`.
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

/// Memory from the pool of a device, or from cudaMalloc, whose cudaFree waits for the device.
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

/// Returns the resource of the current device: its stream-ordered pool, or cudaMalloc if it has
/// none. Throws backend_error if there is no device.
[[nodiscard]] inline cuda_memory_resource& default_cuda_memory() {
  static detail::cuda_own_memory pool(true), heap(false);
  int device = 0, has_pool = 0;
  detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  detail::check_cuda(cudaDeviceGetAttribute(&has_pool, cudaDevAttrMemoryPoolsSupported, device),
                     "cudaDeviceGetAttribute(cudaDevAttrMemoryPoolsSupported)");
  if (has_pool != 0) return pool;
  return heap;
}

/// Memory (the concept) of a CUDA device, for transports that do not use CUDA. Copies in the order
/// of a stream, and allocates pinned host memory to stage copies.
class cuda_memory {
 public:
  /// The host cannot read or write device memory.
  static constexpr bool host_can_touch = false;

  /// Copies in the order of `stream`.
  explicit cuda_memory(cudaStream_t stream = nullptr) : stream_(stream) {}
  [[nodiscard]] cudaStream_t stream() const { return stream_; }  ///< stream of the copies

  /// Enqueues a copy between host or device memory. Neither side may change before `wait`.
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_),
                       "cudaMemcpyAsync");
  }
  /// Waits for all work on the stream.
  void wait() const { detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  /// Allocates pinned host memory, for copies at full speed. Free with free_host. Null for 0 bytes.
  [[nodiscard]] void* allocate_host(std::size_t bytes) const {
    void* p = nullptr;
    if (bytes > 0) detail::check_cuda(cudaMallocHost(&p, bytes), "cudaMallocHost");
    return p;
  }
  /// Frees memory of allocate_host.
  void free_host(void* p) const noexcept {
    if (p != nullptr && cudaFreeHost(p) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  cudaStream_t stream_;
};

namespace detail {

/// Graph of work captured from a stream. Each replay costs one launch. For steps that make the same
/// calls every time.
class cuda_graph {
 public:
  cuda_graph() = default;
  /// Captures the work that f() enqueues on `stream`, without running it. f must not wait or
  /// allocate; `stream` must not be the default one. Throws backend_error, and what f throws.
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
  /// Returns cuda_graph(stream, f).
  template <class F>
  [[nodiscard]] static cuda_graph capture(cudaStream_t stream, F&& f) {
    return cuda_graph(stream, std::forward<F>(f));
  }

  /// Returns true if the graph holds captured work: false if default-constructed or moved from.
  [[nodiscard]] explicit operator bool() const { return executable_ != nullptr; }

  /// Enqueues the captured work. Does not wait. Throws invalid_input if nothing was captured.
  void launch(cudaStream_t stream) const {
    if (executable_ == nullptr) {
      throw invalid_input(detail::error_text("cuda_graph: launched, but nothing was captured"));
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

}  // namespace detail

/// Graphs by key, for optimizer::step_with. Use one object per optimizer. The first time a key
/// occurs, the work runs directly (and may allocate). The second time it is captured, and from then
/// on its graph is launched. The transport must only enqueue, as nccl does. Reports of launched
/// graphs count no bytes. A key for changed memory destroys the graphs of the previous memory.
class cuda_graphs {
 public:
  static constexpr std::uint64_t keys_at_once = 8;  ///< keys per epoch: see step_in_progress::key

  /// `stream` must not be the default stream, which cannot be captured.
  explicit cuda_graphs(cudaStream_t stream) : stream_(stream) {}

  /// Runs, captures or launches the work of `enqueue`. Called by optimizer::step_with.
  template <class F>
  void operator()(std::uint64_t key, const F& enqueue) {
    // each change of memory increases the keys: smaller keys do not return
    entries_.erase(entries_.begin(), entries_.lower_bound(key / keys_at_once * keys_at_once));
    entry& e = entries_[key];
    if (!e.seen) {
      enqueue();
      e.seen = true;  // not set if enqueue throws: it may not have allocated everything yet
      return;
    }
    if (!e.graph) e.graph = detail::cuda_graph::capture(stream_, enqueue);
    e.graph.launch(stream_);
  }
  /// Returns the number of graphs.
  [[nodiscard]] std::size_t size() const {
    std::size_t n = 0;
    for (const auto& [key, e] : entries_) n += e.graph ? 1 : 0;
    return n;
  }

 private:
  struct entry {
    bool seen = false;
    detail::cuda_graph graph;
  };
  cudaStream_t stream_;
  std::map<std::uint64_t, entry> entries_;
};

}}  // namespace onebit
