// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The current CUDA device as the tests use it: a stream of its own, and memory that is counted.

#ifndef ONEBIT_TESTS_CUDA_DEVICE_CUH
#define ONEBIT_TESTS_CUDA_DEVICE_CUH

#include <cstddef>
#include <onebit/backend/cuda.cuh>

namespace onebit_test {

/// A stream for as long as the test runs.
struct stream {
  cudaStream_t handle = nullptr;
  stream() {
    onebit::detail::check_cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags");
  }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { (void)cudaStreamDestroy(handle); }
};

/// Counts what goes through it.
class counting_memory final : public onebit::cuda_memory_resource {
 public:
  std::size_t n_allocated = 0, n_freed = 0, bytes = 0;
  void* allocate(std::size_t n, cudaStream_t stream) override {
    ++n_allocated;
    bytes += n;
    return onebit::default_cuda_memory().allocate(n, stream);
  }
  void deallocate(void* p, std::size_t n, cudaStream_t stream) noexcept override {
    ++n_freed;
    bytes -= n;
    onebit::default_cuda_memory().deallocate(p, n, stream);
  }
};

/// A Device of trainings.hpp.
class cuda_device {
 public:
  [[nodiscard]] onebit::cuda backend() { return {stream_.handle, resource_}; }
  [[nodiscard]] onebit::cuda_memory memory() const { return onebit::cuda_memory(stream_.handle); }
  [[nodiscard]] cudaStream_t handle() const { return stream_.handle; }
  [[nodiscard]] const counting_memory& resource() const { return resource_; }
  [[nodiscard]] static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    onebit::detail::check_cuda(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
  }
  static void free(void* p) { (void)cudaFree(p); }

 private:
  stream stream_;
  counting_memory resource_;
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_CUDA_DEVICE_CUH
