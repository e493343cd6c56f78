// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/transport/memory.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks as threads of one process.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Meeting point of the ranks of one process. In each collective every rank publishes a pointer,
/// waits for all ranks, copies, and waits again. If a rank fails or does not arrive in time, the
/// waits of all other ranks throw, as they do if two threads call as one rank at once.
class thread_hub {
 public:
  struct call {
    const char* what = "";
    const void* send = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  /// A rank's hub after a split, and its number in this hub.
  struct seat {
    std::shared_ptr<thread_hub> hub;
    int rank = 0;
  };

  [[gnu::cold]] thread_hub(int size, std::chrono::milliseconds timeout)
      : calls_(static_cast<std::size_t>(size)),
        rounds_(calls_.size()),
        inside_(calls_.size()),
        timeout_((std::min<std::chrono::milliseconds>)(timeout, std::chrono::hours(24 * 365))) {}

  [[nodiscard]] int size() const { return static_cast<int>(calls_.size()); }
  [[nodiscard]] const call& of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  /// Waits until all ranks have made a call. Throws rank_mismatch if their calls differ.
  [[gnu::cold]] void begin_call(int rank, const call& mine) {
    wait_for_all(rank, mine);
    const call& first = calls_[0];
    for (int r = 1; r < size(); ++r) {
      if (std::strcmp(of(r).what, first.what) == 0 && of(r).bytes == first.bytes) continue;
      const call_scope last{*this, rank};  // no rank may call again while others still compare
      throw rank_mismatch(
          error_text("threads: rank 0 calls ", first.what, " of ", first.bytes,
                     " bytes while rank ", r, " calls ", of(r).what, " of ", of(r).bytes,
                     " bytes; every rank must make the same calls (step, save, load, verify)",
                     rank_suffix(rank, size())));
    }
  }

  /// Waits until all ranks have finished with each other's memory. Has no time-out, and an abort
  /// does not end the wait: other ranks still use the buffers, and each of them calls end_call.
  [[gnu::cold]] void end_call(int rank) {
    std::unique_lock lock(mutex_);
    const std::size_t round = round_;
    if (!complete()) changed_.wait(lock, [&] { return round_ != round; });
    inside_[static_cast<std::size_t>(rank)] = 0;
  }

  /// Makes all current and later calls throw, in this hub and in hubs split from it. Errors show
  /// the reason of the first abort.
  [[gnu::cold]] void abort(const std::string& why) {
    std::unique_lock lock(mutex_);
    abort(lock, why);
  }

  /// Marks that a rank makes no more calls: pending and later calls of other ranks throw, in this
  /// hub and in hubs split from it that contain the rank.
  [[gnu::cold]] void retire(int rank) {
    std::unique_lock lock(mutex_);
    const auto children = children_;
    abort_here("rank " + number_text(rank) +
               " has returned, and takes part no more: its function has ended, "
               "or an optimizer outlives run_threads");
    lock.unlock();
    for (const child& c : children) {
      const auto place = std::find(c.ranks.begin(), c.ranks.end(), rank);
      const auto hub = c.hub.lock();
      if (hub && place != c.ranks.end()) hub->retire(static_cast<int>(place - c.ranks.begin()));
    }
  }

  /// Returns the seat of a rank in a new hub of its color, ordered by key, then rank. Blocking.
  [[nodiscard, gnu::cold]] seat split(int rank, int color, int key) {
    struct card {
      int color, key;
    };
    const card mine{color, key};
    std::vector<card> cards;
    begin_call(rank, {"split", &mine, nullptr, 0});
    {
      const call_scope last{*this, rank};
      for (int r = 0; r < size(); ++r) cards.push_back(*static_cast<const card*>(of(r).send));
    }
    std::vector<int> ranks;  // ranks with the color of this rank
    for (int r = 0; r < size(); ++r) {
      const int its = cards[static_cast<std::size_t>(r)].color;
      if (its < 0) {
        throw invalid_input(error_text("threads: split: rank ", r, " has color ", its,
                                       "; must not be negative", rank_suffix(rank, size())));
      }
      if (its == color) ranks.push_back(r);
    }
    const auto key_of = [&](int r) { return cards[static_cast<std::size_t>(r)].key; };
    std::sort(ranks.begin(), ranks.end(),
              [&](int a, int b) { return std::pair(key_of(a), a) < std::pair(key_of(b), b); });
    const int leader = ranks[0];
    seat place;
    place.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    if (leader == rank) place.hub = adopt(std::move(ranks));
    begin_call(rank, {"split", &place.hub, nullptr, 0});
    if (leader != rank) {
      place.hub = *static_cast<const std::shared_ptr<thread_hub>*>(of(leader).send);
    }
    end_call(rank);
    return place;
  }

