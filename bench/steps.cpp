// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole steps of every algorithm, two ranks as threads with one core each.
//
// ns_per_parameter is the time of the slowest rank by its parameters: nanoseconds per parameter and
// rank; encode_ns, communicate_ns and update_ns are the parts of it that the report tells, mean
// over the ranks. axpy_ns is y = a x + y, per element, on both cores at the same time, from the
// same iterations. All are medians over the iterations. state_bytes is per parameter.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compositions.hpp"
#include "ranges.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using groups = std::vector<onebit::param_group<>>;

/// One rank's parameters and gradients: each tensor at a multiple of 64 bytes.
struct rank_model {
  onebit::detail::host_buffer<float> params, grads;
  const float* source;
  groups tensors;

  rank_model(const std::vector<std::size_t>& sizes, const float* random)
      : params(room(sizes)), grads(room(sizes)), source(random), tensors(1) {
    std::size_t at = 0;
    for (const std::size_t n : sizes) {
      tensors[0].tensors.push_back({{params.data() + at, n}, {grads.data() + at, n}});
      at += padded(n);
    }
    std::memcpy(params.data(), random, params.bytes());
    tensors[0].weight_decay = 0.01F;
    refill(0);
  }
  /// A compressed step leaves old compensated values where the gradients lay. Taking those as the
  /// next gradients would let the values grow without bound, so they are filled anew outside of
  /// what is timed.
  void refill(int rank) {
    std::memcpy(grads.data(), source + static_cast<std::size_t>(rank) * shift, grads.bytes());
  }
  [[nodiscard]] static std::size_t room(const std::vector<std::size_t>& sizes) {
    std::size_t n = 0;
    for (const std::size_t size : sizes) n += padded(size);
    return n;
  }
  static constexpr std::size_t shift = 1024;

 private:
  [[nodiscard]] static std::size_t padded(std::size_t n) { return (n + 15) / 16 * 16; }
};

std::vector<std::size_t> sizes_of(bool mixed) {
  const std::size_t n = step_parameters();
  return mixed ? mixed_tensors(n) : std::vector<std::size_t>{n};
}

void run(benchmark::State& state, const composition& what, bool mixed) {
  const std::vector<std::size_t> sizes = sizes_of(mixed);
  const auto n = static_cast<double>(step_parameters());
  const std::size_t room = rank_model::room(sizes);
  onebit::detail::host_buffer<float> random(room + step_ranks * rank_model::shift);
  fill_random(random.data(), random.size(), 1);

  rank_team team(step_ranks);
  std::vector<std::unique_ptr<rank_model>> models(step_ranks);
  std::vector<onebit::any_optimizer> optimizers(step_ranks);
  std::vector<onebit::report> reports(step_ranks);
  const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
  const auto step = [&] {
    team.time([&](int r) { models[at(r)]->refill(r); });
    return team.time([&](int r) { reports[at(r)] = optimizers[at(r)].step(1e-4F); });
  };
  team.time([&](int r) {
    models[at(r)] = std::make_unique<rank_model>(sizes, random.data());
    optimizers[at(r)] = what.make(models[at(r)]->tensors, onebit::communicator(team.transport(r)));
  });
  for (int i = 0; i < step_warm_up; ++i) step();

  std::vector<double> whole, encode, communicate, update, axpys;
  for (auto _ : state) {
    const double seconds = step();
    axpys.push_back(team.time([&](int r) {
      axpy(onebit::host(), models[at(r)]->grads.data(), models[at(r)]->params.data(), room);
    }));
    state.SetIterationTime(seconds);
    whole.push_back(seconds);
    double sums[3] = {};
    for (const onebit::report& r : reports) {
      if (r.skipped) throw std::runtime_error("bench: a step was skipped");
      sums[0] += r.encode_seconds / step_ranks;
      sums[1] += r.communicate_seconds / step_ranks;
      sums[2] += r.update_seconds / step_ranks;
    }
    encode.push_back(sums[0]);
    communicate.push_back(sums[1]);
    update.push_back(sums[2]);
  }
  const double ns = 1e9 / n;
  state.counters["ns_per_parameter"] = median(whole) * ns;
  state.counters["encode_ns"] = median(encode) * ns;
  state.counters["communicate_ns"] = median(communicate) * ns;
  state.counters["update_ns"] = median(update) * ns;
  state.counters["axpy_ns"] = median(axpys) * 1e9 / static_cast<double>(room);
  state.counters["bytes_sent"] = static_cast<double>(reports[0].bytes_sent);
  state.counters["state_bytes"] = static_cast<double>(optimizers[0].state_bytes()) / n;
  state.counters["state_budget"] = what.state_budget(step_ranks);
  state.SetLabel(std::string(to_string(reports[0].phase)) + ", " + std::to_string(sizes.size()) +
                 " tensors");
}

}  // namespace

int main(int argc, char** argv) {
  for (const composition& what : compositions()) {
    for (const bool mixed : {false, true}) {
      const std::string name = std::string(what.name) + (mixed ? "/mixed" : "/one_tensor") +
                               "/n:" + std::to_string(step_parameters());
      benchmark::RegisterBenchmark(name.c_str(), run, what, mixed)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
