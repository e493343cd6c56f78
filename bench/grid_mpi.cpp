// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Does compression pay, cell by cell: whole steps of onebit's optimizers against 16-bit gradients
// in a ring that hides behind the backward pass, as torch's DistributedDataParallel does it, among
// MPI ranks behind slow links; and what the advisor says of the same. bench/grid.sh runs it.
//
//   bench_grid_mpi --rate=NAME [--sizes=18,20,22] [--compute=1,4,16,64] [--seconds=3]
//                  [--json=FILE]
//
// --rate      of the network, for the output
// --sizes     numbers of parameters, as powers of two
// --compute   forward and backward of a step, in ns per parameter: the batch
// --seconds   aim per cell, which sets the rounds: 4 at least, 30 at most
// --json      FILE gets an object per line
//
// Forward and backward are waits, as if a device computed: a third forward, then tensor by tensor
// from the last to the first. The baseline's network works while they last, at no cost to them, and
// its sum is of 16-bit integers, cheaper than that of bf16; its update is an Adam in one plain
// loop. Encoding costs the ranks time in which they do not compute, in buckets too. In a round each
// method makes a step; a time is that of the slowest rank in the best round, since what disturbs a
// machine only ever adds: so the advisor measures, too.

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../examples/advisor/cost_model.hpp"
#include "../examples/advisor/measure.hpp"
#include "mpi_program.hpp"
#include "support.hpp"

namespace {

namespace cost = advisor::cost;
using cost::algorithm;
using cost::exchange;
using clock = std::chrono::steady_clock;

constexpr std::size_t n_tensors = 32;
constexpr double backward_share = 2.0 / 3;
constexpr float lr = 1e-4F;

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}
void sleep(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
double largest(double mine) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

/// Parameters and gradients of one rank, for all methods.
struct model {
  std::vector<float> x, grad, source;
  std::vector<onebit::param_group<>> groups{1};

  explicit model(std::size_t n) : x(n, 0.5F), grad(n), source(n) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    onebit_bench::fill_random(source.data(), n, static_cast<std::uint64_t>(rank) + 1);
    const std::size_t part = n / n_tensors;
    for (std::size_t t = 0; t < n_tensors; ++t) {
      groups[0].tensors.push_back({{&x[t * part], part}, {&grad[t * part], part}});
    }
  }
  /// Before each step, outside of what is timed: steps consume gradients.
  void refill() { grad = source; }
};

/// One way to make a step; gives its seconds on this rank.
struct method {
  std::string name;
  std::function<double(double compute)> step;
};

/// Forward and backward, then the step.
template <class Optimizer>
double after_the_backward(Optimizer& optimizer, double compute, onebit::phase expected) {
  const auto start = clock::now();
  sleep(compute);
  const onebit::report done = optimizer.step(lr);
  const double seconds = seconds_since(start);
  if (done.skipped || done.phase != expected)
    throw std::runtime_error("not the step that was meant");
  return seconds;
}

/// The backward pass says what is final. Who encodes does not compute meanwhile: the waits are as
/// long as without it.
template <class Optimizer>
double with_the_backward(Optimizer& optimizer, double compute) {
  const auto start = clock::now();
  optimizer.begin(lr);
  double owed = compute * (1 - backward_share);
  const auto wait = [&](double at_least) {
    if (owed < at_least) return;
    const auto before = clock::now();
    sleep(owed);
    owed -= seconds_since(before);
  };
  for (std::size_t t = n_tensors; t-- > 0;) {
    owed += compute * backward_share / n_tensors;
    wait(2e-4);  // shorter ones would take longer than they are
    optimizer.ready(t);
  }
  wait(0);
  optimizer.step(lr);
  return seconds_since(start);
}

/// Buckets of whole tensors, at first of at most 1 MiB, each summed by a ring once the backward
/// pass has made it; then Adam.
class hidden_ring {
 public:
  hidden_ring(model& m, double bucket_bytes)
      : model_(&m),
        bucket_bytes_(bucket_bytes),
        comm_(m.x.size()),
        m_(m.x.size()),
        v_(m.x.size()) {}

