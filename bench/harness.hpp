// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compares ways to average gradients, yours among them: bench/README.md.
//
// All ranks run a contender in turn with the transport's bare allreduce. A time is that of the
// slowest rank. A ratio is the allreduce's time over the contender's, of neighbouring measurements.
// The bare allreduce is a contender too: its ratios are the noise floor.

#ifndef ONEBIT_BENCH_HARNESS_HPP
#define ONEBIT_BENCH_HARNESS_HPP

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <onebit/concepts/exchange.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#ifdef ONEBIT_BENCH_MPI
#include <onebit/transport/mpi.hpp>
#endif
#ifdef __CUDACC__
#include "cuda/ranks.cuh"
#endif

#include "exchange.hpp"
#include "support.hpp"

namespace onebit_bench {

// -- contenders

/// One rank's part: `average` is timed and replaces the gradients by their mean over the ranks. On
/// a device it may leave that on the stream of the communicator.
struct exchange {
  std::function<void(std::span<float>)> average;
  /// After each `average`, not timed: throws where it was skipped; copies a mean that arrived
  /// elsewhere to the gradients.
  std::function<void(std::span<float>)> fetch{};

  template <std::invocable<std::span<float>> F>
  exchange(F f) : average(std::move(f)) {}
  /// Of a class with these members.
  template <class X>
  explicit exchange(std::shared_ptr<X> x) : average([x](std::span<float> g) { x->average(g); }) {
    if constexpr (requires(std::span<float> g) { x->fetch(g); }) {
      fetch = [x](std::span<float> g) { x->fetch(g); };
    }
  }
};

struct contender {
  std::string collective;  ///< or whatever it is called
  std::string compressor;  ///< empty: none
  /// Collective: this rank's part, for n elements. What it sends by `comm` is counted.
  std::function<exchange(const onebit::communicator& comm, std::size_t n)> make;
  /// What a call sends from each rank; empty: it is not checked.
  std::function<expected_traffic(std::uint64_t ranks, std::size_t n)> sends{};

  [[nodiscard]] std::string name() const {
    return compressor.empty() ? collective : collective + "<" + compressor + ">";
  }
};

/// A Collective of a Compressor.
template <onebit::Collective C>
contender compressed(std::string collective, std::string compressor, const C& c) {
  contender made{std::move(collective), std::move(compressor),
                 [c](const onebit::communicator& comm, std::size_t n) {
                   return exchange(std::make_shared<compressed_mean<C>>(comm, n, c));
                 }};
  if constexpr (requires { sent_by(c, 1, 1); }) {
    made.sends = [c](std::uint64_t ranks, std::size_t n) { return sent_by(c, ranks, n); };
  }
  return made;
}

inline contender bare() {
  return {"bare_allreduce", "", [](const onebit::communicator& comm, std::size_t n) {
            return exchange(std::make_shared<bare_allreduce>(comm, n));
          }};
}

// -- measuring

/// Least, tenth, half, nine tenths, most.
struct spread {
  double least = 0, low = 0, median = 0, high = 0, most = 0;
  double median_from = 0, median_to = 0;  ///< where it is with 95% confidence

  explicit spread(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    const auto n = static_cast<double>(v.size());
    const auto at = [&](double part) {
      return v[static_cast<std::size_t>(std::lround(std::clamp(part, 0.0, 1.0) * (n - 1)))];
    };
    least = v.front(), low = at(0.1), median = at(0.5), high = at(0.9), most = v.back();
    median_from = at(0.5 - 0.98 / std::sqrt(n)), median_to = at(0.5 + 0.98 / std::sqrt(n));
  }
};

struct measurement {
  std::vector<double> seconds, ratios;
  std::uint64_t bytes = 0;  ///< that this rank sent, per call
  double cosine = 0;        ///< of the angle between the first mean and the exact one
};

/// All ranks wait for each other, and get the largest.
inline double largest(onebit::communicator& comm, double mine = 0) {
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), sizeof mine);
  return *std::max_element(all.begin(), all.end());
}

