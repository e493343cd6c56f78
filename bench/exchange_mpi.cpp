// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// As exchange.cpp, among MPI ranks: run it under mpirun. All ranks run the same benchmarks equally
// often, rank 0 reports. A time is the largest over the ranks, iteration by iteration.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <onebit/collective/dense_average.hpp>
#include <onebit/transport/mpi.hpp>
#include <string>
#include <vector>

#include "exchange.hpp"
#include "ranges.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using onebit::mpi;

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

template <class Contender>
void run(benchmark::State& state, const mpi* world, std::size_t n) {
  onebit::host_buffer<float> random(n);
  fill_random(random.data(), n, static_cast<std::uint64_t>(world->rank()) + 1);
  rank_memory memory(n, random.data());
  Contender contender(memory, *world);
  bare_allreduce baseline(memory, *world);
  const auto time = [&](auto& of) {
    memory.refill();
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = time_of([&] { of.run(); });
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
  };
  time(baseline);
  time(contender);
  const std::uint64_t sent_before = contender.bytes_sent();

  std::vector<double> speed_ups;
  for (auto _ : state) {
    const double of_baseline = time(baseline);
    const double seconds = time(contender);
    state.SetIterationTime(seconds);
    speed_ups.push_back(of_baseline / seconds);
  }
  state.counters["bytes_sent"] =
      benchmark::Counter(static_cast<double>(contender.bytes_sent() - sent_before),
                         benchmark::Counter::kAvgIterations);
  state.counters["speed_up"] = median(speed_ups);
}

template <class Contender>
void add(const char* what, const mpi& world) {
  for (const std::size_t n : exchange_sizes()) {
    const std::string name = std::string(what) + "/mpi/ranks:" + std::to_string(world.size()) +
                             "/n:" + std::to_string(n);
    benchmark::RegisterBenchmark(name.c_str(), run<Contender>, &world, n)
        ->UseManualTime()
        ->Iterations(exchange_iterations(n))
        ->Unit(benchmark::kMicrosecond);
  }
}

/// For the ranks that say nothing.
class silent_reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

int run_all(int argc, char** argv) {
  const mpi world(MPI_COMM_WORLD);
  add<bare_allreduce>("bare_allreduce", world);
  add<dense_mean<onebit::dense_sum::transport>>("dense_transport", world);
  add<dense_mean<onebit::dense_sum::transport_in_bf16>>("dense_transport_bf16", world);
  add<dense_mean<onebit::dense_sum::rank_order>>("dense_rank_order", world);
  add<gather_scatter_mean>("gather_scatter", world);
  add<all_gather_mean>("all_gather", world);

  // Only rank 0 writes a file.
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    const bool names_file = std::strncmp(argv[i], "--benchmark_out=", 16) == 0;
    if (world.rank() == 0 || !names_file) arguments.push_back(argv[i]);
  }
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  if (world.rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    silent_reporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  benchmark::Shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int result = 1;
  try {
    result = run_all(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank_of_world(), e.what());
  }
  if (result != 0) MPI_Abort(MPI_COMM_WORLD, result);
  MPI_Finalize();
  return result;
}
