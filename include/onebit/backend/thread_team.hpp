// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <onebit/vocabulary.hpp>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace onebit::inline v0_1::detail {

/// Fork and join over an index range: the caller works on its own share, n - 1 threads on the
/// others. No allocation per call. Which thread runs which index has no influence on any result.
class thread_team {
 public:
  using task = void (*)(const void* context, std::size_t begin, std::size_t end);
  /// Fewer calls than this are not worth waking a thread for.
  static constexpr std::size_t smallest = 8;

  [[gnu::cold]] explicit thread_team(int n_threads) {
    try {
      for (int i = 1; i < n_threads; ++i) {
        threads_.emplace_back([this, i] { work(static_cast<std::size_t>(i)); });
      }
    } catch (...) {  // no more threads
      stop();
      throw;
    }
  }
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;
  ~thread_team() { stop(); }

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// All of it on this thread.
  static void run_here(std::size_t n, task f, const void* context) {
    const standard_arithmetic arithmetic;
    f(context, 0, n);
  }
  void run(std::size_t n, task f, const void* context) {
    if (threads_.empty() || n < smallest) {
      run_here(n, f, context);
      return;
    }
    const std::lock_guard one_caller(callers_);
    {
      const std::lock_guard lock(mutex_);
      n_ = n;
      task_ = f;
      context_ = context;
      running_ = threads_.size();
      ++round_;
    }
    start_.notify_all();
    share(0, n, f, context);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  [[gnu::cold]] void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  /// A share that throws (a user's codec may) ends early; the others go on, since they use the same
  /// kernel, and the first exception is told when all have ended.
  void share(std::size_t part, std::size_t n, task f, const void* context) {
    const std::size_t parts = threads_.size() + 1;
    const standard_arithmetic arithmetic;
    try {
      f(context, n * part / parts, n * (part + 1) / parts);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
  void work(std::size_t part) {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      const auto [n, f, context] = std::tuple(n_, task_, context_);
      lock.unlock();
      share(part, n, f, context);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex callers_;  ///< several ranks may share one team: they take turns
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::size_t round_ = 0, running_ = 0, n_ = 0;
  task task_ = nullptr;
  const void* context_ = nullptr;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace onebit::inline v0_1::detail