/// Collective. Throws where a contender does not do what its name says.
inline measurement measure(const onebit::communicator& world, const contender& c, std::size_t n,
                           int repetitions) {
  const auto own_counts = [&] { return world.split(0, world.rank()); };
  onebit::communicator sync = own_counts();
  const onebit::communicator comm = own_counts();
  rank_memory memory(backend_of(comm), n, static_cast<std::uint64_t>(world.rank()) + 1);
  const exchange baseline = bare().make(own_counts(), n);
  const exchange own = c.make(comm, n);
  const auto time = [&](const exchange& x) {
    memory.refill();
    largest(sync);
    const double mine = time_of([&] {
      x.average(memory.grads());
      sync.wait();
      memory.wait();
    });
    const double slowest = largest(sync, mine);
    if (x.fetch) x.fetch(memory.grads());
    return slowest;
  };
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(c.name() + " of " + std::to_string(n) + " elements: " + what +
                             world.where());
  };

  measurement m;
  time(baseline);
  {
    const std::vector<float> exact = memory.on_host();
    time(own);
    const std::vector<float> mean = memory.on_host();
    double product = 0, squares = 0, exact_squares = 0;
    onebit::detail::digest bits;
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(mean[i]), y = static_cast<double>(exact[i]);
      product += x * y;
      squares += x * x;
      exact_squares += y * y;
      bits.add(mean[i]);
    }
    m.cosine = product / std::sqrt(squares * exact_squares);
    // of a mean 1; what is exact is a sum, as that of bare_allreduce, which does not divide
    const double part =
        product / exact_squares * (c.collective == bare().collective ? 1 : world.size());
    const bool is_mean =
        m.cosine > 0.1 && part > 0.01 && part < 10;  // top_k sends little; NaN is none
    if (largest(sync, is_mean ? 0 : 1) > 0) fail("what it gives is no mean of the gradients");
    const std::uint64_t own_bits = bits.value();
    std::vector<std::uint64_t> all_bits(static_cast<std::size_t>(sync.size()));
    sync.host_all_gather(&own_bits, all_bits.data(), sizeof own_bits);
    for (const std::uint64_t of_rank : all_bits) {
      if (of_rank != all_bits[0]) fail("ranks have different means");
    }
  }
  time(baseline);
  time(own);

  const onebit::traffic before = comm.sent();
  for (int i = 0; i < repetitions; ++i) {  // they take turns in being first
    double bare = i % 2 == 0 ? time(baseline) : 0;
    m.seconds.push_back(time(own));
    if (i % 2 != 0) bare = time(baseline);
    m.ratios.push_back(bare / m.seconds.back());
  }
  const onebit::traffic sent = comm.sent() - before;
  const auto calls = static_cast<std::uint64_t>(repetitions);
  m.bytes = sent.bytes_sent / calls;
  if (c.sends) {
    const auto e = c.sends(static_cast<std::uint64_t>(world.size()), n);
    if (sent.bytes_sent != calls * e.bytes || sent.collectives != calls * e.collectives) {
      fail(std::to_string(calls) + " calls sent " + std::to_string(sent.bytes_sent) + " bytes in " +
           std::to_string(sent.collectives) + " collectives; each has " + std::to_string(e.bytes) +
           " in " + std::to_string(e.collectives));
    }
  }
  return m;
}

// -- the program

struct options {
  std::string transport = "threads";
  std::vector<int> ranks{4};
  std::vector<std::string> compressors, collectives;
  std::vector<std::size_t> sizes{std::size_t{1} << 20U};
  int repetitions = 0;
  int ranks_per_node = 0;
  double link = 0;  ///< bytes per second

  void declare(CLI::App& app) {
    std::set<std::string> transports{"threads"};
#ifdef ONEBIT_BENCH_MPI
    transports.insert("mpi");  // under mpirun
#endif
#ifdef __CUDACC__
    transports.insert("nccl");
#endif
    app.add_option("--transport", transport, "between ranks")
        ->check(CLI::IsMember(transports))
        ->capture_default_str();
    list(app, "--ranks", ranks, "threads; devices, all unless told; mpirun has its own")
        ->check(CLI::Range(2, 1024));
    list(app, "--collective", collectives, "names; all unless told");
    list(app, "--compressor", compressors, "names; all unless told");
    list(app, "--size", sizes, "elements")->check(CLI::PositiveNumber);
    app.add_option("--repetitions", repetitions, "of each; 0: 11 to 51, fewer of large sizes")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--ranks-per-node", ranks_per_node,
                   "of hierarchical; 0: 2, or 1 where that is all or odd")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--link", link, "each rank's network: 1gbit, 100mbit, or bytes per second")
        ->transform(CLI::AsNumberWithUnit(
            std::map<std::string, double>{{"kbit", 125}, {"mbit", 125e3}, {"gbit", 125e6}},
            CLI::AsNumberWithUnit::DEFAULT));
  }
  [[nodiscard]] int repetitions_of(std::size_t n) const {
    if (repetitions != 0) return repetitions;
    return static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 26U) / n, 11, 51));
  }

 private:
  template <class T>
  static CLI::Option* list(CLI::App& app, const char* name, T& to, const char* what) {
    return app.add_option(name, to, what)->delimiter(',')->capture_default_str();
  }
};

