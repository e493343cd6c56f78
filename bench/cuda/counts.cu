// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// One step of each algorithm as one rank of several sees it, on a device that counts what its
// kernels execute: a CUDA device on the CPU. Writes the counts of each step, by kernel, as JSON;
// counts.sh builds it and runs it.
//
//   counts FILE [ELEMENTS]

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <onebit/backend/cuda.cuh>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "../../tests/support/echo.hpp"
#include "plain_adam.cuh"

extern "C" {
void ptxdev_reset_stats() __attribute__((weak));
void ptxdev_write_stats(const char* file) __attribute__((weak));
}

namespace {

using groups = std::vector<onebit::param_group<>>;
using transport = onebit_test::echo<onebit::cuda_memory>;
using json = nlohmann::ordered_json;

std::size_t n = 1'000'000;  // of the vector

struct scene {
  onebit::cuda backend;
  onebit::detail::cuda_buffer<float> params, grads;
  groups tensors;

  scene()
      : params(backend.make_buffer<float>(n)), grads(backend.make_buffer<float>(n)), tensors(1) {
    refill();
    backend.copy_in(params.data(), values.data(), n);
    tensors[0].tensors.push_back({{params.data(), n}, {grads.data(), n}});
    tensors[0].weight_decay = 0.01F;
  }
  /// Gradients of this step.
  void refill() {
    values.resize(n);
    for (float& v : values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      v = static_cast<float>(state >> 40U) / (1 << 23) - 1;
    }
    backend.copy_in(grads.data(), values.data(), n);
  }

 private:
  std::vector<float> values;
  std::uint64_t state = 1;
};

/// What a kernel is called in the tables, from its name with all types.
std::string short_name(const std::string& full) {
  const std::string end = "_kernel";
  const std::size_t at = full.find(end);
  if (at == std::string::npos) return full.substr(0, 60);
  std::size_t first = at;
  while (first > 0 &&
         ((full[first - 1] >= 'a' && full[first - 1] <= 'z') || full[first - 1] == '_'))
    --first;
  const auto has = [&](const char* text) { return full.find(text) != std::string::npos; };
  const std::string name = full.substr(first, at + end.size() - first);
  if (has("side_by_side") && has("server_residual")) return "server_residual_kernel, and ends";
  return name + (name == "encode_kernel" && has("server_feedback") ? ", served" : "");
}

/// The device's counts since the last reset, by kernel, in a fixed order: the dearest first.
json counted(const std::string& file) {
  ptxdev_write_stats(file.c_str());
  std::ifstream in(file);
  std::string line, cell;
  std::vector<std::string> columns;
  std::map<std::string, std::map<std::string, std::uint64_t>> kernels;
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    for (std::istringstream of(line); std::getline(of, cell, '\t');) cells.push_back(cell);
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    auto& sums = kernels[short_name(cells.at(0))];
    for (std::size_t i = 1; i < cells.size(); ++i) sums[columns.at(i)] += std::stoull(cells[i]);
  }
  std::filesystem::remove(file);
  json list = json::array();
  for (auto& [name, k] : kernels) {
    list.push_back({{"kernel", name},
                    {"launches", k["launches"]},
                    {"warps", k["warps"]},
                    {"warp_instructions", k["warp_ops"]},
                    {"thread_instructions", k["thread_ops"]},
                    {"bytes_read", 32 * k["load_dram_sectors"]},
                    {"bytes_written", 32 * k["store_dram_sectors"]},
                    {"loads", k["load_requests"]},
                    {"syncs", k["syncs"]}});
  }
  std::stable_sort(list.begin(), list.end(), [](const json& a, const json& b) {
    return a["warp_instructions"].get<std::uint64_t>() >
           b["warp_instructions"].get<std::uint64_t>();
  });
  return list;
}

class counter {
 public:
  explicit counter(std::string file) : file_(std::move(file)) {}

