// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ranks with gradients on CUDA devices, a thread for each.

#ifndef ONEBIT_BENCH_CUDA_RANKS_CUH
#define ONEBIT_BENCH_CUDA_RANKS_CUH

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/nccl.hpp>
#include <onebit/transport/threads.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support.cuh"

namespace onebit_bench {

/// NCCL's ranks: all devices of this machine, or as given. False, and says so, where there is one
/// device, and nothing to exchange. Throws where there are too few.
inline bool find_devices(std::vector<int>& ranks, bool given) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // as examples/embed_cuda.cu
  const int n = onebit::cuda_device_count();
  if (n == 1) {
    std::puts("skipped: exchanges over NCCL need two CUDA devices, and there is one");
    return false;
  }
  if (!given) ranks = {n};
  const int most = *std::max_element(ranks.begin(), ranks.end());
  if (most <= n) return true;
  throw std::runtime_error(std::to_string(most) +
                           " ranks over NCCL need a CUDA device each; this machine has " +
                           std::to_string(n));
}

/// Runs f(communicator) on all ranks, each with a stream: of the first device, which they share,
/// or, over NCCL, of its own device. Rethrows the first exception.
template <class F>
void run_ranks(const std::string& transport, int ranks, const F& f) {
  constexpr std::chrono::minutes timeout(2);
  if (transport != "nccl") {
    const std::vector<stopwatch> streams(static_cast<std::size_t>(ranks));
    std::vector<onebit::cuda_memory> memories;
    for (const stopwatch& s : streams) memories.emplace_back(s.stream());
    return onebit::run_threads(
        memories, [&](const auto& t) { f(onebit::communicator(t)); }, timeout);
  }
  const auto check = [](ncclResult_t code, const char* call) {
    if (code != ncclSuccess)
      throw std::runtime_error(onebit::detail::nccl_family::failure(nullptr, code, call));
  };
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  onebit::run_threads(ranks, [&](const onebit::threads& t) {
    check_cuda(cudaSetDevice(t.rank()), "cudaSetDevice");
    const stopwatch stream;
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, ranks, id, t.rank()), "ncclCommInitRank");
    onebit::nccl transport(comm, stream.stream(), {timeout});
    try {
      f(onebit::communicator(transport));
    } catch (...) {  // or the stream would wait for the others, which wait for this rank
      transport.abort();
      throw;
    }
    check(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

}  // namespace onebit_bench

#endif
