// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam's exchange over NCCL beside ncclAllReduce of the same floats, on all devices of this
// machine, a thread for each. With one device there is nothing to exchange: it says so, and exits
// with 77.
//
// Time is that of the slowest rank by the host's clock until its stream is done; speed_up is the
// median of allreduce over exchange, each pair from one iteration.

#include <nccl.h>

#include <memory>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/nccl.hpp>
#include <span>
#include <stdexcept>

#include "support.cuh"

namespace {

using namespace onebit_bench;
using codec = onebit::sign<>;
using exchange = onebit::gather_scatter_exchange<codec, onebit::cuda>;

void check_nccl(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
}

/// One device: its gradients, and both ways to average them.
class contender {
 public:
  contender(int rank, int size, const ncclUniqueId& id, std::size_t n)
      : backend_(watch_.stream()),
        n_(n),
        grads_(random_buffer(backend_, n, 1 + static_cast<std::uint64_t>(rank))),
        tensor_(backend_.make_buffer<onebit::tensor_entry<float, float>>(1)),
        numbers_(onebit::to_buffer(
            backend_,
            std::vector<onebit::tensor_scalars>{{.c = onebit::make_moments({0.9, 0.999, 1e-8})}})),
        now_(backend_.make_buffer<onebit::step_scalars>(1)) {
    check_nccl(ncclCommInitRank(&comm_, size, id, rank));
    comm_ = std::make_unique<onebit::communicator>(onebit::nccl(comm_, watch_.stream()));
    const onebit::tensor_entry<float, float> entry{nullptr, grads_.data()};
    backend_.copy_in(tensor_.data(), &entry, 1);
    const onebit::step_scalars start;
    backend_.copy_in(now_.data(), &start, 1);
    exchange_ = std::make_unique<exchange>(codec{}, *comm_, backend_, std::span(&n_, 1));
    const std::size_t words = exchange_->axis().n_words();
    live_ = backend_.make_buffer<std::uint32_t>(words);
    check_cuda(cudaMemsetAsync(live_.data(), 0xFF, live_.bytes(), watch_.stream()),
               "cudaMemsetAsync");
    exchange_->count_active(active());
    exchange_->start(exchange_->allocate(true, false),
                     {backend_.make_buffer<float>(words * 32), nullptr, numbers_.data()});
  }
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  ~contender() {
    (void)cudaStreamSynchronize(watch_.stream());
    exchange_.reset();
    comm_.reset();
    (void)ncclCommDestroy(comm_);
  }

  void compressed() {
    const onebit::momentum_message<exchange::view, float, float> message{
        exchange_->agreed(active()), tensor_.data(), numbers_.data(), now_.data()};
    const onebit::exchange_args<onebit::undo_by_repeating> turn{now_.data(), active(), {}};
    exchange_->agree(message, turn);
    exchange_->repeat(message, turn,
                      decode_kernel<exchange::view>{exchange_->heard(active()),
                                                    exchange_->sender().tiles(), grads_.data()});
    exchange_->finish(turn);
    comm_->wait();
  }
  /// What compressed() left.
  [[nodiscard]] const onebit::cuda_buffer<float>& decoded() const { return grads_; }
  void allreduce() {
    comm_->all_reduce_sum(grads_.data(), n_);
    comm_->wait();
  }
  void refill(int rank) {
    fill(grads_.data(), n_, 0, 1, 1 + static_cast<std::uint64_t>(rank), watch_.stream());
    backend_.wait();
  }

 private:
  [[nodiscard]] onebit::active_mask active() const { return {live_.data()}; }

  stopwatch watch_;
  onebit::cuda backend_;
  std::size_t n_;
  onebit::cuda_buffer<float> grads_;
  onebit::cuda_buffer<onebit::tensor_entry<float, float>> tensor_;
  onebit::cuda_buffer<onebit::tensor_scalars> numbers_;
  onebit::cuda_buffer<onebit::step_scalars> now_;
  onebit::cuda_buffer<std::uint32_t> live_;
  ncclComm_t comm_ = nullptr;
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
