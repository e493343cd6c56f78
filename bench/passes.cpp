// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The two fused passes of a compressed step beside axpy (y = a x + y) and memcpy.
//
// share_of_axpy is the pass's bandwidth over axpy's. Every iteration times axpy and the pass one
// after the other over the same memory; the share is the median over the iterations, so that what
// other programs take of the machine hits both alike. Bytes that a pass has to move per element:
//
//   encode  12.375  carried values and gradients in (4 each), v and this rank's squares in (2
//                   each), agreed signs in, live mask in, message out (1/8 each)
//   update  26.375  carried values and parameters read and written (8 each), squares read and
//                   written, gradients in (4 each), v in (2), two agreements' signs and live mask
//                   in (1/8 each)
//   axpy    12      memcpy 8
//
// Both are of 1-bit Adam as it is by default: directions are sent, and the update makes the message
// once more, which the encode pass has not stored, and keeps squares of gradients.
//
// axpy runs in the pass's own lanes.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <onebit/backend/host.hpp>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/rule/adam.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ranges.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using onebit::host;
using onebit::detail::host_buffer;
using codec = onebit::sign<>;
using view = onebit::gathered_view<codec>;
using sender = onebit::sender<codec, host>;

constexpr float agreed_scale = 0.5F;

host_buffer<float> random_buffer(std::size_t n, std::uint64_t seed) {
  host_buffer<float> b(n);
  fill_random(b.data(), n, seed);
  return b;
}

/// One tensor of n elements, its gradients, and what was agreed in the last exchange.
struct scene {
  host backend;
  std::size_t n;
  host_buffer<float> params, grads;
  onebit::detail::tensor_entry<float, float> tensor;
  host_buffer<onebit::bf16> variances, squares;  ///< the rank's own v
  float rho = 1;
  onebit::step_scalars now{.given = {.lr = 1e-7F}};
  onebit::detail::tensor_scalars numbers{.c = onebit::detail::make_moments({0.9, 0.999, 1e-8})};
  sender own;
  host_buffer<std::uint32_t> active;
  host_buffer<std::byte> agreed, slots;

  scene(int threads, onebit::isa set, std::size_t elements)
      : backend(threads, set),
        n(elements),
        params(random_buffer(n, 1)),
        grads(random_buffer(n, 2)),
        tensor{params.data(), grads.data(), 1.0F, 0.01F},
        variances(n),
        squares(n),
        own(codec{}, backend, std::span(&n, 1), pass_chunks),
        active(own.axis().n_words()),
        agreed(own.format().slot_bytes * pass_chunks),
        slots(agreed.size()) {
    const onebit::detail::slot_format& f = own.format();
    std::uint32_t x = 1;
    for (std::size_t i = 0; i + 4 <= agreed.size(); i += 4) {
      x = x * 1664525U + 1013904223U;
      std::memcpy(agreed.data() + i, &x, 4);
    }
    for (std::size_t j = 0; j < pass_chunks; ++j) {
      for (std::size_t at = f.scales_at; at < f.status_at; at += sizeof(float)) {
        std::memcpy(agreed.data() + j * f.slot_bytes + at, &agreed_scale, sizeof(float));
      }
    }
    for (std::size_t i = 0; i < active.size(); ++i) active.data()[i] = ~0U;
    own.count_active({active.data()});
    // scaled so that the residual's scale is 1: with it fixed, the compensated values stay within 2
    host_buffer<float> carried = random_buffer(n, 3);
    for (std::size_t i = 0; i < n; ++i) {
      carried.data()[i] *= 1.7F;
      variances.data()[i] = onebit::to_bf16(std::fabs(grads.data()[i]) + 1);
      squares.data()[i] = onebit::to_bf16(0.01F);
    }
    own.start_from(std::move(carried));
  }
  [[nodiscard]] onebit::momentum_message<view, float, float> message() const {
    return {latest(), &tensor, &numbers, &now, units()};
  }
  [[nodiscard]] onebit::detail::direction_units units() const {
    return {variances.data(), squares.data(), &rho};
  }
  [[nodiscard]] view latest() const {
    return {codec{}, own.format(), agreed.data(), {active.data()}};
  }
  [[nodiscard]] onebit::exchange_args<onebit::detail::store_at_update> args() {
    return {&now, {active.data()}, {}, {2}};
  }
};

/// The sender's encode pass in the steady state.
class encode_pass {
 public:
  static constexpr double bytes = 12.375;

