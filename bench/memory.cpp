// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What one rank of eight needs in memory, counted from its allocations: parameters and gradients in
// floats, the optimizer's state, messages, and what a step needs to be undone. One process plays
// the rank; the others say what it says.
//
//   bench_memory            a table: bytes per parameter by phase, and how many fit into 24 GiB
//   bench_memory NAME GIB   trains so many as that says fit into GIB, and tells what it took

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <onebit/backend/host.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../tests/support/echo.hpp"
#include "compositions.hpp"
#include "support.hpp"

namespace {

std::atomic<std::size_t> active{0}, most{0};

/// Every allocation of this program begins with its size, in front of what is asked for.
void* counted(std::size_t n, std::size_t alignment) {
  const std::size_t head = std::max(alignment, alignof(std::max_align_t));
  auto* const all =
      static_cast<std::byte*>(std::aligned_alloc(head, head + (n + head - 1) / head * head));
  if (all == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(all) = n;
  const std::size_t now = active += n;
  for (std::size_t m = most; m < now && !most.compare_exchange_weak(m, now);) {
  }
  return all + head;
}
void release(void* p, std::size_t alignment) noexcept {
  if (p == nullptr) return;
  auto* const all = static_cast<std::byte*>(p) - std::max(alignment, alignof(std::max_align_t));
  active -= *reinterpret_cast<std::size_t*>(all);
  std::free(all);
}

}  // namespace

void* operator new(std::size_t n) { return counted(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { release(p, 1); }
void operator delete(void* p, std::size_t) noexcept { release(p, 1); }
void operator delete(void* p, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}

namespace {

using namespace onebit_bench;

constexpr int ranks = 8, warm_up = 2, steps = 5;
constexpr double gib = 1 << 30;

/// Bytes at once, in each phase: the largest of its steps.
struct held {
  double state = 0, warm = 0, first = 0, later = 0;
};

held train(const composition& what, std::size_t n) {
  const std::size_t before = active;
  held h;
  {
    onebit::detail::host_buffer<float> params(n), grads(n);
    fill_random(params.data(), n, 1);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({{params.data(), n}, {grads.data(), n}});
    auto optimizer =
        what.make(groups, onebit::communicator(onebit_test::echo<onebit::host_memory>({}, ranks)));
    for (int step = 0; step < steps; ++step) {
      fill_random(grads.data(), n, static_cast<std::uint64_t>(step) + 2);
      most = active.load();
      if (optimizer.step(1e-4F).skipped) throw std::runtime_error("a step was skipped");
      double& phase = step < warm_up ? h.warm : step == warm_up ? h.first : h.later;
      phase = std::max(phase, static_cast<double>(most - before));
    }
    h.state = static_cast<double>(optimizer.state_bytes());
  }
  return h;
}

/// Bytes per parameter, and what does not grow with them: buffers of buckets.
struct cost {
  double slope, constant;

  cost(double small, double large, std::size_t n)
      : slope((large - small) / static_cast<double>(n)), constant(2 * small - large) {}
  [[nodiscard]] double fit_into(double bytes) const { return (bytes - constant) / slope; }
};
struct costs {
  cost state, warm, first, later;

  [[nodiscard]] double fit_into(double bytes) const {
    return std::min({warm.fit_into(bytes), first.fit_into(bytes), later.fit_into(bytes)});
  }
};
costs measure(const composition& what) {
  const std::size_t n = std::size_t{1} << 25U;
  const held a = train(what, n), b = train(what, 2 * n);
  return {{a.state, b.state, n}, {a.warm, b.warm, n}, {a.first, b.first, n}, {a.later, b.later, n}};
}

void print_table() {
  std::printf(
      "Bytes per parameter at once, one rank of %d; parameters and gradients in floats (8)\n"
      "%-22s %7s %8s %12s %6s %11s %16s\n",
      ranks, "", "state", "warm-up", "first after", "later", "fixed, MiB", "fit into 24 GiB");
  for (const composition& what : compositions()) {
    const costs c = measure(what);
    std::printf("%-22s %7.2f %8.2f %12.2f %6.2f %11.0f %14.3f e9\n", what.name, c.state.slope,
                c.warm.slope, c.first.slope, c.later.slope,
                std::max({c.warm.constant, c.first.constant, c.later.constant}) / (1 << 20),
                c.fit_into(24 * gib) / 1e9);
    std::fflush(stdout);
  }
}

void fill(const std::string& name, double room) {
  for (const composition& what : compositions()) {
    if (what.name != name) continue;
    const auto n = static_cast<std::size_t>(measure(what).fit_into(room * gib));
    const held h = train(what, n);
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    std::printf("%s: %zu parameters; allocated at once %.3f GiB, resident at most %.3f GiB of %g\n",
                what.name, n, std::max({h.warm, h.first, h.later}) / gib,
                static_cast<double>(used.ru_maxrss) * 1024 / gib, room);
    return;
  }
  throw std::invalid_argument("no such composition: " + name);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    double room = 0;
    const std::string_view text = argc == 3 ? argv[2] : "1";
    const auto read = std::from_chars(text.data(), text.data() + text.size(), room);
    if ((argc != 1 && argc != 3) || read.ptr != text.data() + text.size() || !(room > 0)) {
      std::puts("usage: bench_memory [NAME GIB]");
      return 2;
    }
    if (argc == 1) {
      print_table();
    } else {
      fill(argv[1], room);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_memory: %s\n", e.what());
    return 1;
  }
}
