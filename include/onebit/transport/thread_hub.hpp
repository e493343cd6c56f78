// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <onebit/error.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace onebit::inline v0_1::detail {

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
  /// A rank's place in a hub.
  struct seat {
    std::shared_ptr<thread_hub> hub;
    int rank = 0;
  };

  [[gnu::cold]] thread_hub(int size, std::chrono::milliseconds timeout)
      : calls_(static_cast<std::size_t>(size)),
        timeout_(std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))) {}

  [[nodiscard]] int size() const { return static_cast<int>(calls_.size()); }
  [[nodiscard]] const call& of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  /// Waits until all ranks made the same call.
  [[gnu::cold]] void meet(int rank, const call& mine) {
    calls_[static_cast<std::size_t>(rank)] = mine;
    wait_for_all(rank, mine.what);
    const call& first = calls_[0];
    for (int r = 1; r < size(); ++r) {
      if (std::strcmp(of(r).what, first.what) == 0 && of(r).bytes == first.bytes) continue;
      const parting last{
          *this};  // all ranks are here, and none may call again while others compare
      throw rank_mismatch(message("threads: rank 0 calls ", first.what, " of ", first.bytes,
                                  " bytes while rank ", r, " calls ", of(r).what, " of ",
                                  of(r).bytes, " bytes; every rank must take the same steps",
                                  rank_suffix(rank, size())));
    }
  }

  /// Waits until all ranks are done with each other's memory. All have met and will part, so none
  /// gives up, not even when the hub is aborted meanwhile: the others still use its buffers.
  [[gnu::cold]] void part() {
    std::unique_lock lock(mutex_);
    const std::size_t round = round_;
    if (!complete()) changed_.wait(lock, [&] { return round_ != round; });
  }

  /// Makes every present and later meeting throw, here and in the hubs split from this one. The
  /// first reason given is the one that is told.
  [[gnu::cold]] void abort(const std::string& why) {
    std::unique_lock lock(mutex_);
    abort(lock, why);
  }

  /// A rank that will make no more calls: whoever waits for it, here and in the hubs split from
  /// this one of which it is a part, throws.
  [[gnu::cold]] void leave(int rank) {
    std::unique_lock lock(mutex_);
    const auto children = children_;
    abort_here("rank " + std::to_string(rank) + " has returned, and takes part no more");
    lock.unlock();
    for (const child& c : children) {
      const auto place = std::find(c.ranks.begin(), c.ranks.end(), rank);
      const auto hub = c.hub.lock();
      if (hub && place != c.ranks.end()) hub->leave(static_cast<int>(place - c.ranks.begin()));
    }
  }

  /// Waits for all ranks: gives those of one color a hub of their own, ordered by key, then rank.
  [[nodiscard, gnu::cold]] seat split(int rank, int color, int key) {
    struct card {
      int color, key, rank;
    };
    const card mine{color, key, rank};
    const auto before = [](const card& a, const card& b) {
      return a.key != b.key ? a.key < b.key : a.rank < b.rank;
    };
    card first = mine;  // of the group: its leader
    seat place;
    int odd = -1, odd_color = 0;
    std::vector<card> group;
    meet(rank, {"split", &mine, nullptr, 0});
    {
      const parting last{*this};
      for (int r = 0; r < size(); ++r) {
        const card& its = *static_cast<const card*>(of(r).send);
        if (its.color < 0 && odd < 0) {
          odd = r;
          odd_color = its.color;
        }
        if (its.color != color) continue;
        group.push_back(its);
        if (before(its, mine)) ++place.rank;
        if (before(its, first)) first = its;
      }
    }
    if (odd >= 0) {
      throw invalid_input(message("threads: split: rank ", odd, " has color ", odd_color,
                                  "; must not be negative", rank_suffix(rank, size())));
    }
    if (first.rank == rank) {
      std::sort(group.begin(), group.end(), before);
      std::vector<int> ranks;
      for (const card& c : group) ranks.push_back(c.rank);
      place.hub = adopt(std::move(ranks));
    }
    meet(rank, {"split", &place.hub, nullptr, 0});
    if (first.rank != rank) {
      place.hub = *static_cast<const std::shared_ptr<thread_hub>*>(of(first.rank).send);
    }
    part();
    return place;
  }

 private:
  /// Parts when it ends, whatever is thrown before: who has met must part.
  struct parting {
    thread_hub& hub;
    ~parting() { hub.part(); }
  };

  /// A hub split from this one, and which of its ranks are there.
  struct child {
    std::weak_ptr<thread_hub> hub;
    std::vector<int> ranks;
  };

  /// Counts a rank in; true for the last one, who opens the next round.
  [[nodiscard]] bool complete() {
    if (++arrived_ != calls_.size()) return false;
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return true;
  }

  /// Gives the lock back for as long as it tells the children.
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

  [[gnu::cold]] void wait_for_all(int rank, const char* what) {
    std::unique_lock lock(mutex_);
    if (!aborted_) {
      const std::size_t round = round_;
      if (complete()) return;
      const bool woken =
          changed_.wait_for(lock, timeout_, [&] { return round_ != round || aborted_; });
      if (woken && round_ != round) return;
      if (!woken) {
        abort(lock, "waited " + std::to_string(timeout_.count()) + " ms in " + what + ", only " +
                        std::to_string(arrived_) + " of " + std::to_string(calls_.size()) +
                        " ranks arrived");
      }
    }
    throw transport_error(message("threads: ", why_, rank_suffix(rank, size())));
  }

  /// A hub that is aborted along with this one.
  [[nodiscard, gnu::cold]] std::shared_ptr<thread_hub> adopt(std::vector<int> ranks) {
    auto hub = std::make_shared<thread_hub>(static_cast<int>(ranks.size()), timeout_);
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const child& other) { return other.hub.expired(); });
    children_.push_back({hub, std::move(ranks)});
    if (aborted_) hub->abort(why_);
    return hub;
  }

  std::vector<call> calls_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0, round_ = 0;
  bool aborted_ = false;
  std::string why_;
  std::vector<child> children_;
};

}  // namespace onebit::inline v0_1::detail