  double step(double compute) {
    const auto start = clock::now();
    const std::size_t part = comm_.size() / n_tensors;
    double cap = std::min(1048576.0, bucket_bytes_);
    for (std::size_t from = n_tensors, to = n_tensors; from-- > 0;) {
      const std::size_t n = (to - from) * part;
      if (static_cast<double>(2 * n) < cap && from > 0) continue;
      const double made = static_cast<double>(n_tensors - from) / n_tensors;
      sleep(compute * (1 - backward_share * (1 - made)) - seconds_since(start));
      MPI_Allreduce(MPI_IN_PLACE, &comm_[from * part], static_cast<int>(n), MPI_SHORT, MPI_SUM,
                    MPI_COMM_WORLD);
      to = from;
      cap = bucket_bytes_;
    }
    update();
    return seconds_since(start);
  }

 private:
  void update() {
    float *x = model_->x.data(), *m = m_.data(), *v = v_.data();
    const float* g = model_->grad.data();
    for (std::size_t i = 0; i < m_.size(); ++i) {
      m[i] = 0.9F * m[i] + 0.1F * g[i];
      v[i] = 0.999F * v[i] + 0.001F * g[i] * g[i];
      x[i] -= lr * m[i] / (std::sqrt(v[i]) + 1e-8F);
    }
  }

  model* model_;
  double bucket_bytes_;
  std::vector<std::int16_t> comm_;
  std::vector<float> m_, v_;
};

/// What 1-bit Adam does after its dense steps: refreshes of v at steps that are further and further
/// apart, which the best of some rounds is not, or, by `refreshes`, in every step.
template <class C>
auto compressed_adam(model& m, const onebit::mpi& comm, C collective, std::uint64_t refreshes = 1) {
  onebit::one_bit_adam_options options;
  options.freeze.after = 2;
  options.refreshes = refreshes;
  options.warm_up_sum = onebit::dense_sum::in_bf16;
  auto optimizer =
      std::make_shared<decltype(onebit::one_bit_adam(m.groups, comm, options, collective))>(
          onebit::one_bit_adam(m.groups, comm, options, collective));
  optimizer->warn_with(nullptr);
  for (int i = 0; i < 4; ++i) {
    m.refill();
    optimizer->step(lr);
  }
  return optimizer;
}

/// Of the baseline, which is the quicker of two in each cell: torch's 25 MiB, in which a small
/// model hides little, and an eighth of the model.
std::array<double, 2> ring_buckets(double n) { return {25.0 * 1048576, 2 * n / 8}; }

/// All methods, the baseline first, by names that `runs` below takes apart.
std::vector<method> methods(model& m, const onebit::mpi& comm) {
  std::vector<method> all;
  using onebit::phase;
  const auto add = [&](const char* name, auto optimizer, phase expected = phase::compressed) {
    all.push_back({name, [=](double c) { return after_the_backward(*optimizer, c, expected); }});
  };
  for (const double bucket : ring_buckets(static_cast<double>(m.x.size()))) {
    const auto ring = std::make_shared<hidden_ring>(m, bucket);
    all.push_back({"ring " + std::to_string(bucket), [ring](double c) { return ring->step(c); }});
  }
  add("gather_scatter", compressed_adam(m, comm, onebit::gather_scatter<onebit::sign<>>{}));
  add("all_gather", compressed_adam(m, comm, onebit::all_gather<onebit::sign<>>{}));
  if (m.x.size() >= 2 * onebit::default_bucket_elements) {
    const auto o = compressed_adam(
        m, comm, onebit::gather_scatter{onebit::sign<>{}, onebit::default_bucket_elements});
    all.push_back({"in_buckets", [o](double c) { return with_the_backward(*o, c); }});
  }
  constexpr std::uint64_t in_every_step = std::uint64_t{1} << 40U;
  add("refresh", compressed_adam(m, comm, onebit::gather_scatter<onebit::sign<>>{}, in_every_step));
  const auto warm_up = [&] {
    return onebit::adam(m.groups, comm, {}, onebit::host{}, onebit::dense_sum::in_bf16);
  };
  add("dense", std::make_shared<decltype(warm_up())>(warm_up()), phase::dense);
  const auto local = [&] {  // exchanges at first, each twice as far from the last
    onebit::zero_one_adam_options o;
    o.schedule.warmup_steps = 1;
    o.schedule.doubling_steps = 1;
    o.schedule.max_interval = std::uint64_t{1} << 20U;
    o.schedule.stop_refreshing = true;
    return onebit::zero_one_adam(m.groups, comm, o);
  };
  const auto zero_one = std::make_shared<decltype(local())>(local());
  while (zero_one->steps() < 40) {
    m.refill();
    zero_one->step(lr);
  }
  add("local", zero_one, phase::local);
  return all;
}

// -- whole runs

