// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/backend/cuda_lanes.hpp>
#include <onebit/backend/cuda_memory.cuh>
#include <onebit/concepts/backend.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/launch.hpp>
#include <type_traits>

#if CUDART_VERSION < 12000
#error "onebit needs CUDA 12.0, the first that knows C++20; it is tested with 13.0"
#endif

/// CUDA backend: one warp per index of a launch, all work on one stream.
namespace onebit { inline namespace v0_3 {

namespace detail {

#if defined(__CUDA_ARCH__)
extern "C" __device__ int __nvvm_reflect(const char*);
#define ONEBIT_ON_DEVICE(expression) return expression
#else
// Kernels are host/device functions: their host half is compiled too, but never runs.
#define ONEBIT_ON_DEVICE(expression) __builtin_trap()
#endif

/// The Warp parameter of warp_lanes on a device. Each intrinsic rounds once, and nvcc does not
/// contract intrinsics. Functions are host/device only because nvcc warns otherwise: kernels are.
struct cuda_warp {
  static constexpr unsigned all = 0xFFFFFFFFU;

  ONEBIT_HD static std::uint32_t lane() { ONEBIT_ON_DEVICE(threadIdx.x % 32); }
  ONEBIT_HD static std::uint32_t own_bit() {
    std::uint32_t r = 0;
#if defined(__CUDA_ARCH__)
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(r));
#endif
    return r;
  }
  ONEBIT_HD static std::uint32_t own_shift() {
    std::uint32_t r = 0;
#if defined(__CUDA_ARCH__)
    asm("mov.u32 %0, %%laneid;\n\tsub.u32 %0, 31, %0;" : "=r"(r));
#endif
    return r;
  }
  ONEBIT_HD static void sync() { ONEBIT_ON_DEVICE(__syncwarp(all)); }
  /// Returns shared memory of the block: kernels that call this run with one warp per block.
  ONEBIT_HD static float* tile([[maybe_unused]] std::uint32_t i) {
#if defined(__CUDA_ARCH__)
    __shared__ float tiles[tile_buffers * tile_elements];
    return tiles + i * tile_elements;
#else
    __builtin_trap();
#endif
  }
  ONEBIT_HD static std::uint32_t ballot([[maybe_unused]] bool mine) {
    ONEBIT_ON_DEVICE(__ballot_sync(all, mine));
  }
  ONEBIT_HD static float shuffle_xor([[maybe_unused]] float x, [[maybe_unused]] int mask) {
    ONEBIT_ON_DEVICE(__shfl_xor_sync(all, x, mask));
  }
  ONEBIT_HD static double shuffle_xor([[maybe_unused]] double x, [[maybe_unused]] int mask) {
    ONEBIT_ON_DEVICE(__shfl_xor_sync(all, x, mask));
  }
  ONEBIT_HD static std::uint64_t shuffle_xor([[maybe_unused]] std::uint64_t x,
                                             [[maybe_unused]] int mask) {
    ONEBIT_ON_DEVICE(__shfl_xor_sync(all, static_cast<unsigned long long>(x), mask));
  }
  ONEBIT_HD static float shuffle([[maybe_unused]] float x, [[maybe_unused]] unsigned lane) {
    ONEBIT_ON_DEVICE(__shfl_sync(all, x, lane));
  }
  ONEBIT_HD static std::uint32_t largest(std::uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(all, x);
#elif defined(__CUDA_ARCH__)
    for (int mask = 16; mask > 0; mask /= 2) x = max(x, __shfl_xor_sync(all, x, mask));
    return x;
#else
    __builtin_trap();
    return x;
#endif
  }
  ONEBIT_HD static float with_sign(float x, [[maybe_unused]] std::uint32_t word) {
    float r = x;
#if defined(__CUDA_ARCH__)
    asm("lop3.b32 %0, %1, 0x80000000, %2, 0xA6;" : "=f"(r) : "r"(word), "f"(x));  // ~word & ... ^ x
#endif
    return r;
  }
  ONEBIT_HD static float add([[maybe_unused]] float a, [[maybe_unused]] float b) {
    ONEBIT_ON_DEVICE(__fadd_rn(a, b));
  }
  ONEBIT_HD static float sub([[maybe_unused]] float a, [[maybe_unused]] float b) {
    ONEBIT_ON_DEVICE(__fsub_rn(a, b));
  }
  ONEBIT_HD static float mul([[maybe_unused]] float a, [[maybe_unused]] float b) {
    ONEBIT_ON_DEVICE(__fmul_rn(a, b));
  }
  ONEBIT_HD static float div([[maybe_unused]] float a, [[maybe_unused]] float b) {
    ONEBIT_ON_DEVICE(__fdiv_rn(a, b));
  }
  ONEBIT_HD static float sqrt([[maybe_unused]] float a) { ONEBIT_ON_DEVICE(__fsqrt_rn(a)); }
  // With .ftz an estimate is one instruction. It is asked for normal numbers alone.
#if defined(ONEBIT_PTX_WITHOUT_FTZ)  // for a device of the tests that does not know it
#define ONEBIT_FTZ ""
#else
#define ONEBIT_FTZ ".ftz"
#endif
  ONEBIT_HD static float about_reciprocal([[maybe_unused]] float a) {
    float r = 0;
#if defined(__CUDA_ARCH__)
    asm("rcp.approx" ONEBIT_FTZ ".f32 %0, %1;" : "=f"(r) : "f"(a));
#endif
    return r;
  }
  ONEBIT_HD static float about_reciprocal_root([[maybe_unused]] float a) {
    float r = 0;
#if defined(__CUDA_ARCH__)
    asm("rsqrt.approx" ONEBIT_FTZ ".f32 %0, %1;" : "=f"(r) : "f"(a));
#endif
    return r;
  }
#undef ONEBIT_FTZ
  ONEBIT_HD static float fma([[maybe_unused]] float a, [[maybe_unused]] float b,
                             [[maybe_unused]] float c) {
    ONEBIT_ON_DEVICE(__fmaf_rn(a, b, c));
  }
  ONEBIT_HD static std::uint32_t count([[maybe_unused]] std::uint32_t word) {
    ONEBIT_ON_DEVICE(static_cast<std::uint32_t>(__popc(word)));
  }
  ONEBIT_HD static std::uint32_t arrive([[maybe_unused]] std::uint32_t* count) {
    std::uint32_t before = 0;
#if defined(__CUDA_ARCH__)
    sync();
    // The PTX of fetch_add and store of cuda::atomic_ref: including <cuda/atomic> would double the
    // compile time of a file with one kernel.
    if (lane() == 0) {
      asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    }
    before = __shfl_sync(all, before, 0);
    sync();
#endif
    return before;
  }
  ONEBIT_HD static void raise([[maybe_unused]] std::uint32_t* flag) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
#endif
  }

