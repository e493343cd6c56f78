// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The mean of the ranks' gradients, compressed and exact, among ranks that are threads of this
// process. A time is that of the slowest rank. Every iteration also times the transport's bare
// allreduce, right before; speed_up is the median of the ratios.
//
// Threads exchange through memory, the fastest network there is: what is measured is the price of
// the passes. exchange_mpi.cpp has MPI's.

#include "exchange.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <onebit/collective/dense_average.hpp>
#include <onebit/transport/threads.hpp>
#include <string>
#include <vector>

#include "ranges.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using onebit::threads;

template <class Contender>
void run(benchmark::State& state, int size, std::size_t n) {
  const auto ranks = static_cast<std::size_t>(size);
  constexpr std::size_t shift = 1024;  // every rank has gradients of its own
  onebit::host_buffer<float> random(n + ranks * shift);
  fill_random(random.data(), random.size(), 1);

  rank_team team(size);
  std::vector<std::unique_ptr<rank_memory>> memory(ranks);
  std::vector<std::unique_ptr<Contender>> contenders(ranks);
  std::vector<std::unique_ptr<bare_allreduce>> baselines(ranks);
  const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
  team.time([&](int r) {
    memory[at(r)] = std::make_unique<rank_memory>(n, random.data() + at(r) * shift);
    contenders[at(r)] = std::make_unique<Contender>(*memory[at(r)], team.transport(r));
    baselines[at(r)] = std::make_unique<bare_allreduce>(*memory[at(r)], team.transport(r));
  });
  const auto time = [&](auto& of) {
    team.time([&](int r) { memory[at(r)]->refill(); });
    return team.time([&](int r) { of[at(r)]->run(); });
  };
  time(contenders);
  const std::uint64_t sent_before = contenders[0]->bytes_sent();

  std::vector<double> speed_ups;
  for (auto _ : state) {
    const double baseline = time(baselines);
    const double seconds = time(contenders);
    state.SetIterationTime(seconds);
    speed_ups.push_back(baseline / seconds);
  }
  state.counters["bytes_sent"] =
      benchmark::Counter(static_cast<double>(contenders[0]->bytes_sent() - sent_before),
                         benchmark::Counter::kAvgIterations);
  state.counters["speed_up"] = median(speed_ups);
}

template <class Contender>
void add(const char* what) {
  for (const int size : exchange_ranks) {
    for (const std::size_t n : exchange_sizes()) {
      const std::string name =
          std::string(what) + "/threads/ranks:" + std::to_string(size) + "/n:" + std::to_string(n);
      benchmark::RegisterBenchmark(name.c_str(), run<Contender>, size, n)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  add<bare_allreduce>("bare_allreduce");
  add<dense_mean<onebit::dense_sum::transport>>("dense_transport");
  add<dense_mean<onebit::dense_sum::transport_in_bf16>>("dense_transport_bf16");
  add<dense_mean<onebit::dense_sum::rank_order>>("dense_rank_order");
  add<gather_scatter_mean>("gather_scatter");
  add<all_gather_mean>("all_gather");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
