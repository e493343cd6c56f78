// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A small training job that saves itself every few steps and goes on from what it finds, over any
// transport; and a fault that strikes one of its ranks at a given place.

#ifndef ONEBIT_TESTS_KILL_JOB_HPP
#define ONEBIT_TESTS_KILL_JOB_HPP

#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../compiled/optimizers.hpp"
#include "../support/failing_allocations.hpp"
#include "../support/training.hpp"

namespace onebit_test::kill {

inline constexpr std::uint64_t steps = 12, steps_between_saves = 4;

/// Of `shards` no rank holds the whole model.
enum class kind : int { adam, one_bit_adam, buckets, all_gather, by_node, zero_one_adam, shards };
inline constexpr const char* kind_names[] = {"adam",    "one_bit_adam",  "buckets", "all_gather",
                                             "by_node", "zero_one_adam", "shards"};
inline constexpr int n_kinds = 7;

/// Are its ranks of two shards?
[[nodiscard]] constexpr bool has_shards(kind k) { return k == kind::shards; }
/// Do ranks wait for such as wait for others, over other communicators?
[[nodiscard]] constexpr bool is_layered(kind k) { return k == kind::by_node || has_shards(k); }

enum class what : int { nothing, kill, stop, exception, nan, allocation };
inline constexpr const char* what_names[] = {"nothing",   "kill", "stop",
                                             "exception", "nan",  "allocation"};

enum class where : int { step, save, load, build };
inline constexpr const char* where_names[] = {"step", "save", "load", "build"};

/// What strikes rank `victim`, when it is in an operation at `step`: in its `at`-th collective,
/// before or after it is carried out; or at its `at`-th allocation.
struct fault {
  kill::what what = what::nothing;
  kill::where where = where::step;
  int victim = 0;
  std::uint64_t step = 0;
  int at = 0;
  bool after = false;
};

/// Whether an allocation has failed: it may have been no harm.
inline std::atomic<bool> allocation_failed{false};

/// Strikes a rank.
class striker {
 public:
  striker(const fault& f, int rank) : fault_(f), is_victim_(f.victim == rank) {}

  /// An operation begins, or is over.
  void enter(where w, std::uint64_t step) {
    armed_ = is_victim_ && !struck_ && w == fault_.where && step == fault_.step;
    collectives_ = 0;
    if (armed_ && fault_.what == what::allocation) allocations_left = fault_.at;
  }
  void leave() {
    if (armed_ && fault_.what == what::allocation) {
      allocation_failed = allocation_failed || allocations_left < 0;
      allocations_left = -1;
    }
    armed_ = false;
  }
  [[nodiscard]] bool spoils_gradients() {
    if (!armed_ || fault_.what != what::nan) return false;
    struck_ = true;
    return true;
  }
  void collective(bool after) {
    if (!armed_ || fault_.what == what::nan || fault_.what == what::allocation) return;
    if (after) ++collectives_;
    if (fault_.after != after || collectives_ != fault_.at + (after ? 1 : 0)) return;
    struck_ = true;
    if (fault_.what == what::kill) std::raise(SIGKILL);
    if (fault_.what == what::stop) std::raise(SIGSTOP);
    if (fault_.what == what::exception) throw std::runtime_error("struck by the test");
  }

 private:
  fault fault_;
  bool is_victim_, armed_ = false, struck_ = false;
  int collectives_ = 0;
};

/// A transport whose collectives may be struck.
template <class T>
class struck {
 public:
  struck(T inner, striker* s) : inner_(std::move(inner)), striker_(s) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    carry([&] { inner_.all_to_all(send, receive, n); });
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    carry([&] { inner_.all_gather(send, receive, n); });
  }
  void all_reduce_sum(float* data, std::size_t n) {
    carry([&] { inner_.all_reduce_sum(data, n); });
  }
  auto start_all_to_all(const void* send, void* receive,
                        std::size_t n) requires onebit::detail::StartingTransport<T> {
    striker_->collective(false);
    auto request = inner_.start_all_to_all(send, receive, n);
    striker_->collective(true);
    return request;
  }
  auto start_all_gather(const void* send, void* receive,
                        std::size_t n) requires onebit::detail::StartingTransport<T> {
    striker_->collective(false);
    auto request = inner_.start_all_gather(send, receive, n);
    striker_->collective(true);
    return request;
  }
  [[nodiscard]] struck split(int color, int key) const {
    return {inner_.split(color, key), striker_};
  }

 private:
  template <class F>
  void carry(const F& f) {
    striker_->collective(false);
    f();
    striker_->collective(true);
  }
  T inner_;
  striker* striker_;
};

