// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole steps of every algorithm on one CUDA device.
//
//   plain    one rank of eight, kernels launched one by one; time by events, from the first to the
//            last. The other ranks' messages are copies of its own, on the device, in the time:
//            eight of a collective's slots, which for averages are 4 bytes per parameter
//   graphs   the same, replayed from CUDA graphs
//   ranks:2  two ranks on the device at the same time, whose transport waits for the device twice
//            in a collective; time of the slower rank by the host's clock, until its stream is done
//
// The steps are those that a run consists of: Adam and LAMB average gradients, the others send
// compressed messages. A benchmark whose last step was of another kind fails.
//
// Gradients are filled anew before each step, outside of what is timed. ns_per_parameter is by
// rank; adam_ns is Adam written by hand as one kernel on as many elements (with two ranks: one
// after the other), from the same iterations. All are medians.

#include <memory>
#include <onebit/onebit.hpp>
#include <stdexcept>

#include "../../tests/support/echo.hpp"
#include "support.cuh"

namespace {

using namespace onebit_bench;
using groups = std::vector<onebit::param_group<>>;

/// One rank of eight that only ever enqueues; the others say what it says, by copies on the device.
using one_of_eight = onebit_test::echo<onebit::cuda_memory>;
constexpr int n_played = 8;

std::vector<std::size_t> sizes_of(bool mixed, std::size_t n) {
  return mixed ? mixed_tensors(n) : std::vector<std::size_t>{n};
}

/// One rank's parameters and gradients, each tensor at a multiple of 64 bytes.
struct rank_model {
  stopwatch watch;
  onebit::cuda backend;
  onebit::detail::cuda_buffer<float> params, grads, source;
  groups tensors;

  rank_model(const std::vector<std::size_t>& sizes, int rank)
      : backend(watch.stream()),
        params(random_buffer(backend, room(sizes), 1)),
        grads(backend.make_buffer<float>(room(sizes))),
        source(random_buffer(backend, room(sizes), 10 + static_cast<std::uint64_t>(rank))),
        tensors(1) {
    std::size_t at = 0;
    for (const std::size_t n : sizes) {
      tensors[0].tensors.push_back({{params.data() + at, n}, {grads.data() + at, n}});
      at += padded(n);
    }
    tensors[0].weight_decay = 0.01F;
  }
  void refill() {
    check_cuda(cudaMemcpyAsync(grads.data(), source.data(), grads.bytes(), cudaMemcpyDeviceToDevice,
                               watch.stream()),
               "cudaMemcpyAsync");
  }