/// A run of 152000 steps, the papers' of BERT-Large, by the library's defaults, and by the papers'
/// schedules: a warm-up of 23000 steps for 1-bit Adam.
cost::workload workload_of(double n, double compute, const advisor::measurement& m) {
  cost::workload w;
  w.parameters = n;
  w.dense_element_bytes = 2;
  w.allreduce_factor =
      m.allreduce_seconds /
      cost::exchange_seconds(m.network, exchange::ring, m.allreduce_parameters, sizeof(float));
  w.forward_backward_seconds = compute;
  w.backward_share = backward_share;
  w.dense_update_seconds = n * m.dense_update_ns * 1e-9;
  w.compression = m.compression;
  w.steps = 152000;
  w.one_bit_adam = advisor::one_bit_run(w.steps, advisor::squares_bits(n));
  w.zero_one_adam =
      advisor::zero_one_run({}, w.steps, advisor::constant_rate, advisor::squares_bits(n));
  w.papers_one_bit = advisor::step_counts::freeze_after(23000, w.steps);
  return w;
}

struct run {
  algorithm by;
  exchange with;
  const char* step;  ///< the method that makes its compressed steps
};
const run runs[] = {{algorithm::one_bit_adam, exchange::gather_scatter, "gather_scatter"},
                    {algorithm::one_bit_adam, exchange::all_gather, "all_gather"},
                    {algorithm::one_bit_adam, exchange::in_buckets, "in_buckets"},
                    {algorithm::zero_one_adam, exchange::gather_scatter, "gather_scatter"},
                    {algorithm::papers_one_bit, exchange::gather_scatter, "gather_scatter"}};

// -- measuring

struct options {
  std::string rate = "?", json;
  std::vector<double> sizes{18, 20, 22}, compute{1, 4, 16, 64};
  double seconds = 3;
};

class grid {
 public:
  explicit grid(options o) : options_(std::move(o)), comm_(MPI_COMM_WORLD) {
    if (comm_.rank() == 0 && !options_.json.empty()) json_.open(options_.json);
    json_.precision(9);
  }

  void run_all() {
    for (const double exponent : options_.sizes) {
      const double n = std::exp2(exponent);
      measured_ = advisor::measure(n);
      say("%s: %.3g Gbit/s, %.3g us; passes, ns: encode %.3g, serve %.3g, update %.3g, dense "
          "%.3g; MPI_Allreduce %.3g ms\n",
          options_.rate.c_str(), measured_.network.between.bytes_per_second * 8e-9,
          measured_.network.between.latency_seconds * 1e6, measured_.compression.encode_ns,
          measured_.compression.serve_ns, measured_.compression.update_ns,
          measured_.dense_update_ns, 1e3 * measured_.allreduce_seconds);
      model m(static_cast<std::size_t>(n));
      const auto all = methods(m, comm_);
      for (const double c : options_.compute) cell(m, all, c);
    }
  }

 private:
  using times = std::map<std::string, double>;

  void cell(model& m, const std::vector<method>& all, double compute_ns) {
    const auto n = static_cast<double>(m.x.size());
    const double compute = n * compute_ns * 1e-9;
    std::vector<times> rounds;
    int wanted = 1;
    for (int i = 0; i <= wanted; ++i) {  // the first tells how many; it does not count
      times now;
      double sum = 0;
      for (const method& how : all) {
        m.refill();
        MPI_Barrier(MPI_COMM_WORLD);
        sum += now[how.name] = largest(how.step(compute));
      }
      if (i == 0) {
        wanted = std::clamp(static_cast<int>(options_.seconds / sum), 4, 30);
      } else {
        rounds.push_back(std::move(now));
      }
    }
    if (comm_.rank() == 0) report(n, compute_ns, rounds);
  }