  class transposition {
   public:
#if defined(__CUDA_ARCH__)
    ONEBIT_HD transposition()
        : halves_(held(16, 0x5410, 0x3276)),
          bytes_(held(8, 0x6240, 0x3715)),
          keep_{held(4, 0x0F0F0F0F, 0xF0F0F0F0), held(2, 0x33333333, 0xCCCCCCCC),
                held(1, 0x55555555, 0xAAAAAAAA)},
          by_{held(4, 4, 28), held(2, 2, 30), held(1, 1, 31)} {}
    /// Exchanges halves, bytes, then bits of the word with lane() ^ 16, 8, then 4, 2, 1.
    ONEBIT_HD std::uint32_t operator()(std::uint32_t word) const {
      word = __byte_perm(word, __shfl_xor_sync(all, word, 16), halves_);
      word = __byte_perm(word, __shfl_xor_sync(all, word, 8), bytes_);
      for (int i = 0; i < 3; ++i) {
        const std::uint32_t other = __shfl_xor_sync(all, word, 4 >> i);
        asm("lop3.b32 %0, %0, %1, %2, 0xE4;"  // (word & keep) | (other & ~keep)
            : "+r"(word)
            : "r"(__funnelshift_l(other, other, by_[i])), "r"(keep_[i]));
      }
      return word;
    }

   private:
    /// Returns b in lanes whose number has `bit` set, else a. The asm keeps the value in a
    /// register: the compiler would recompute such a cheap value in every iteration of a loop.
    ONEBIT_HD static std::uint32_t held(unsigned bit, std::uint32_t a, std::uint32_t b) {
      std::uint32_t x = (lane() & bit) == 0 ? a : b;
      asm volatile("mov.b32 %0, %0;" : "+r"(x));
      return x;
    }
    std::uint32_t halves_, bytes_, keep_[3], by_[3];
#else
    ONEBIT_HD std::uint32_t operator()(std::uint32_t word) const { return word; }
#endif
  };
};

#undef ONEBIT_ON_DEVICE

/// Warps per block. A small number spreads the end of a launch over many multiprocessors.
inline constexpr unsigned warps_per_block = 4;

/// Blocks per multiprocessor: leaves 64 registers per thread. By default ptxas spills to use 32.
inline constexpr unsigned blocks_per_processor = 8;

template <class Kernel>
__global__ void __launch_bounds__(32 * warps_per_block, blocks_per_processor)
    run_on_warps(const __grid_constant__ Kernel kernel, std::size_t n) {
#if defined(__CUDA_ARCH__)
  // With --use_fast_math or -ftz=true the intrinsics above flush subnormals. No macro tells, but
  // the compiler's reflection does. The asm is invalid on purpose; without -ftz it is removed.
  if (__nvvm_reflect("__CUDA_FTZ") != 0) {
    asm volatile("onebit_promises_equal_bits__compile_without_use_fast_math_and_ftz;");
  }
#endif
  // the shuffle tells the compiler that the index is the same in all threads of a warp
  const unsigned warp = __shfl_sync(cuda_warp::all, threadIdx.x / 32, 0);
  const std::size_t warps = blockDim.x / 32, stride = gridDim.x * warps;
  for (std::size_t i = blockIdx.x * warps + warp; i < n; i += stride) {
    run_wide<warp_lanes<cuda_warp>>(kernel, i);
  }
}

/// Returns the warps per block for a kernel: 1 if the kernel keeps tiles in shared memory.
template <class Kernel>
[[nodiscard]] unsigned warps_of() {
  cudaFuncAttributes what{};
  check_cuda(cudaFuncGetAttributes(&what, reinterpret_cast<const void*>(&run_on_warps<Kernel>)),
             "cudaFuncGetAttributes");
  return what.sharedSizeBytes > 0 ? 1 : warps_per_block;
}

/// Buffer of n zeroed objects of T in device memory, at least 256-byte aligned; movable. Freed by
/// its memory resource, in stream order: work launched before the destructor may still use the
/// buffer. The stream must outlive the buffer.
template <class T>
class cuda_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "onebit: buffers hold trivially copyable types");

 public:
  cuda_buffer() = default;
  /// Throws backend_error when the memory is exhausted.
  cuda_buffer(std::size_t n, cudaStream_t stream, cuda_memory_resource& resource) {
    if (n == 0) return;
    const give_back later{n * sizeof(T), stream, &resource};
    data_ = {static_cast<T*>(resource.allocate(later.bytes, stream)), later};
    detail::check_cuda(cudaMemsetAsync(data(), 0, bytes(), stream), "cudaMemsetAsync");
  }
  /// @{
  /// Buffer operations of the Backend concept.
  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes() / sizeof(T); }
  [[nodiscard]] std::size_t bytes() const { return data_ ? data_.get_deleter().bytes : 0; }
  /// @}

 private:
  struct give_back {
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    cuda_memory_resource* resource = nullptr;
    void operator()(T* p) const noexcept { resource->deallocate(p, bytes, stream); }
  };
  std::unique_ptr<T, give_back> data_;
};

}  // namespace detail

