// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The compressed mean over NCCL beside ncclAllReduce of the same floats, on all devices of this
// machine, a thread for each. With one device there is nothing to exchange: it says so, and exits
// with 77.
//
// Time is that of the slowest rank by the host's clock until its stream is done; speed_up is the
// median of allreduce over exchange, each pair from one iteration.

#include <nccl.h>

#include <memory>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/nccl.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "support.cuh"

namespace {

using namespace onebit_bench;
using onebit::gather_scatter, onebit::sign;
using exchange = onebit::compressed_allreduce<gather_scatter<sign<>>, float, onebit::cuda>;

void check_nccl(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
}

/// One device: its gradients, and both ways to average them.
class contender {
 public:
  contender(int rank, int size, const ncclUniqueId& id, std::size_t n)
      : backend_(watch_.stream()),
        n_(n),
        grads_(random_buffer(backend_, n, 1 + static_cast<std::uint64_t>(rank))) {
    check_nccl(ncclCommInitRank(&nccl_, size, id, rank));
    comm_ = std::make_unique<onebit::communicator>(onebit::nccl(nccl_, watch_.stream()));
    exchange_ = std::make_unique<exchange>(*comm_, std::vector<std::size_t>{n},
                                           gather_scatter<sign<>>{}, backend_);
  }
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  ~contender() {
    (void)cudaStreamSynchronize(watch_.stream());
    exchange_.reset();
    comm_.reset();
    (void)ncclCommDestroy(nccl_);
  }

  void compressed() {
    exchange_->mean(std::span(grads_.data(), n_));
    comm_->wait();
  }
  /// What compressed() left; throws where the last one was skipped.
  [[nodiscard]] const onebit::cuda_buffer<float>& decoded() const {
    if (exchange_->settle() != onebit::outcome::kept)
      throw std::runtime_error("bench: an exchange was skipped");
    return grads_;
  }
  void allreduce() {
    comm_->all_reduce_sum(grads_.data(), n_);
    comm_->wait();
  }
  void refill(int rank) {
    fill(grads_.data(), n_, 0, 1, 1 + static_cast<std::uint64_t>(rank), watch_.stream());
    backend_.wait();
  }

 private:
  stopwatch watch_;
  onebit::cuda backend_;
  std::size_t n_;
  onebit::cuda_buffer<float> grads_;
  ncclComm_t nccl_ = nullptr;
  std::unique_ptr<onebit::communicator> comm_;
  std::unique_ptr<exchange> exchange_;
};

void run(benchmark::State& state, int size, std::size_t n) {
  where_it_fits(state, [&] {
    ncclUniqueId id;
    check_nccl(ncclGetUniqueId(&id));
    std::vector<std::unique_ptr<contender>> ranks(static_cast<std::size_t>(size));
    const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
    rank_team team(size);
    team.time([&](int r) {
      check_cuda(cudaSetDevice(r), "cudaSetDevice");
      ranks[at(r)] = std::make_unique<contender>(r, size, id, n);
    });
    const auto timed = [&](auto member) {
      team.time([&](int r) { ranks[at(r)]->refill(r); });
      return team.time([&](int r) { ((*ranks[at(r)]).*member)(); });
    };
    for (int i = 0; i < 3; ++i) {
      (void)timed(&contender::allreduce);
      (void)timed(&contender::compressed);
    }
    std::vector<double> ratios, dense, compressed;
    for (auto _ : state) {
      dense.push_back(timed(&contender::allreduce));
      compressed.push_back(timed(&contender::compressed));
      state.SetIterationTime(compressed.back());
      ratios.push_back(dense.back() / compressed.back());
    }
    state.counters["speed_up"] = median(ratios);
    state.counters["allreduce_us"] = median(dense) * 1e6;
    state.counters["exchange_us"] = median(compressed) * 1e6;
    std::vector<const onebit::cuda_buffer<float>*> decoded;
    for (const auto& rank : ranks) decoded.push_back(&rank->decoded());
    expect_same(decoded);
    team.time([&](int r) { ranks[at(r)].reset(); });
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int n_devices = onebit::cuda_device_count();
  if (n_devices == 1) {
    std::puts("skipped: exchanges over NCCL need two CUDA devices, and there is one");
    return 77;
  }
  return cuda_main(argc, argv, [n_devices] {
    for (const std::size_t n : device_sizes(4)) {
      const std::string name =
          "cuda/exchange/ranks:" + std::to_string(n_devices) + "/n:" + std::to_string(n);
      benchmark::RegisterBenchmark(name.c_str(), run, n_devices, n)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  });
}
