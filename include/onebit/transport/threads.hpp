// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/transport/memory.hpp>
#include <onebit/transport/thread_hub.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// N ranks as threads of one process: for tests, for experiments, and for machines with few cores.
namespace onebit::inline v0_1 {

/// The transport of one rank among threads, carrying the memory that `M` reaches: a handle, cheap
/// to copy. Ranks may have devices of their own as long as M copies between them.
///
/// Cost: one copy of what is received; two waits for all ranks per collective. Memory that the host
/// can not touch: two waits for M more, and all_reduce_sum goes through host memory. Throws
/// transport_error when another rank failed or did not arrive in time, rank_mismatch when ranks
/// make different calls.
template <Memory M>
class basic_threads {
 public:
  /// One rank of a hub that `ranks` of run_threads share.
  basic_threads(std::shared_ptr<detail::thread_hub> hub, int rank, M memory = {})
      : hub_(std::move(hub)), rank_(rank), memory_(std::move(memory)) {
    if constexpr (!M::host_can_touch) {
      staging_ = std::make_shared<detail::host_staging<M>>(memory_);
    }
  }

  /// @{
  /// See Transport.
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return hub_->size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    exchange({"all_to_all", send, receive, slot_bytes}, [&](int r) {
      memory_.copy(slot(receive, r, slot_bytes), slot(hub_->of(r).send, rank_, slot_bytes),
                   slot_bytes);
    });
  }

  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    exchange({"all_gather", send, receive, slot_bytes}, [&](int r) {
      memory_.copy(slot(receive, r, slot_bytes), hub_->of(r).send, slot_bytes);
    });
  }

  /// @}
  /// Sums in rank order. On a device's memory the sums may still be on their way back when it
  /// returns: that copy is ordered before all later work of M.
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n); }
  /// The same, rounded once.
  void all_reduce_sum(bf16* data, std::size_t n) { reduce(data, n); }

  /// Collective, waits: all_gather on host memory, for small messages between the ranks' hosts.
  void host_all_gather(const void* send, void* receive,
                       std::size_t slot_bytes) requires(!M::host_can_touch) {
    basic_threads<host_memory>(hub_, rank_).all_gather(send, receive, slot_bytes);
  }

  /// Collective over all ranks, waits: the transport over the ranks that gave the same color,
  /// ordered by key, then rank. A failure that ends this one's collectives ends those of the new
  /// one too, not the other way round. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard, gnu::cold]] basic_threads split(int color, int key) const {
    auto place = hub_->split(rank_, color, key);
    return basic_threads(std::move(place.hub), place.rank, memory_);
  }

 private:
  /// Meets the other ranks with what it has ready, copies from each, and parts.
  template <class Copy>
  [[gnu::cold]] void exchange(const detail::thread_hub::call& mine, const Copy& copy) {
    memory_.wait();  // others read what work before this call writes
    hub_->meet(rank_, mine);
    try {
      for (int r = 0; r < size() && mine.bytes > 0; ++r) copy(r);
      memory_.wait();  // others may write to what it reads from as soon as all have parted
    } catch (...) {
      hub_->part();
      throw;
    }
    hub_->part();
  }

  template <class T>
  void reduce(T* data, std::size_t n) {
    if constexpr (M::host_can_touch) {
      sum(data, n);
    } else {
      auto* const host = reinterpret_cast<T*>(staging_->at_least(n * sizeof(T)));
      if (n > 0) memory_.copy(host, data, n * sizeof(T));
      memory_.wait();
      sum(host, n);
      if (n > 0) memory_.copy(data, host, n * sizeof(T));
    }
  }
  template <class T>
  void sum(T* data, std::size_t n) {
    hub_->meet(rank_, {"all_reduce_sum", nullptr, data, n * sizeof(T)});
    const auto part = [&](int r) {
      return n * static_cast<std::size_t>(r) / static_cast<std::size_t>(size());
    };
    for (std::size_t i = part(rank_); i < part(rank_ + 1); ++i) {
      float sum = to_float(static_cast<T*>(hub_->of(0).data)[i]);
      for (int r = 1; r < size(); ++r) sum += to_float(static_cast<T*>(hub_->of(r).data)[i]);
      for (int r = 0; r < size(); ++r) static_cast<T*>(hub_->of(r).data)[i] = from_float<T>(sum);
    }
    hub_->part();
  }

  static std::byte* slot(void* p, int r, std::size_t bytes) {
    return static_cast<std::byte*>(p) + static_cast<std::size_t>(r) * bytes;
  }
  static const std::byte* slot(const void* p, int r, std::size_t bytes) {
    return static_cast<const std::byte*>(p) + static_cast<std::size_t>(r) * bytes;
  }

  std::shared_ptr<detail::thread_hub> hub_;
  int rank_;
  M memory_;
  std::shared_ptr<detail::host_staging<M>> staging_;  ///< where the host can not touch the memory
};

/// Threads whose buffers lie in plain memory.
using threads = basic_threads<host_memory>;

static_assert(SplittingTransport<threads>);

/// Runs `f(basic_threads<M>)` on memories.size() ranks, one thread each, and waits for all;
/// `memories[r]` is rank r's. When a rank throws, or returns while others wait for it, these are
/// released from their collectives, and the first exception is rethrown here. f sets its thread's
/// device, where there are several.
template <Memory M, class F>
[[gnu::cold]] void run_threads(std::vector<M> memories, F f,
                               std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  const int n = static_cast<int>(memories.size());
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
      f(basic_threads<M>(hub, rank, memories[static_cast<std::size_t>(rank)]));
      hub->leave(rank);
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

/// Runs `f(threads)` on n ranks of plain memory.
template <class F>
[[gnu::cold]] void run_threads(int n, F f,
                               std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  if (n < 1) throw invalid_input(detail::message("run_threads: ", n, " ranks; must be at least 1"));
  run_threads(std::vector<host_memory>(static_cast<std::size_t>(n)), std::move(f), timeout);
}

}  // namespace onebit::inline v0_1
