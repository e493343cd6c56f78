// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// N ranks as threads of one process: for tests, for experiments, and for machines with few cores.
namespace onebit {

namespace detail {

/// Where the ranks of one process meet. Each collective publishes a pointer per rank, waits for
/// all, copies, and waits again. A rank that fails or never arrives turns the wait of all others
/// into an exception.
class thread_hub {
 public:
  struct call {
    const char* what = "";
    const void* send = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  thread_hub(int size, std::chrono::milliseconds timeout)
      : calls_(static_cast<std::size_t>(size)),
        timeout_(std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))) {}

  [[nodiscard]] int size() const { return static_cast<int>(calls_.size()); }
  [[nodiscard]] const call& of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  /// Waits until all ranks made the same call.
  void meet(int rank, const call& mine) {
    calls_[static_cast<std::size_t>(rank)] = mine;
    wait(rank, mine.what, timeout_);
    const call& first = calls_[0];
    for (int r = 1; r < size(); ++r) {
      if (std::strcmp(of(r).what, first.what) == 0 && of(r).bytes == first.bytes) continue;
      const std::string why =
          message("threads: rank 0 calls ", first.what, " of ", first.bytes, " bytes while rank ",
                  r, " calls ", of(r).what, " of ", of(r).bytes,
                  " bytes; every rank must take the same steps", rank_suffix(rank, size()));
      part(rank, mine.what);  // all ranks are here, and none may call again while others compare
      throw rank_mismatch(why);
    }
  }

  /// Waits until all ranks are done with each other's memory. All have met and only copy, so none
  /// can fail, and none may give up: the others still use its buffers.
  void part(int rank, const char* what) { wait(rank, what, std::chrono::hours(24 * 365)); }

  /// Makes every present and later wait throw. The first reason given is the one that is told.
  void abort(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (!aborted_) why_ = why;
      aborted_ = true;
    }
    changed_.notify_all();
  }

 private:
  void wait(int rank, const char* what, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!aborted_) {
      const std::size_t round = round_;
      if (++arrived_ == calls_.size()) {
        arrived_ = 0;
        ++round_;
        lock.unlock();
        changed_.notify_all();
        return;
      }
      const bool woken =
          changed_.wait_for(lock, timeout, [&] { return round_ != round || aborted_; });
      if (woken && round_ != round) return;
      if (!woken) {
        why_ = message("waited ", timeout.count(), " ms in ", what, ", only ", arrived_, " of ",
                       calls_.size(), " ranks arrived");
        aborted_ = true;
        changed_.notify_all();
      }
    }
    throw transport_error(message("threads: ", why_, rank_suffix(rank, size())));
  }

  std::vector<call> calls_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0, round_ = 0;
  bool aborted_ = false;
  std::string why_;
};

}  // namespace detail

/// The transport of one rank among threads: a handle, cheap to copy.
///
/// Cost: one copy of what is received; two waits for all ranks per collective. Throws
/// transport_error when another rank failed or did not arrive in time, rank_mismatch when ranks
/// make different calls.
class threads {
 public:
  threads(std::shared_ptr<detail::thread_hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return hub_->size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    hub_->meet(rank_, {"all_to_all", send, receive, slot_bytes});
    for (int r = 0; r < size() && slot_bytes > 0; ++r) {
      std::memcpy(slot(receive, r, slot_bytes), slot(hub_->of(r).send, rank_, slot_bytes),
                  slot_bytes);
    }
    hub_->part(rank_, "all_to_all");
  }

  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    hub_->meet(rank_, {"all_gather", send, receive, slot_bytes});
    for (int r = 0; r < size() && slot_bytes > 0; ++r) {
      std::memcpy(slot(receive, r, slot_bytes), hub_->of(r).send, slot_bytes);
    }
    hub_->part(rank_, "all_gather");
  }

  /// Sums in rank order.
  void all_reduce_sum(float* data, std::size_t n) {
    hub_->meet(rank_, {"all_reduce_sum", nullptr, data, n * sizeof(float)});
    const auto part = [&](int r) {
      return n * static_cast<std::size_t>(r) / static_cast<std::size_t>(size());
    };
    for (std::size_t i = part(rank_); i < part(rank_ + 1); ++i) {
      float sum = static_cast<float*>(hub_->of(0).data)[i];
      for (int r = 1; r < size(); ++r) sum += static_cast<float*>(hub_->of(r).data)[i];
      for (int r = 0; r < size(); ++r) static_cast<float*>(hub_->of(r).data)[i] = sum;
    }
    hub_->part(rank_, "all_reduce_sum");
  }

 private:
  static std::byte* slot(void* p, int r, std::size_t bytes) {
    return static_cast<std::byte*>(p) + static_cast<std::size_t>(r) * bytes;
  }
  static const std::byte* slot(const void* p, int r, std::size_t bytes) {
    return static_cast<const std::byte*>(p) + static_cast<std::size_t>(r) * bytes;
  }

  std::shared_ptr<detail::thread_hub> hub_;
  int rank_;
};

static_assert(Transport<threads>);

/// Runs `f(threads)` on n ranks, one thread each, and waits for all. When a rank throws, the others
/// are released from their collectives, and the first exception is rethrown here.
template <class F>
void run_threads(int n, F f, std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  if (n < 1) throw invalid_input(detail::message("run_threads: ", n, " ranks; must be at least 1"));
  const auto hub = std::make_shared<detail::thread_hub>(n, timeout);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    const auto failed = [&](const char* why) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      hub->abort("rank " + std::to_string(rank) + " failed: " + why);
    };
    try {
      f(threads(hub, rank));
    } catch (const std::exception& e) {
      failed(e.what());
    } catch (...) {
      failed("unknown exception");
    }
  };
  std::vector<std::thread> others;
  try {
    for (int rank = 1; rank < n; ++rank) others.emplace_back(run, rank);
    run(0);
  } catch (...) {  // no more threads: those that run wait for ranks that will not come
    {
      const std::lock_guard lock(mutex);
      first = std::current_exception();
    }
    hub->abort("only " + std::to_string(others.size() + 1) + " of " + std::to_string(n) +
               " threads could be started");
  }
  for (std::thread& t : others) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace onebit
