// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What the benchmarks share: axpy in the library's own lanes, ranks as threads, medians, bytes on
// the wire.

#ifndef ONEBIT_BENCH_SUPPORT_HPP
#define ONEBIT_BENCH_SUPPORT_HPP

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <onebit/backend/host.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/transport/threads.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace onebit_bench {

using seconds = std::chrono::duration<double>;

/// Seconds that f takes.
template <class F>
double time_of(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return seconds(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What left this node's network cards so far, headers included.
inline std::uint64_t bytes_on_wire() {
  std::ifstream file("/proc/net/dev");
  std::string line;
  std::uint64_t sum = 0;
  while (std::getline(file, line)) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with(" lo")) {
      continue;
    }
    std::istringstream columns(line.substr(colon + 1));
    std::uint64_t value = 0;
    for (int i = 0; i < 9 && columns >> value; ++i) {  // the ninth: bytes sent
    }
    sum += value;
  }
  return sum;
}

/// Uniform in [-1, 1), cheap, and the same everywhere.
inline void fill_random(float* p, std::size_t n, std::uint64_t seed) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::size_t i = 0; i < n; ++i) {
    x ^= x << 13U;
    x ^= x >> 7U;
    x ^= x << 17U;
    p[i] = static_cast<float>(static_cast<std::int64_t>(x >> 40U) - (1 << 23)) / (1 << 23);
  }
}

/// y = a x + y by tiles, in the lanes of a backend: the yardstick. 12 bytes per element.
struct axpy_kernel {
  float a;
  const float* x;
  float* y;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t tile) const {
    const float* from = x + tile * onebit::tile_elements;
    float* to = y + tile * onebit::tile_elements;
    for (std::size_t k = 0; k < onebit::tile_elements; k += onebit::word_elements) {
      L::store(to + k, L::fma(L::set(a), L::load(from + k), L::load(to + k)));
    }
  }
};

inline constexpr double axpy_bytes = 12;

/// The elements of n that axpy works on: whole tiles.
inline std::size_t whole_tiles(std::size_t n) { return n / onebit::tile_elements; }

/// axpy with a = 0: the same work, and the values stay what they were. The compiler cannot know.
inline void axpy(const onebit::host& backend, const float* x, float* y, std::size_t n) {
  static volatile float zero = 0;
  backend.launch(whole_tiles(n), axpy_kernel{zero, x, y});
}

/// Ranks as threads that live as long as this object, so that nothing timed starts a thread.
class rank_team {
 public:
  explicit rank_team(int size)
      : hub_(std::make_shared<onebit::detail::thread_hub>(size, std::chrono::minutes(5))),
        times_(static_cast<std::size_t>(size)),
        barrier_(size + 1) {
    for (int rank = 0; rank < size; ++rank) {
      threads_.emplace_back([this, rank] { work(rank); });
    }
  }
  rank_team(const rank_team&) = delete;
  rank_team& operator=(const rank_team&) = delete;
  ~rank_team() {
    job_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& t : threads_) t.join();
  }

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()); }
  [[nodiscard]] onebit::threads transport(int rank) const { return {hub_, rank}; }
  /// The same for ranks whose buffers lie elsewhere.
  template <class M>
  [[nodiscard]] onebit::basic_threads<M> transport(int rank, const M& memory) const {
    return {hub_, rank, memory};
  }

  /// Runs f(rank) on all ranks at the same time; the seconds of the slowest.
  double time(const std::function<void(int)>& f) {
    job_ = &f;
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
    if (first_) std::rethrow_exception(first_);
    return *std::max_element(times_.begin(), times_.end());
  }

 private:
  void work(int rank) {
    for (;;) {
      barrier_.arrive_and_wait();
      if (job_ == nullptr) return;
      times_[static_cast<std::size_t>(rank)] = time_of([&] { attempt(rank); });
      barrier_.arrive_and_wait();
    }
  }
  void attempt(int rank) {
    try {
      (*job_)(rank);
    } catch (const std::exception& e) {
      {
        const std::lock_guard lock(mutex_);
        if (!first_) first_ = std::current_exception();
      }
      hub_->abort(e.what());
    }
  }

  std::shared_ptr<onebit::detail::thread_hub> hub_;
  std::vector<double> times_;
  std::barrier<> barrier_;
  const std::function<void(int)>* job_ = nullptr;
  std::mutex mutex_;
  std::exception_ptr first_;
  std::vector<std::thread> threads_;
};

}  // namespace onebit_bench

#endif