/// Runs kernels on a CUDA device, in the order of one stream. The device of the stream must be
/// current in the calling thread. A handle of two pointers: copies share the stream, which the
/// caller owns, and the memory resource. All functions throw backend_error if CUDA reports an
/// error, which may be the error of an earlier kernel.
class cuda {
 public:
  /// `launch` may return before its kernels have run. `copy_out` and `wait` wait for them.
  static constexpr bool deferred = true;

  /// Uses `stream` (the default stream cannot be captured into a graph). Allocates from the
  /// stream-ordered pool of the device, or with cudaMalloc if the device has no pool.
  explicit cuda(cudaStream_t stream = nullptr) : cuda(stream, default_cuda_memory()) {}
  /// Allocates from `resource`, which must outlive all buffers.
  cuda(cudaStream_t stream, cuda_memory_resource& resource)
      : stream_(stream), resource_(&resource) {}

  /// Returns the stream on which all work is enqueued.
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  /// Returns a buffer of n zeroed objects.
  template <class T>
  [[nodiscard]] detail::cuda_buffer<T> make_buffer(std::size_t n) const {
    return detail::cuda_buffer<T>(n, stream_, *resource_);
  }

  /// Enqueues kernel(L{}, i) for each i in [0, n), one warp per i. Does not allocate or wait, and
  /// can be captured into a graph. Copies the kernel object.
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    static_assert(std::is_trivially_copyable_v<Kernel>, "onebit: kernels travel as bytes");
    if (n == 0) return;
    constexpr std::size_t most_blocks = 0x7FFFFFFF;
    static const unsigned warps = detail::warps_of<Kernel>();
    const std::size_t blocks = (n + warps - 1) / warps;
    Kernel object = kernel;
    void* arguments[] = {&object, &n};
    const cudaError_t code =
        cudaLaunchKernel(reinterpret_cast<const void*>(&detail::run_on_warps<Kernel>),
                         dim3(static_cast<unsigned>((std::min)(blocks, most_blocks))),
                         dim3(32 * warps), static_cast<void**>(arguments), 0, stream_);
    detail::check_cuda(code, "cudaLaunchKernel");
  }

  /// Copies n objects from the host to the device, after all work launched before. Waits for the
  /// copy, unless n is 0: `from` may be reused on return.
  template <class T>
  void copy_in(T* to, const T* from, std::size_t n) const {
    if (n == 0) return;
    detail::check_cuda(cudaMemcpyAsync(to, from, n * sizeof(T), cudaMemcpyHostToDevice, stream_),
                       "cudaMemcpyAsync");
    wait();
  }
  /// Copies n objects from the device to the host, after all work launched before. Waits.
  template <class T>
  void copy_out(T* to, const T* from, std::size_t n) const {
    if (n > 0) {
      detail::check_cuda(cudaMemcpyAsync(to, from, n * sizeof(T), cudaMemcpyDeviceToHost, stream_),
                         "cudaMemcpyAsync");
    }
    wait();
  }
  /// Waits for all work on the stream.
  void wait() const { detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_;
  cuda_memory_resource* resource_;
};

static_assert(Backend<cuda>);

}}  // namespace onebit