/// An optimizer of one of two shards, with the other shard's ranks: what is saved and loaded is of
/// the whole job, so that all shards go on from the same step.
template <class Optimizer, class T>
class with_all_shards {
 public:
  static constexpr bool resumes = false;
  with_all_shards(Optimizer& o, T all) : o_(&o), all_(std::move(all)) {}
  [[nodiscard]] int rank() const { return all_.rank(); }
  [[nodiscard]] int size() const { return all_.size(); }
  [[nodiscard]] std::uint64_t steps() const { return o_->steps(); }
  onebit::report step(float lr) { return o_->step(lr); }
  void save(std::ostream& out) { o_->save(out); }
  void load(std::istream& in, auto... with) { o_->load(in, with...); }
  [[nodiscard]] onebit::communicator transport() const { return onebit::communicator(all_); }
  [[nodiscard]] onebit::detail::known_checkpoints& checkpoints() { return o_->checkpoints(); }

 private:
  Optimizer* o_;
  T all_;
};

/// The tensors of a rank; of shards, the second half of the ranks holds others.
[[nodiscard]] inline std::vector<std::size_t> sizes_of(kind k, int rank, int size) {
  if (k == kind::shards && rank >= size / 2) return {100, 1, 40};
  return {33, 0, 700, 64};
}

/// Calls f(optimizer) with one of a kind. Its phases: averages up to step 3, the freeze before step
/// 3, refreshes; 0/1 Adam: local steps from step 4 on.
template <class T, class F>
auto with_optimizer(kind k, training<>& data, const T& t, const F& f) {
  onebit::one_bit_adam_options o;
  o.freeze.after = 3;
  o.refreshes = 2;
  onebit::zero_one_adam_options z;
  z.schedule.kappa = 2;
  z.schedule.warmup_steps = 3;
  z.schedule.doubling_steps = 3;
  z.schedule.max_interval = 4;
  const auto groups = data.groups();
  switch (k) {
    case kind::adam: {
      auto own = onebit::adam(groups, t);
      return f(own);
    }
    case kind::buckets: {
      auto own = onebit::one_bit_adam(groups, t, o, onebit::gather_scatter{onebit::sign<>{}, 300});
      return f(own);
    }
    case kind::all_gather: {
      auto own = onebit::one_bit_adam(groups, t, o, onebit::all_gather<onebit::sign<>>{});
      return f(own);
    }
    case kind::by_node: {
      auto own = onebit::one_bit_adam(
          groups, t, o, onebit::hierarchical{onebit::sign<>{}, t.size() % 2 == 0 ? 2 : 1});
      return f(own);
    }
    case kind::zero_one_adam: {
      auto own = onebit::zero_one_adam(groups, t, z);
      return f(own);
    }
    case kind::shards: {
      const int half = t.size() / 2, shard = t.rank() / half;
      const T replicas = t.split(shard, t.rank()), shards = t.split(t.rank() % half, t.rank());
      o.adam.max_grad_norm = 1;  // the norm of the whole is learnt over the shards, too
      auto own = onebit::one_bit_adam(groups, replicas, o);
      own.join_model_parallel(shards);
      with_all_shards<decltype(own), T> whole(own, t);
      return f(whole);
    }
    case kind::one_bit_adam:
      break;
  }
  auto own = onebit::one_bit_adam(groups, t, o);
  return f(own);
}

/// One rank's part of the job, from the newest checkpoint under `root` to its end; gives a digest
/// of its parameters and state. Throws what strikes it, and what it hears of what struck others.
template <class T>
std::uint64_t run(kind k, const T& transport, const std::filesystem::path& root, const fault& f) {
  striker s(f, transport.rank());
  training<> data(sizes_of(k, transport.rank(), transport.size()));
  s.enter(where::build, 0);
  return with_optimizer(k, data, struck<T>(transport, &s), [&](auto& o) {
    const auto rank = transport.rank();
    s.leave();
    s.enter(where::load, 0);
    (void)onebit::load_latest(o, root, [&](std::istream& in) {
      for (auto& p : data.params) {
        in.read(reinterpret_cast<char*>(p.data()),
                static_cast<std::streamsize>(p.size() * sizeof(float)));
      }
    });
    s.leave();
    while (o.steps() < steps) {
      data.compute_gradients(rank, o.steps());
      const std::uint64_t before = o.steps();
      s.enter(where::step, before);
      if (s.spoils_gradients()) data.grads[2][5] = std::numeric_limits<float>::quiet_NaN();
      if constexpr (requires { o.ready(std::size_t{0}); }) {
        if (k == kind::buckets) {
          o.begin(0.01F);
          for (std::size_t t = data.params.size(); t-- > 2;) o.ready(t);
        }
      }
      (void)o.step(0.01F);
      s.leave();
      if (o.steps() == before) continue;  // all have skipped it: again, with fresh gradients
      if (o.steps() % steps_between_saves != 0) continue;
      s.enter(where::save, o.steps());
      onebit::save_all(o, root, [&](std::ostream& out) {
        for (const auto& p : data.params) {
          out.write(reinterpret_cast<const char*>(p.data()),
                    static_cast<std::streamsize>(p.size() * sizeof(float)));
        }
      });
      s.leave();
    }
    onebit::detail::digest d;
    d.add(data.digest());
    d.add(saved(o));
    return d.value();
  });
}

}  // namespace onebit_test::kill

#endif  // ONEBIT_TESTS_KILL_JOB_HPP