  /// Counts a step of what `make` makes, after `warm_up` steps of it.
  template <class Make>
  void step(const char* name, int ranks, int warm_up, const Make& make) {
    scene s;
    auto optimizer = make(s.tensors, transport(onebit::cuda_memory{}, ranks), s.backend);
    for (int i = 0; i <= warm_up; ++i) {
      s.refill();
      if (i == warm_up) ptxdev_reset_stats();
      (void)optimizer.step(1e-4F);
      s.backend.wait();
    }
    add(name, ranks);
    if (optimizer.settle() != onebit::outcome::kept) {
      throw std::runtime_error(std::string(name) + ": a step was skipped");
    }
  }
  /// Adam by hand, the optimizer's arithmetic of a rank on its own.
  void by_hand() {
    const onebit::cuda backend;
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 1000) / 1000 + 1;
    std::vector<onebit::detail::cuda_buffer<float>> x;
    for (int i = 0; i < 4; ++i) {
      x.push_back(backend.make_buffer<float>(n));
      backend.copy_in(x.back().data(), values.data(), n);
    }
    backend.wait();
    ptxdev_reset_stats();
    const auto four = [&](int i) { return reinterpret_cast<float4*>(x[std::size_t(i)].data()); };
    onebit_bench::plain_adam_kernel<<<(n / 4 + 255) / 256, 256, 0, backend.stream()>>>(
        four(0), four(1), four(2), four(3), n / 4, 1e-4F);
    backend.wait();
    add("adam by hand", 1);
  }
  void write(const std::string& command) const {
    json all = {{"command", command},
                {"nvcc", std::to_string(CUDART_VERSION / 1000) + "." +
                             std::to_string(CUDART_VERSION % 1000 / 10)},
                {"architecture", "sm_90"},
                {"elements", n},
                {"steps", steps_}};
    std::ofstream out(file_);
    out << all.dump(1) << "\n";
    out.close();
    if (!out) throw std::runtime_error("cannot write " + file_);
  }

 private:
  void add(const char* name, int ranks) {
    steps_.push_back({{"step", name}, {"ranks", ranks}, {"kernels", counted(file_ + ".tsv")}});
  }

  std::string file_;
  json steps_ = json::array();
};

void count_all(counter& to) {
  const onebit::gather_scatter<onebit::sign<>> exchange;
  const auto one_bit_adam = [&](const groups& g, auto t, auto b) {
    return onebit::one_bit_adam(
        g, t, onebit::one_bit_adam_options{.freeze = {.after = 3}, .refreshes = 1}, exchange,
        b);  // refreshes in steps 5 and 10
  };
  const auto one_bit_lamb = [&](const groups& g, auto t, auto b) {
    return onebit::one_bit_lamb(
        g, t, onebit::one_bit_lamb_options{.freeze = {.after = 3}, .refreshes = 1}, exchange, b);
  };
  const auto adam = [](const groups& g, auto t, auto b) { return onebit::adam(g, t, {}, b); };
  // an exchange in every step, or in every other one
  const auto zero_one_adam = [&](std::uint64_t interval) {
    return [&exchange, interval](const groups& g, auto t, auto b) {
      return onebit::zero_one_adam(
          g, t,
          onebit::zero_one_adam_options{.schedule = {.kappa = 1,
                                                     .warmup_steps = 2,
                                                     .doubling_steps = 1,
                                                     .max_interval = interval,
                                                     .stop_refreshing = true}},
          exchange, b);
    };
  };
  to.by_hand();
  to.step("one_bit_adam", 8, 6, one_bit_adam);
  to.step("one_bit_adam, refresh", 8, 10, one_bit_adam);  // the second one
  to.step("one_bit_lamb", 8, 6, one_bit_lamb);
  to.step("one_bit_lamb, refresh", 8, 10, one_bit_lamb);
  to.step("zero_one_adam", 8, 6, zero_one_adam(1));
  to.step("zero_one_adam, local", 8, 5, zero_one_adam(2));
  to.step("zero_one_adam, refresh", 8, 10, [&](const groups& g, auto t, auto b) {
    return onebit::zero_one_adam(
        g, t,
        onebit::zero_one_adam_options{.schedule = {.after = 3, .refreshes = 1, .warmup_steps = 11}},
        exchange, b);  // in steps 5 and 10, which exchange
  });
  to.step("adam", 8, 3, adam);
  to.step("adam, in 8 buckets", 8, 3, [](const groups& g, auto t, auto b) {
    return onebit::one_bit_adam(  // which is adam in its warm-up
        g, t, onebit::one_bit_adam_options{.freeze = {.after = 1000}},
        onebit::gather_scatter{onebit::sign<>{}, g[0].tensors[0].params.size() / 8}, b);
  });
  to.step("lamb", 8, 3, [](const groups& g, auto t, auto b) { return onebit::lamb(g, t, {}, b); });
}

}  // namespace

int main(int argc, char** argv) {
  const auto size = [](std::string_view text) {
    std::size_t number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
    return end == text.data() + text.size() ? number : 0;
  };
  if (argc == 3) n = size(argv[2]);
  if (argc < 2 || argc > 3 || *argv[1] == 0 || size(argv[1]) != 0 || n == 0 || n % 4 != 0) {
    std::puts("usage: counts FILE [ELEMENTS]; ELEMENTS is a positive multiple of 4, in digits");
    return 2;
  }
  if (ptxdev_reset_stats == nullptr) {
    std::puts("skipped: no device that counts");
    return 77;
  }
  try {
    counter to(argv[1]);
    count_all(to);
    to.write("bench/cuda/counts.sh" + (argc == 3 ? " FILE " + std::to_string(n) : ""));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "counts: %s\n", e.what());
    return 1;
  }
}