 private:
  /// Calls end_call() at the end of a scope, also after an exception.
  struct call_scope {
    thread_hub& hub;
    int rank;
    ~call_scope() { hub.end_call(rank); }
  };

  /// A hub split from this one, and the ranks of this hub that belong to it.
  struct child {
    std::weak_ptr<thread_hub> hub;
    std::vector<int> ranks;
  };

  /// Counts an arrival. The last rank of a round starts the next round and gets true.
  [[nodiscard]] bool complete() {
    if (++arrived_ != calls_.size()) return false;
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return true;
  }

  /// Aborts this hub and its children. Releases the lock while it aborts the children.
  [[gnu::cold]] void abort(std::unique_lock<std::mutex>& lock, const std::string& why) {
    abort_here(why);
    const auto children = std::exchange(children_, {});
    const std::string first = why_;
    lock.unlock();
    for (const child& c : children) {
      if (const auto hub = c.hub.lock()) hub->abort(first);
    }
    lock.lock();
  }
  void abort_here(const std::string& why) {
    if (!aborted_) why_ = why;
    aborted_ = true;
    changed_.notify_all();
  }

  [[gnu::cold]] void wait_for_all(int rank, const call& mine) {
    std::unique_lock lock(mutex_);
    char& inside = inside_[static_cast<std::size_t>(rank)];
    if (inside != 0) {  // calls_ has the other thread's call, which ranks may be reading
      abort(lock, "two threads call " + std::string(mine.what) + " and " + of(rank).what +
                      " at once as rank " + number_text(rank) +
                      "; give each optimizer a transport of its own: split(0, rank())");
    }
    if (!aborted_) {
      inside = 1;
      calls_[static_cast<std::size_t>(rank)] = mine;
      const std::size_t round = rounds_[static_cast<std::size_t>(rank)] = round_;
      if (complete()) return;
      const bool woken =
          changed_.wait_for(lock, timeout_, [&] { return round_ != round || aborted_; });
      if (woken && round_ != round) return;
      if (!woken) {
        std::string absent;
        for (int r = 0; r < size(); ++r) {
          if (rounds_[static_cast<std::size_t>(r)] != round)
            absent += (absent.empty() ? " " : ", ") + number_text(r);
        }
        abort(lock,
              join({"waited ", timeout_.count(), " ms in ", mine.what, " without rank", absent}));
      }
      inside = 0;
    }
    throw transport_error(error_text("threads: ", why_, rank_suffix(rank, size())));
  }

  /// Creates a child hub: an abort of this hub also aborts the child.
  [[nodiscard, gnu::cold]] std::shared_ptr<thread_hub> adopt(std::vector<int> ranks) {
    auto hub = std::make_shared<thread_hub>(static_cast<int>(ranks.size()), timeout_);
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const child& other) { return other.hub.expired(); });
    children_.push_back({hub, std::move(ranks)});
    if (aborted_) hub->abort(why_);
    return hub;
  }

  std::vector<call> calls_;
  std::vector<std::size_t> rounds_;  ///< last round in which each rank waited in begin_call
  std::vector<char> inside_;         ///< by rank: 1 if a thread is between begin_call and end_call
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0, round_ = 1;
  bool aborted_ = false;
  std::string why_;
  std::vector<child> children_;
};

}}}  // namespace onebit::detail

