// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A small trainer around onebit on CUDA devices, over NCCL: one rank per device of this machine.
// The guide quotes the lines between the markers. Exits with status 77 if there is no device.

#include <nccl.h>
#include <thrust/device_vector.h>

#include <cstdio>
#include <cstdlib>
#include <onebit/backend/cuda.cuh>
#include <onebit/onebit.hpp>
#include <onebit/transport/nccl.hpp>
#include <stdexcept>
#include <vector>

/// Stand-in for your backward pass. Each rank has its own target; the mean of the targets is 1.
__global__ void backward(const float* params, float* grads, unsigned n, float target) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) grads[i] = params[i] - target;
}

void train(int rank, int size, ncclUniqueId id) {
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;
  if (cudaSetDevice(rank) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess ||
      ncclCommInitRank(&communicator, size, id, rank) != ncclSuccess) {
    throw std::runtime_error("no device, no stream or no communicator");
  }
  const std::vector<float> initial(10000);  // equal on all ranks
  thrust::device_vector<float> params = initial, grads = initial;
  {
    // [cuda]
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({params, grads});  // device memory: looked at, never copied
    onebit::one_bit_adam_options options;
    options.freeze.after = 60;
    onebit::nccl comm(communicator, stream);  // instead of threads or MPI
    const onebit::cuda device(stream);        // instead of the host
    auto optimizer = onebit::one_bit_adam(groups, comm, options, device);
    // [/cuda]
    onebit::report done;
    for (int step = 0; step < 400; ++step) {
      backward<<<40, 256, 0, stream>>>(params.data().get(), grads.data().get(), 10000,
                                       2.0F * (rank + 1) / (size + 1));
      done = optimizer.step(step < 200 ? 0.1F : 0.01F);  // enqueued: does not wait
    }
    // settle() waits. Unlike cudaStreamSynchronize it throws if a rank is lost.
    const bool kept = optimizer.settle() == onebit::outcome::kept;
    const float x = params.back();
    std::printf("rank %d of %d: %.4f, should be 1; %llu bytes sent in the last step\n", rank, size,
                x, static_cast<unsigned long long>(done.bytes_sent));
    if (!kept || x < 0.99F || x > 1.01F) throw std::runtime_error("it has not learnt");
  }
  (void)ncclCommDestroy(communicator);  // after the destruction of transport and optimizer
  (void)cudaStreamDestroy(stream);
}

int main() {
  // Lazy loading of a kernel in one thread can deadlock with a collective that waits for its rank.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const int size = onebit::cuda_device_count();
  if (size == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess) return 1;
  onebit::run_threads(size, [&](onebit::threads thread) { train(thread.rank(), size, id); });
}