  void report(double n, double compute_ns, const std::vector<times>& rounds) {
    cost::workload work = workload_of(n, n * compute_ns * 1e-9, measured_);
    const auto predict_ring = [&](double bucket) {
      work.dense_bucket_bytes = bucket;
      return cost::predict(measured_.network, work, algorithm::adam, exchange::ring);
    };
    const auto [large, small] = ring_buckets(n);
    const double in_large = predict_ring(large).step_seconds;
    const cost::prediction ring =
        predict_ring(in_large < predict_ring(small).step_seconds ? large : small);
    // all rounds, and two halves, which tell how much is chance
    const times best = least(rounds, 0, 1), halves[2] = {least(rounds, 0, 2), least(rounds, 1, 2)};
    const double ring_ms = 1e3 * best.at("ring"), dense_ms = 1e3 * best.at("dense");
    say("2^%.0f parameters, %g ns each: ring %.2f ms, predicted %.2f\n", std::log2(n), compute_ns,
        ring_ms, 1e3 * ring.step_seconds);
    for (const run& r : runs) {
      if (!best.contains(r.step)) continue;
      const auto counts = cost::steps_of(work, r.by);
      const auto gain = [&](const times& t) {  // of a run of such steps
        const double exchanges = static_cast<double>(counts.compressed + counts.both);
        const double added = t.at("refresh") - t.at("gather_scatter");
        return static_cast<double>(counts.steps()) * t.at("ring") /
               (static_cast<double>(counts.dense) * t.at("dense") + exchanges * t.at(r.step) +
                static_cast<double>(counts.refreshes) * added +
                static_cast<double>(counts.local) * t.at("local"));
      };
      const double ms = 1e3 * best.at(r.step), step_gain = ring_ms / ms, run_gain = gain(best);
      const auto [low, high] = std::minmax({gain(halves[0]), gain(halves[1])});
      const cost::prediction p = cost::predict(measured_.network, work, r.by, r.with);
      const double predicted_step = ring.step_seconds / p.step_seconds;
      say("  %-14s %-15s %9.2f ms (%9.2f)  step %6.2fx (%6.2fx)  run %6.2fx %6.2f..%-6.2f "
          "(%6.2fx)\n",
          cost::name_of(r.by), cost::name_of(r.with), ms, 1e3 * p.step_seconds, step_gain,
          predicted_step, run_gain, low, high, p.speed_up);
      json_ << "{\"rate\": \"" << options_.rate
            << "\", \"gbit\": " << measured_.network.between.bytes_per_second * 8e-9
            << ", \"ranks\": " << comm_.size() << ", \"n\": " << n
            << ", \"compute_ns\": " << compute_ns << ", \"algorithm\": \"" << cost::name_of(r.by)
            << "\", \"exchange\": \"" << cost::name_of(r.with)
            << "\", \"rounds\": " << rounds.size() << ", \"ms\": " << ms
            << ", \"predicted_ms\": " << 1e3 * p.step_seconds << ", \"ring_ms\": " << ring_ms
            << ", \"predicted_ring_ms\": " << 1e3 * ring.step_seconds
            << ", \"dense_ms\": " << dense_ms << ", \"local_ms\": " << 1e3 * best.at("local")
            << ", \"step_gain\": " << step_gain << ", \"predicted_step_gain\": " << predicted_step
            << ", \"run_gain\": " << run_gain << ", \"run_gain_least\": " << low
            << ", \"run_gain_most\": " << high << ", \"predicted_run_gain\": " << p.speed_up
            << "}\n";
    }
    json_.flush();
  }

  /// The shortest step of each method, of every so-manieth round.
  static times least(const std::vector<times>& rounds, std::size_t first, std::size_t stride) {
    times best = rounds[first];
    for (std::size_t i = first; i < rounds.size(); i += stride) {
      for (const auto& [name, seconds] : rounds[i]) best[name] = std::min(best[name], seconds);
    }
    for (const auto& [name, seconds] : times(best)) {
      if (!name.starts_with("ring ")) continue;
      best["ring"] = best.contains("ring") ? std::min(best["ring"], seconds) : seconds;
    }
    return best;
  }
  template <class... Args>
  void say(const char* format, const Args&... args) const {
    if (comm_.rank() != 0) return;
    std::printf(format, args...);
    std::fflush(stdout);
  }

  options options_;
  onebit::mpi comm_;
  advisor::measurement measured_;
  std::ofstream json_;
};

options parse(int argc, char** argv) {
  options o;
  onebit_bench::each_argument(argc, argv, [&](const std::string& name, const std::string& value) {
    if (name == "--rate") {
      o.rate = value;
    } else if (name == "--json") {
      o.json = value;
    } else if (name == "--seconds") {
      o.seconds = std::stod(value);
    } else if (name == "--sizes" || name == "--compute") {
      auto& list = name == "--sizes" ? o.sizes : o.compute;
      list.clear();
      for (const std::string& one : onebit_bench::split(value)) list.push_back(std::stod(one));
    } else {
      return false;
    }
    return true;
  });
  for (const double exponent : o.sizes) {
    if (exponent < 12 || exponent > 28) throw std::runtime_error("--sizes: from 12 to 28");
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  return onebit_bench::mpi_program("bench_grid_mpi", argc, argv,
                                   [](int n, char** all) { grid(parse(n, all)).run_all(); });
}