/// Ranks as threads of one process: for tests, experiments, and machines with few cores.
namespace onebit { inline namespace v0_3 {

/// Transport of one rank among threads, for memory that `M` accesses. A handle, cheap to copy.
/// Ranks may use different devices if M can copy between them.
///
/// Cost per collective: one copy of the received bytes, and two barriers. If the host cannot touch
/// the memory, also two waits for M, and all_reduce_sum is staged through host memory. Throws
/// transport_error if another rank failed or did not arrive in time, rank_mismatch if ranks make
/// different calls. All collectives block, so that all ranks must call their optimizers in one
/// order. Each thread that calls as this rank needs a transport of its own: split(0, rank()).
template <Memory M>
class basic_threads {
 public:
  /// Constructs the transport of `rank` on a hub that all ranks share; see run_threads.
  basic_threads(std::shared_ptr<detail::thread_hub> hub, int rank, M memory = {})
      : hub_(std::move(hub)), rank_(rank), memory_(std::move(memory)) {
    if constexpr (!M::host_can_touch) {
      staging_ = std::make_shared<detail::host_staging<M>>(memory_);
    }
  }

  /// @{
  /// Operations of the Transport concept.
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return hub_->size(); }
  /// Returns the stream of the memory M, if M has one.
  [[nodiscard]] auto stream() const requires requires(const M& m) { m.stream(); }
  { return memory_.stream(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    exchange({"all_to_all", send, receive, slot_bytes}, [&](int r) {
      memory_.copy(slot(receive, r, slot_bytes), slot(hub_->of(r).send, rank_, slot_bytes),
                   slot_bytes);
    });
  }

  void all_gather(const void* send, void* receive, std::size_t slot_bytes,
                  detail::call_name what = {}) {
    exchange({what.text, send, receive, slot_bytes}, [&](int r) {
      memory_.copy(slot(receive, r, slot_bytes), hub_->of(r).send, slot_bytes);
    });
  }

  /// @}
  /// Sums in rank order. In device memory the copy of the sums back to the device may still be
  /// pending on return: it is ordered before all later work of M.
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n); }
  /// Sums bf16 in float, in rank order, and rounds once.
  void all_reduce_sum(bf16* data, std::size_t n) { reduce(data, n); }

  /// all_gather on host memory, for small messages between the hosts of ranks. Blocking.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes,
                       detail::call_name what = {}) requires(!M::host_can_touch) {
    basic_threads<host_memory>(hub_, rank_).all_gather(send, receive, slot_bytes, what);
  }

  /// Returns the transport of the ranks that passed the same color, ordered by key, then rank.
  /// Collective over all ranks, blocking. A failure of this transport also fails the new one, but
  /// not vice versa. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard, gnu::cold]] basic_threads split(int color, int key) const {
    auto place = hub_->split(rank_, color, key);
    return basic_threads(std::move(place.hub), place.rank, memory_);
  }

 private:
  /// Runs one collective: waits for the other ranks, copies from each, waits again.
  template <class Copy>
  [[gnu::cold]] void exchange(const detail::thread_hub::call& mine, const Copy& copy) {
    memory_.wait();  // other ranks read memory that earlier work of M writes
    hub_->begin_call(rank_, mine);
    try {
      for (int r = 0; r < size() && mine.bytes > 0; ++r) copy(r);
      memory_.wait();  // after end_call other ranks may overwrite the sources of these copies
    } catch (...) {
      hub_->end_call(rank_);
      throw;
    }
    hub_->end_call(rank_);
  }

  template <class T>
  void reduce(T* data, std::size_t n) {
    if constexpr (M::host_can_touch) {
      sum(data, n);
    } else {
      auto* const host = detail::aligned_as<T>(staging_->at_least(n * sizeof(T)));
      if (n > 0) memory_.copy(host, data, n * sizeof(T));
      memory_.wait();
      sum(host, n);
      if (n > 0) memory_.copy(data, host, n * sizeof(T));
    }
  }
  template <class T>
  void sum(T* data, std::size_t n) {
    hub_->begin_call(rank_, {"all_reduce_sum", nullptr, data, n * sizeof(T)});
    const auto part = [&](int r) {
      return n * static_cast<std::size_t>(r) / static_cast<std::size_t>(size());
    };
    // in blocks, so that loops over elements do not look up the memory of a rank
    std::array<float, 1024> sums;
    std::array<T, sums.size()> rounded;
    for (std::size_t i = part(rank_), end = part(rank_ + 1), m = 0; i < end; i += m) {
      m = (std::min)(sums.size(), end - i);
      const auto of = [&](int r) { return static_cast<T*>(hub_->of(r).data) + i; };
      std::transform(of(0), of(0) + m, sums.begin(), [](T x) { return to_float(x); });
      for (int r = 1; r < size(); ++r) {
        std::transform(of(r), of(r) + m, sums.begin(), sums.begin(),
                       [](T x, float sum) { return sum + to_float(x); });
      }
      std::transform(sums.begin(), sums.begin() + m, rounded.begin(),
                     [](float x) { return from_float<T>(x); });
      for (int r = 0; r < size(); ++r) std::copy_n(rounded.begin(), m, of(r));
    }
    hub_->end_call(rank_);
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
  std::shared_ptr<detail::host_staging<M>> staging_;  ///< null if the host can touch the memory
};

