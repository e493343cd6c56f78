// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What may happen to a job, and how it strikes a rank.

#ifndef ONEBIT_TESTS_SOAK_FAULTS_HPP
#define ONEBIT_TESTS_SOAK_FAULTS_HPP

#include <cstddef>
#include <cstdint>
#include <onebit/transport/threads.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../support/failing_allocations.hpp"

namespace onebit_test::soak {

/// Numbers of chance, the same on every machine.
class chance {
 public:
  explicit chance(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31U);
  }
  /// One of 0 ... n - 1.
  std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
  int number_below(int n) { return static_cast<int>(below(static_cast<std::uint64_t>(n))); }
  /// True once in n times.
  bool once_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  T of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  std::uint64_t state_;
};

enum class what : int {
  exception,     ///< a collective throws on one rank: the job ends
  allocation,    ///< an allocation fails on one rank: the job ends
  leaves,        ///< a rank returns: the job ends
  stop,          ///< all ranks save and return: the job goes on with others
  network,       ///< a collective throws on all ranks: the step is made again
  other_rate,    ///< one rank is told another learning rate, or NaN: the step is made again
  failed_save,   ///< one rank cannot write: saved again
  reload,        ///< all ranks load the newest checkpoint: steps are made again
  bad_gradient,  ///< NaN, infinite or huge on one rank: skipped by all, or left out in a local step
  damaged,       ///< the newest checkpoint, while no job runs
};
inline constexpr const char* what_names[] = {"exception",    "allocation", "leaves",      "stop",
                                             "network",      "other rate", "failed save", "reload",
                                             "bad gradient", "damaged"};
inline constexpr std::size_t n_whats = 10;

/// Something that happens once `after` steps have been made since the job was started; `at`: which
/// collective or allocation from there on, `behind`: when it is carried out already.
struct event {
  soak::what what = what::stop;
  std::uint64_t after = 0;
  int victim = 0, at = 0;
  bool behind = false;
};

/// Throws in a rank's collectives.
class striker {
 public:
  /// From now on, in the collective behind the next `at`.
  void arm(int at, bool behind) {
    left_ = at;
    behind_ = behind;
    has_struck_ = false;
  }
  void disarm() { left_ = -1; }
  [[nodiscard]] bool has_struck() const { return has_struck_; }

  template <class F>
  void carry(const F& f) {
    const bool strikes = left_ >= 0 && left_-- == 0;
    if (!strikes || behind_) f();
    if (!strikes) return;
    has_struck_ = true;
    throw std::runtime_error("struck by the test");
  }

 private:
  int left_ = -1;
  bool behind_ = false, has_struck_ = false;
};

/// What strikes a rank alone, and what strikes all ranks in the same collective.
struct strikers {
  striker alone, together;

  template <class F>
  void carry(const F& f) {
    alone.carry([&] { together.carry(f); });
  }
};

/// Ranks as threads whose collectives may be struck.
class struck {
 public:
  struck(onebit::threads inner, strikers* s) : inner_(std::move(inner)), strikers_(s) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    strikers_->carry([&] { inner_.all_to_all(send, receive, n); });
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    strikers_->carry([&] { inner_.all_gather(send, receive, n); });
  }
  void all_reduce_sum(float* data, std::size_t n) {
    strikers_->carry([&] { inner_.all_reduce_sum(data, n); });
  }
  [[nodiscard]] struck split(int color, int key) const {
    return {inner_.split(color, key), strikers_};
  }

 private:
  onebit::threads inner_;
  strikers* strikers_;
};

}  // namespace onebit_test::soak

#endif  // ONEBIT_TESTS_SOAK_FAULTS_HPP