/// Those that were named, and the floor before them. Throws where a name is unknown.
inline std::vector<contender> wanted(const std::vector<contender>& all, const options& o) {
  const auto check = [&](const std::vector<std::string>& names, std::string contender::*of) {
    for (const std::string& name : names) {
      std::set<std::string> known;
      for (const contender& c : all) known.insert(c.*of);
      if (known.contains(name)) continue;
      std::string list;
      for (const std::string& one : known) list += " " + one;
      throw std::runtime_error("there is no " + name + " among" + list);
    }
  };
  check(o.collectives, &contender::collective);
  check(o.compressors, &contender::compressor);
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<contender> those;
  std::copy_if(all.begin(), all.end(), std::back_inserter(those), [&](const contender& c) {
    return has(o.collectives, c.collective) &&
           (c.compressor.empty() || has(o.compressors, c.compressor));
  });
  if (those.empty()) throw std::runtime_error("nothing has both names");
  std::erase_if(those, [](const contender& c) { return c.name() == "bare_allreduce"; });
  those.insert(those.begin(), bare());
  return those;
}

/// Runs f on all ranks that live in this process.
using job = std::function<void(const std::function<void(const onebit::communicator&)>& f)>;

/// A line for each contender. On ranks of MPI but the first: nothing.
class table : public benchmark::BenchmarkReporter {
 public:
  table(bool silent, bool has_link) : silent_(silent), has_link_(has_link) {}
  bool ReportContext(const Context& context) override {
    if (!silent_) PrintBasicContext(&GetErrorStream(), context);
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (silent_ || run.run_type != Run::RT_Iteration) continue;
      const std::string& whole = run.run_name.function_name;
      const auto slash = whole.find('/');
      if (const std::string rest = whole.substr(slash + 1); rest != setting_) {
        setting_ = rest;
        std::printf("\n%-29s %9s %10s %9s %9s %9s %9s %8s %6s..%-6s%s\n", rest.c_str(), "bytes",
                    "us: least", "10%", "median", "90%", "most", "x bare", "10%", "90%",
                    has_link_ ? "  link" : "");
      }
      const auto of = [&](const char* name) { return run.counters.at(name).value; };
      std::printf("%-29s %9.0f %10.1f %9.1f %9.1f %9.1f %9.1f %8.2f %6.2f..%-6.2f",
                  whole.substr(0, slash).c_str(), of("bytes_sent"), of("us_least"), of("us_10"),
                  of("us_median"), of("us_90"), of("us_most"), of("speed_up"), of("speed_up_10"),
                  of("speed_up_90"));
      if (has_link_) std::printf(" %4.0f%%", 100 * of("link_share"));
      std::printf("  %s\n", run.report_label.c_str());
      std::fflush(stdout);
    }
  }

 private:
  bool silent_, has_link_;
  std::string setting_;
};

class comparison {
 public:
  comparison(options o, std::vector<contender> all)
      : options_(std::move(o)), contenders_(std::move(all)) {}

