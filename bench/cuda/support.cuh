// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What the benchmarks on a CUDA device share: time by events, copies and one plain Adam kernel to
// compare with, and a main function that leaves with 77 where there is no device.

#ifndef ONEBIT_BENCH_CUDA_SUPPORT_CUH
#define ONEBIT_BENCH_CUDA_SUPPORT_CUH

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <onebit/backend/cuda.cuh>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../ranges.hpp"
#include "../support.hpp"
#include "plain_adam.cuh"

namespace onebit_bench {

using onebit::detail::check_cuda;

/// A stream, and the time between two events on it.
class stopwatch {
 public:
  stopwatch() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaEventCreate(&first_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&last_), "cudaEventCreate");
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaEventDestroy(first_);
    (void)cudaEventDestroy(last_);
    (void)cudaStreamDestroy(stream_);
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  /// Seconds that the device takes for what f() enqueues. Waits.
  template <class F>
  double time(const F& f) const {
    check_cuda(cudaEventRecord(first_, stream_), "cudaEventRecord");
    f();
    check_cuda(cudaEventRecord(last_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(last_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, first_, last_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t first_ = nullptr, last_ = nullptr;
};

/// Uniform in [middle - range, middle + range).
static __global__ void fill_kernel(float* to, std::size_t n, float middle, float range,
                                   std::uint64_t seed) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15U + i;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    x ^= x >> 31U;
    to[i] = middle + range * (static_cast<float>(x >> 40U) / (1 << 23) - 1);
  }
}

inline void fill(float* to, std::size_t n, float middle, float range, std::uint64_t seed,
                 cudaStream_t stream) {
  if (n == 0) return;
  const std::size_t blocks = std::min<std::size_t>((n + 255) / 256, 4096);
  fill_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(to, n, middle, range, seed);
  check_cuda(cudaGetLastError(), "fill_kernel");
}

inline onebit::detail::cuda_buffer<float> random_buffer(const onebit::cuda& backend, std::size_t n,
                                                        std::uint64_t seed, float middle = 0,
                                                        float range = 1) {
  auto b = backend.make_buffer<float>(n);
  fill(b.data(), n, middle, range, seed, backend.stream());
  return b;
}

/// It, on n elements (a multiple of 4) of its own.
class plain_adam {
 public:
  static constexpr double bytes = 28;

  plain_adam(const onebit::cuda& backend, std::size_t n)
      : n_(n / 4),
        stream_(backend.stream()),
        x_(random_buffer(backend, n, 1)),
        g_(random_buffer(backend, n, 2)),
        m_(random_buffer(backend, n, 3)),
        v_(random_buffer(backend, n, 4, 2)) {}
  void run() {
    const std::size_t blocks = std::min<std::size_t>((n_ + 255) / 256, 0x7FFFFFFF);
    plain_adam_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream_>>>(
        reinterpret_cast<float4*>(x_.data()), reinterpret_cast<const float4*>(g_.data()),
        reinterpret_cast<float4*>(m_.data()), reinterpret_cast<float4*>(v_.data()), n_, 1e-7F);
    check_cuda(cudaGetLastError(), "plain_adam_kernel");
  }

 private:
  std::size_t n_;
  cudaStream_t stream_;
  onebit::detail::cuda_buffer<float> x_, g_, m_, v_;
};

/// Throws unless the ranks' buffers, a pointer to each, have the same bits.
inline void expect_same(const std::vector<const onebit::detail::cuda_buffer<float>*>& of_ranks) {
  std::vector<float> first(of_ranks[0]->size()), other(first.size());
  const auto fetch = [](std::vector<float>& to, const onebit::detail::cuda_buffer<float>& from) {
    check_cuda(cudaMemcpy(to.data(), from.data(), from.bytes(), cudaMemcpyDefault), "cudaMemcpy");
  };
  fetch(first, *of_ranks[0]);
  for (const auto* buffer : of_ranks) {
    fetch(other, *buffer);
    if (std::memcmp(first.data(), other.data(), first.size() * sizeof(float)) != 0) {
      throw std::runtime_error("bench: the ranks do not have the same bits");
    }
  }
}

/// Puts the device into what is reported. False, and says so, where there is none.
inline bool has_device() {
  if (onebit::cuda_device_count() == 0) {
    std::puts("skipped: no CUDA device");
    return false;
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  benchmark::AddCustomContext("device", properties.name);
  benchmark::AddCustomContext("multiprocessors", std::to_string(properties.multiProcessorCount));
  benchmark::AddCustomContext("l2_bytes", std::to_string(properties.l2CacheSize));
  return true;
}

/// Runs the benchmarks that `add()` registers.
template <class F>
int cuda_main(int argc, char** argv, const F& add) {
  if (!has_device()) return 77;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// f(state), except that a device with too little memory skips it.
template <class F>
void where_it_fits(benchmark::State& state, const F& f) {
  try {
    f();
  } catch (const onebit::backend_error& e) {
    state.SkipWithError(e.what());
  }
}

}  // namespace onebit_bench

#endif