/// Threads transport for host memory.
using threads = basic_threads<host_memory>;

static_assert(detail::SplittingTransport<threads>);

/// Runs `f(basic_threads<M>)` on memories.size() ranks, one thread each, and waits for all threads.
/// Rank r uses `memories[r]`. If a rank throws, or returns while others wait for it, the
/// collectives of the others throw. Rethrows the first exception; one that another rank's failure
/// may have caused is rethrown only if there is no other. With several devices, f must set its
/// thread's current device.
template <Memory M, class F>
[[gnu::cold]] void run_threads(std::vector<M> memories, F f,
                               std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  const int n = static_cast<int>(memories.size());
  if (n < 1)
    throw invalid_input(detail::error_text("run_threads: ", n, " ranks; must be at least 1"));
  const auto hub = std::make_shared<detail::thread_hub>(n, timeout);
  std::mutex mutex;
  std::exception_ptr first;
  int echo_of_first = 3;  // of `first`: 0: a cause; 1, 2: maybe caused by another rank; 3: none yet
  const auto run = [&](int rank) {
    const auto failed = [&](const char* why, int echo) {
      {
        const std::lock_guard lock(mutex);
        if (echo < echo_of_first) first = std::current_exception();
        echo_of_first = (std::min)(echo, echo_of_first);
      }
      hub->abort("rank " + detail::number_text(rank) + " failed: " + why);
    };
    try {
      f(basic_threads<M>(hub, rank, memories[static_cast<std::size_t>(rank)]));
      hub->retire(rank);
    } catch (const transport_error& e) {
      failed(e.what(), 2);
    } catch (const rank_mismatch& e) {
      failed(e.what(), 1);
    } catch (const detail::peer_failed& e) {
      failed(e.what(), 1);
    } catch (const std::exception& e) {
      failed(e.what(), 0);
    } catch (...) {
      failed("unknown exception", 0);
    }
  };
  std::vector<std::thread> others;
  try {
    for (int rank = 1; rank < n; ++rank) others.emplace_back(run, rank);
    run(0);
  } catch (...) {  // a thread could not be started: the running ones wait for missing ranks
    {
      const std::lock_guard lock(mutex);
      first = std::current_exception();
    }
    hub->abort("only " + detail::number_text(others.size() + 1) + " of " + detail::number_text(n) +
               " threads could be started");
  }
  for (std::thread& t : others) t.join();
  if (first) std::rethrow_exception(first);
}

/// Runs `f(threads)` on n ranks with host memory.
template <class F>
[[gnu::cold]] void run_threads(int n, F f,
                               std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  if (n < 1)
    throw invalid_input(detail::error_text("run_threads: ", n, " ranks; must be at least 1"));
  run_threads(std::vector<host_memory>(static_cast<std::size_t>(n)), std::move(f), timeout);
}

}}  // namespace onebit