  void add(int ranks, const job& on_all) {
    for (const std::size_t n : options_.sizes) {
      auto floor = std::make_shared<std::vector<double>>();
      for (const contender& c : contenders_) {
        const std::string name = c.name() + "/" + options_.transport +
                                 "/ranks:" + std::to_string(ranks) + "/n:" + std::to_string(n);
        const int repetitions = options_.repetitions_of(n);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [this, floor, &c, n, repetitions, on_all](benchmark::State& state) {
              const auto run = [&](const contender& which) {
                measurement first;  // rank 0's, or this process's
                on_all([&](const onebit::communicator& world) {
                  measurement m = measure(world, which, n, repetitions);
                  if (world.rank() == 0 || options_.transport == "mpi") first = std::move(m);
                });
                return first;
              };
              const bool is_floor = &c == &contenders_.front();
              if (floor->empty() && !is_floor) *floor = run(contenders_.front()).ratios;
              const measurement m = run(c);
              if (is_floor) *floor = m.ratios;
              report(state, m, spread(*floor), is_floor);
            })
            ->UseManualTime()
            ->Iterations(repetitions)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }

 private:
  void report(benchmark::State& state, const measurement& m, const spread& floor,
              bool is_floor) const {
    std::size_t i = 0;
    for (auto _ : state) state.SetIterationTime(m.seconds[i++]);
    const auto put = [&](const std::string& name, const spread& s, double unit) {
      state.counters[name + "_least"] = s.least * unit;
      state.counters[name + "_10"] = s.low * unit;
      state.counters[name + "_90"] = s.high * unit;
      state.counters[name + "_most"] = s.most * unit;
    };
    const spread time(m.seconds), ratio(m.ratios);
    put("us", time, 1e6);
    put("speed_up", ratio, 1);
    state.counters["us_median"] = time.median * 1e6;
    state.counters["speed_up"] = ratio.median;
    state.counters["bytes_sent"] = static_cast<double>(m.bytes);
    state.counters["cosine"] = m.cosine;
    if (options_.link > 0) {
      state.counters["link_share"] = static_cast<double>(m.bytes) / time.median / options_.link;
    }
    if (is_floor) {
      state.SetLabel("the noise floor");
    } else if (floor.low <= ratio.median_to && ratio.median_from <= floor.high) {
      state.SetLabel("inside the noise");
    }
  }

  options options_;
  std::vector<contender> contenders_;
};

#ifndef __CUDACC__
/// Runs f(communicator) on all ranks.
template <class F>
void run_ranks(const std::string&, int ranks, const F& f) {
  onebit::run_threads(
      ranks, [&](onebit::threads t) { f(onebit::communicator(t)); }, std::chrono::minutes(2));
}
#endif

/// Google Benchmark runs and reports; `arguments` are its own.
inline int run_registered(std::vector<std::string> arguments, bool silent, bool has_link) {
  const auto is = [](const char* prefix) {
    return [prefix](const std::string& a) { return a.starts_with(prefix); };
  };
  if (silent) std::erase_if(arguments, is("--benchmark_out="));
  const bool table_wanted =
      silent || std::none_of(arguments.begin(), arguments.end(), is("--benchmark_format="));
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&argc, argv.data());
  if (benchmark::ReportUnrecognizedArguments(argc, argv.data())) return 1;
  table own(silent, has_link);
  benchmark::RunSpecifiedBenchmarks(table_wanted ? &own : nullptr);
  benchmark::Shutdown();
  return 0;
}

/// The main function of a benchmark of these contenders.
inline int compare(int argc, char** argv,
                   const std::function<std::vector<contender>(const options&)>& all) {
  CLI::App app{"Compares ways to average gradients. --benchmark_...: Google Benchmark's."};
  options o;
  o.declare(app);
  app.allow_extras();
  CLI11_PARSE(app, argc, argv);
  std::vector<std::string> rest = app.remaining();
  rest.insert(rest.begin(), argv[0]);
  const auto failed = [](const std::exception& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return 1;
  };
#ifdef ONEBIT_BENCH_MPI
  if (o.transport == "mpi") {
    MPI_Init(nullptr, nullptr);
    int result = 1;
    try {
      // with a deadline it would sum by MPI_Iallreduce, which is slower
      const onebit::mpi world(MPI_COMM_WORLD, std::chrono::milliseconds(0));
      if (app.count("--ranks") > 0 && o.ranks != std::vector{world.size()}) {
        throw std::runtime_error("--ranks is for threads; mpirun has started " +
                                 std::to_string(world.size()));
      }
      comparison all_ranks(o, wanted(all(o), o));
      all_ranks.add(world.size(), [&](const auto& f) { f(onebit::communicator(world)); });
      result = run_registered(rest, world.rank() != 0, o.link > 0);
    } catch (const std::exception& e) {
      failed(e);
    }
    if (result != 0) {
      MPI_Abort(MPI_COMM_WORLD, result);
      std::_Exit(result);  // MPICH 4.1.3 to 5.0.2 may return from MPI_Abort
    }
    MPI_Finalize();
    return result;
  }
#endif
  try {
    comparison of_threads(o, wanted(all(o), o));
#ifdef __CUDACC__
    if (!has_device()) return 77;
    if (o.transport == "nccl" && !find_devices(o.ranks, app.count("--ranks") > 0)) return 77;
#endif
    for (const int ranks : o.ranks) {
      of_threads.add(ranks, [&o, ranks](const auto& f) { run_ranks(o.transport, ranks, f); });
    }
    return run_registered(rest, false, o.link > 0);
  } catch (const std::exception& e) {
    return failed(e);
  }
}
inline int compare(int argc, char** argv, const std::vector<contender>& all) {
  return compare(argc, argv, [&](const options&) { return all; });
}

}  // namespace onebit_bench

#endif