 private:
  static std::size_t padded(std::size_t n) { return (n + 15) / 16 * 16; }
  static std::size_t room(const std::vector<std::size_t>& sizes) {
    std::size_t n = 0;
    for (const std::size_t size : sizes) n += padded(size);
    return n;
  }
};

void tell(benchmark::State& state, std::size_t n, const std::vector<double>& steps,
          const std::vector<double>& adams) {
  const double ns = 1e9 / static_cast<double>(n);
  state.counters["ns_per_parameter"] = median(steps) * ns;
  state.counters["adam_ns"] = median(adams) * ns;
  state.counters["step_us"] = median(steps) * 1e6;
}

template <class Optimizer>
void expect_agreed(Optimizer& o) {
  if (o.settle() != onebit::outcome::kept) throw std::runtime_error("bench: a step was skipped");
}

/// The last step sent what its name says.
void expect_sent(const onebit::report& last, bool compressed) {
  if ((last.phase == onebit::phase::compressed) != compressed) {
    throw std::runtime_error(compressed ? "bench: the step averaged gradients"
                                        : "bench: the step was compressed");
  }
}

template <class Make>
void run_alone(benchmark::State& state, Make make, bool compressed, bool replay, bool mixed,
               std::size_t n) {
  where_it_fits(state, [&] {
    rank_model model(sizes_of(mixed, n), 0);
    plain_adam adam(model.backend, n);
    auto optimizer =
        make(model.tensors, one_of_eight(onebit::cuda_memory(model.watch.stream()), n_played),
             model.backend);
    onebit::cuda_graphs graphs(model.watch.stream());
    onebit::report last;
    const auto step = [&] {
      model.refill();
      model.backend.wait();
      return model.watch.time(
          [&] { last = replay ? optimizer.step_with(graphs, 1e-4F) : optimizer.step(1e-4F); });
    };
    for (int i = 0; i < step_warm_up + 4; ++i) (void)step();
    std::vector<double> steps, adams;
    for (auto _ : state) {
      steps.push_back(step());
      state.SetIterationTime(steps.back());
      adams.push_back(model.watch.time([&] { adam.run(); }));
    }
    expect_agreed(optimizer);
    expect_sent(last, compressed);
    tell(state, n, steps, adams);
  });
}

template <class Make>
void run_ranks(benchmark::State& state, Make make, bool compressed, bool mixed, std::size_t n) {
  constexpr int size = 2;
  using memory = onebit::cuda_memory;
  using optimizer = decltype(make(groups{}, std::declval<onebit::basic_threads<memory>>(),
                                  std::declval<onebit::cuda>()));
  where_it_fits(state, [&] {
    std::vector<std::unique_ptr<rank_model>> models;
    for (int r = 0; r < size; ++r) {
      models.push_back(std::make_unique<rank_model>(sizes_of(mixed, n), r));
      models.back()->backend.wait();
    }
    plain_adam adam(models[0]->backend, n);
    std::vector<std::unique_ptr<optimizer>> optimizers(size);
    rank_team team(size);
    const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
    team.time([&](int r) {
      rank_model& m = *models[at(r)];
      optimizers[at(r)] = std::make_unique<optimizer>(
          make(m.tensors, team.transport(r, memory(m.watch.stream())), m.backend));
    });
    std::vector<onebit::report> last(size);
    const auto step = [&] {
      team.time([&](int r) {
        models[at(r)]->refill();
        models[at(r)]->backend.wait();
      });
      return team.time([&](int r) {
        last[at(r)] = optimizers[at(r)]->step(1e-4F);
        models[at(r)]->backend.wait();
      });
    };
    for (int i = 0; i < step_warm_up + 4; ++i) (void)step();
    std::vector<double> steps, adams;
    for (auto _ : state) {
      steps.push_back(step());
      state.SetIterationTime(steps.back());
      adams.push_back(models[0]->watch.time([&] {
        for (int r = 0; r < size; ++r) adam.run();
      }));
    }
    for (auto& o : optimizers) expect_agreed(*o);
    expect_sent(last[0], compressed);
    expect_same({&models[0]->params, &models[1]->params});
    tell(state, n, steps, adams);
  });
}

template <class Make>
void add(const std::string& what, bool compressed, Make make) {
  struct shape {
    unsigned log2_size;
    bool mixed;
  };
  const std::vector<shape> shapes =
      tiny() ? std::vector<shape>{{14, false}, {17, true}}
             : std::vector<shape>{{20, false}, {24, false}, {24, true}, {27, false}};
  for (const shape s : shapes) {
    if (quick() && s.log2_size > 24) continue;
    const std::size_t n = std::size_t{1} << s.log2_size;
    const auto name = [&](const char* how) {
      return "cuda/step/" + what + (s.mixed ? "/mixed/" : "/one_tensor/") + how +
             "/n:" + std::to_string(n);
    };
    const auto measured = [](auto* b) { b->UseManualTime()->Unit(benchmark::kMicrosecond); };
    measured(benchmark::RegisterBenchmark(name("plain").c_str(), run_alone<Make>, make, compressed,
                                          false, s.mixed, n));
    measured(benchmark::RegisterBenchmark(name("graphs").c_str(), run_alone<Make>, make, compressed,
                                          true, s.mixed, n));
    measured(benchmark::RegisterBenchmark(name("ranks:2").c_str(), run_ranks<Make>, make,
                                          compressed, s.mixed, n));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cuda_main(argc, argv, [] {
    const onebit::gather_scatter<onebit::sign<>> exchange;
    add("adam", false, [](const groups& g, auto t, auto b) { return onebit::adam(g, t, {}, b); });
    add("one_bit_adam", true, [exchange](const groups& g, auto t, auto b) {
      return onebit::one_bit_adam(
          g, t, onebit::one_bit_adam_options{.freeze = {.after = 2}, .refreshes = 1}, exchange, b);
    });
    add("lamb", false, [](const groups& g, auto t, auto b) { return onebit::lamb(g, t, {}, b); });
    add("one_bit_lamb", true, [exchange](const groups& g, auto t, auto b) {
      return onebit::one_bit_lamb(
          g, t, onebit::one_bit_lamb_options{.freeze = {.after = 2}, .refreshes = 1}, exchange, b);
    });
    // an exchange in every step: the dearest kind
    add("zero_one_adam", true, [exchange](const groups& g, auto t, auto b) {
      return onebit::zero_one_adam(
          g, t,
          onebit::zero_one_adam_options{.schedule = {.kappa = 1,
                                                     .warmup_steps = 2,
                                                     .max_interval = 1,
                                                     .stop_refreshing = true}},
          exchange, b);
    });
  });
}
