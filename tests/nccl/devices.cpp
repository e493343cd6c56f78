// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The NCCL transport on the devices of this machine, one thread for each: first on one, then on
// all. Without a device it ends with status 77, which ctest shows as skipped.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/nccl.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/training.hpp"

namespace {

void cuda(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

class device_buffer {
 public:
  explicit device_buffer(std::size_t n) { cuda(cudaMalloc(&p_, n + 1)); }
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;
  ~device_buffer() { cudaFree(p_); }
  [[nodiscard]] void* data() const { return p_; }

 private:
  void* p_ = nullptr;
};

/// Gives the suite, which has host memory, a transport of device memory.
class through_device {
 public:
  through_device(onebit::nccl inner, cudaStream_t stream)
      : inner_(std::move(inner)), stream_(stream) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot) {
    carry(send, n_ranks() * slot, receive, n_ranks() * slot, [&](const void* from, void* to) {
      inner_.start_all_to_all(from, to, slot).wait();  // both ways: the second one's bytes stay
      inner_.all_to_all(from, to, slot);
    });
  }
  void all_gather(const void* send, void* receive, std::size_t slot) {
    carry(send, slot, receive, n_ranks() * slot, [&](const void* from, void* to) {
      inner_.all_gather(from, to, slot);
      inner_.start_all_gather(from, to, slot).wait();
    });
  }
  void all_reduce_sum(float* data, std::size_t n) {
    const device_buffer x(n * sizeof(float));
    copy(x.data(), data, n * sizeof(float));
    inner_.all_reduce_sum(static_cast<float*>(x.data()), n);
    copy(data, x.data(), n * sizeof(float));
    inner_.wait();
  }
  [[nodiscard]] through_device split(int color, int key) const {
    return {inner_.split(color, key), stream_};
  }

 private:
  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(size()); }
  void copy(void* to, const void* from, std::size_t n) {
    cuda(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream_));
  }
  template <class Call>
  void carry(const void* send, std::size_t n_sent, void* receive, std::size_t n_received,
             const Call& call) {
    const device_buffer from(n_sent), to(n_received);
    copy(from.data(), send, n_sent);
    call(from.data(), to.data());
    inner_.wait();
    copy(receive, to.data(), n_received);
    inner_.wait();
  }

  onebit::nccl inner_;
  cudaStream_t stream_;
};

/// Calls f(transport, stream) on n devices.
template <class F>
void on_devices(int n, const F& f) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  onebit::run_threads(n, [&](onebit::threads t) {
    cuda(cudaSetDevice(t.rank()));
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreate(&stream));
    ncclComm_t comm = nullptr;
    if (ncclCommInitRank(&comm, n, id, t.rank()) != ncclSuccess) {
      throw std::runtime_error(ncclGetLastError(nullptr));
    }
    f(onebit::nccl(comm, stream), stream);
    ncclCommDestroy(comm);
    cuda(cudaStreamDestroy(stream));
  });
}

std::vector<int> numbers_of_devices() {
  int n = 0;
  cudaGetDeviceCount(&n);
  return n > 1 ? std::vector<int>{1, n} : std::vector<int>{1};
}

}  // namespace

TEST_CASE("conforms, and so do its parts") {
  for (const int n : numbers_of_devices()) {
    on_devices(n, [](const onebit::nccl& transport, cudaStream_t stream) {
      through_device device(transport, stream);
      for (const auto& failure : onebit_test::transport_failures(device)) FAIL_CHECK(failure);
      for (const auto& failure : onebit_test::split_failures(device)) FAIL_CHECK(failure);
    });
  }
}

TEST_CASE("its collectives can be captured in a graph, started ones included") {
  for (const int n : numbers_of_devices()) {
    on_devices(n, [](onebit::nccl transport, cudaStream_t stream) {
      const auto ranks = static_cast<std::size_t>(transport.size());
      const device_buffer a(4 * ranks), b(4 * ranks);
      auto* const first = static_cast<float*>(a.data());
      std::vector<float> x(ranks, 1.0F);
      cuda(cudaMemcpyAsync(a.data(), x.data(), 4 * ranks, cudaMemcpyDefault, stream));
      transport.all_reduce_sum(first, 1);  // connects, which a capture can not
      transport.all_to_all(a.data(), b.data(), 4);
      transport.all_gather(a.data(), b.data(), 4);
      transport.wait();

      cudaGraph_t graph = nullptr;
      cudaGraphExec_t runs = nullptr;
      cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      transport.all_gather(a.data(), b.data(), 4);
      auto started = transport.start_all_to_all(b.data(), a.data(), 4);
      started.wait();
      transport.all_reduce_sum(first, 1);
      cuda(cudaStreamEndCapture(stream, &graph));
      cuda(cudaGraphInstantiate(&runs, graph, 0));
      for (int i = 0; i < 3; ++i) cuda(cudaGraphLaunch(runs, stream));
      transport.wait();
      cuda(cudaMemcpy(x.data(), a.data(), 4, cudaMemcpyDefault));
      // The gathered first elements are those of all ranks; slot 0 is rank 0's; their sum is n
      // times.
      float expected = static_cast<float>(ranks);
      for (int i = 0; i < 3; ++i) expected *= static_cast<float>(ranks);
      CHECK(x[0] == expected);
      cudaGraphExecDestroy(runs);
      cudaGraphDestroy(graph);
    });
  }
}

TEST_CASE("small messages between the hosts") {
  for (const int n : numbers_of_devices()) {
    on_devices(n, [](onebit::nccl transport, cudaStream_t) {
      onebit::communicator erased(transport);
      const int mine = erased.rank();
      std::vector<int> all(static_cast<std::size_t>(erased.size()));
      erased.host_all_gather(&mine, all.data(), sizeof mine);
      for (int r = 0; r < erased.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == r);
    });
  }
}

int main(int argc, char** argv) {
  int n = 0;
  const cudaError_t code = cudaGetDeviceCount(&n);
  if (code != cudaSuccess || n == 0) {
    std::cout << "skipped: conformance, graph capture and host messages of onebit::nccl: no CUDA "
                 "device ("
              << cudaGetErrorString(code) << ")" << std::endl;
    return 77;
  }
  return doctest::Context(argc, argv).run() != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