  encode_pass(int threads, onebit::isa set, std::size_t n) : s_(threads, set, n) {
    run();
    s_.own.finish(s_.args());
  }
  void run() { s_.own.encode(s_.message(), s_.args(), s_.slots.data(), 0); }
  void run_axpy(const host& backend) {
    axpy(backend, s_.own.compensated().values, s_.grads.data(), s_.n);
  }

 private:
  scene s_;
};

/// The update from a newly agreed direction, tile by tile after the message.
class update_pass {
 public:
  static constexpr double bytes = 26.375;

  update_pass(int threads, onebit::isa set, std::size_t n) : s_(threads, set, n) {
    s_.own.encode(s_.message(), s_.args(), s_.slots.data(), 0);
    s_.own.finish(s_.args());
  }
  void run() {
    const auto at = s_.own.at(&s_.tensor, &s_.numbers, &s_.now, {});
    s_.own.store_and_update(s_.message(), s_.args(),
                            onebit::detail::adam_update_kernel<view, float, float>{
                                s_.latest(),
                                at,
                                nullptr,
                                true,
                                s_.units(),
                                nullptr,
                                {at.second_sums(), at.third_sums()}});
  }
  void run_axpy(const host& backend) {
    axpy(backend, s_.own.compensated().values, s_.params.data(), s_.n);
  }

 private:
  scene s_;
};

template <class Pass>
void run_pass(benchmark::State& state, int threads, onebit::isa set, std::size_t n) {
  Pass pass(threads, set, n);
  const host own(threads, set);
  const auto elements = static_cast<double>(n);
  pass.run_axpy(own);
  pass.run();
  std::vector<double> shares, axpys;
  for (auto _ : state) {
    const double axpy_seconds = time_of([&] { pass.run_axpy(own); });
    const double pass_seconds = time_of([&] { pass.run(); });
    state.SetIterationTime(pass_seconds);
    shares.push_back(Pass::bytes / axpy_bytes / pass_seconds * axpy_seconds);
    axpys.push_back(axpy_bytes * elements / axpy_seconds);
  }
  state.SetBytesProcessed(
      static_cast<std::int64_t>(static_cast<double>(state.iterations()) * Pass::bytes * elements));
  state.counters["share_of_axpy"] = median(shares);
  state.counters["axpy_bytes_per_second"] = median(axpys);
}

void run_axpy(benchmark::State& state, int threads, onebit::isa set, std::size_t n) {
  const host backend(threads, set);
  const host_buffer<float> x = random_buffer(n, 1);
  host_buffer<float> y = random_buffer(n, 2);
  for (auto _ : state) {
    state.SetIterationTime(time_of([&] { axpy(backend, x.data(), y.data(), n); }));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(axpy_bytes) *
                          static_cast<std::int64_t>(n));
}

/// Every thread copies its share.
struct memcpy_kernel {
  const float* from;
  float* to;
  std::size_t n;
  std::size_t parts;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t first = n * i / parts;
    std::memcpy(to + first, from + first, (n * (i + 1) / parts - first) * sizeof(float));
  }
};

void run_memcpy(benchmark::State& state, int threads, std::size_t n) {
  const host backend(threads, onebit::isa::scalar);
  const host_buffer<float> x = random_buffer(n, 1);
  host_buffer<float> y = random_buffer(n, 2);
  const auto parts = static_cast<std::size_t>(threads);
  for (auto _ : state) {
    state.SetIterationTime(time_of([&] {
      backend.launch(parts, memcpy_kernel{x.data(), y.data(), n, parts});
    }));
  }
  state.SetBytesProcessed(state.iterations() * 8 * static_cast<std::int64_t>(n));
}

template <class F>
void add(const std::string& what, onebit::isa set, int threads, std::size_t n, F f) {
  const std::string name = what + '/' + std::string(to_string(set)) +
                           "/threads:" + std::to_string(threads) + "/n:" + std::to_string(n);
  benchmark::RegisterBenchmark(name.c_str(), f, threads, set, n)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<onebit::isa> sets{onebit::isa::scalar};
  if (host::best_isa() != onebit::isa::scalar) sets.push_back(host::best_isa());
  for (const int threads : pass_threads) {
    for (const std::size_t n : pass_sizes()) {
      const std::string name =
          "memcpy/threads:" + std::to_string(threads) + "/n:" + std::to_string(n);
      benchmark::RegisterBenchmark(name.c_str(), run_memcpy, threads, n)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
      for (const onebit::isa set : sets) {
        add("axpy", set, threads, n, run_axpy);
        add("encode", set, threads, n, run_pass<encode_pass>);
        add("update", set, threads, n, run_pass<update_pass>);
      }
    }
  }
  benchmark::AddCustomContext("best_isa", std::string(to_string(host::best_isa())));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
