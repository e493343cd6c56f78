// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A backend that behaves as a CUDA stream does, without a GPU: `launch` returns before anything
// ran, and kernels run on emulated warps when somebody waits. Code that reads a result too early
// reads old numbers; a kernel object that is not trivially copyable does not compile.

#ifndef ONEBIT_TESTS_SUPPORT_EMULATED_HPP
#define ONEBIT_TESTS_SUPPORT_EMULATED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <onebit/backend/host.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulated_warp.hpp"

namespace onebit_test {

/// Work in order, none of it done before `wait`. What is still queued at the end never runs.
class emulated_stream {
 public:
  using task = std::function<void()>;
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  void push(task t) { (recorded_ ? *recorded_ : tasks_).push_back(std::move(t)); }
  [[nodiscard]] bool idle() const { return tasks_.empty() && !recorded_; }
  /// What f() pushes, instead of queueing it; nothing, when f throws.
  template <class F>
  [[nodiscard]] std::deque<task> record(const F& f) {
    recorded_.emplace();
    try {
      f();
      if (freed_in_recording_) refuse("memory was freed");
    } catch (...) {
      recorded_.reset();
      freed_in_recording_ = false;
      throw;
    }
    auto recorded = std::move(*recorded_);
    recorded_.reset();
    return recorded;
  }
  /// What a stream that is being captured cannot do, or what a graph cannot do twice.
  void require_no_recording(const char* what) const {
    if (recorded_) refuse(what);
  }
  void allocate() {
    require_no_recording("memory is allocated");
    if (allocations_left_ != never && allocations_left_-- == 0) throw std::bad_alloc();
  }
  void fail_allocation(std::uint64_t more) { allocations_left_ = more; }
  void freed() { freed_in_recording_ = freed_in_recording_ || recorded_; }
  void wait() {
    require_no_recording("it is waited for");
    while (!tasks_.empty()) {
      const task first = std::move(tasks_.front());
      tasks_.pop_front();
      first();
    }
  }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw std::logic_error(std::string("emulated: in a recording ") + what);
  }
  std::deque<task> tasks_;
  std::optional<std::deque<task>> recorded_;  ///< while something is recorded
  bool freed_in_recording_ = false;
  std::uint64_t allocations_left_ = never;  ///< before one fails
};

/// Freed in the order of the stream: what was launched before may still use it.
template <class T>
class emulated_buffer {
 public:
  emulated_buffer() = default;
  emulated_buffer(std::size_t n, std::shared_ptr<emulated_stream> stream)
      : memory_(n), stream_(std::move(stream)) {}
  emulated_buffer(emulated_buffer&&) noexcept = default;
  emulated_buffer& operator=(emulated_buffer&& other) {
    if (this != &other) {
      release();
      memory_ = std::move(other.memory_);
      stream_ = std::move(other.stream_);
    }
    return *this;
  }
  ~emulated_buffer() { release(); }

  [[nodiscard]] T* data() { return memory_.data(); }
  [[nodiscard]] const T* data() const { return memory_.data(); }
  [[nodiscard]] std::size_t size() const { return memory_.size(); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  void release() {
    if (memory_.size() > 0) stream_->freed();
    if (memory_.size() > 0 && !stream_->idle()) {
      stream_->push(
          [kept = std::make_shared<onebit::detail::host_buffer<T>>(std::move(memory_))] {});
    }
    memory_ = {};
  }
  onebit::detail::host_buffer<T> memory_;
  std::shared_ptr<emulated_stream> stream_;
};

/// A handle: copies share the stream. One thread at a time, as one rank is. Without `Deferred` each
/// call waits: warps are emulated, the stream is not.
template <bool Deferred>
class basic_emulated {
 public:
  static constexpr bool deferred = Deferred;

  template <class T>
  [[nodiscard]] emulated_buffer<T> make_buffer(std::size_t n) const {
    stream_->allocate();
    return {n, stream_};
  }
  /// The allocation after `more` others throws bad_alloc, and none after it.
  void fail_allocation(std::uint64_t more) const { stream_->fail_allocation(more); }
  void fail_no_allocation() const { stream_->fail_allocation(emulated_stream::never); }
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    static_assert(std::is_trivially_copyable_v<Kernel>, "kernels travel as bytes");
    if (n == 0) return;
    stream_->push([n, kernel] {
      using lanes = onebit::detail::warp_lanes<emulated_warp>;
      for (std::size_t i = 0; i < n; ++i) warp_fibers::run<lanes>(kernel, i);
    });
    if (!Deferred) wait();
  }
  template <class T>
  void copy_in(T* to, const T* from, std::size_t n) const {
    if (n == 0) return;
    stream_->require_no_recording("pageable memory is copied");
    stream_->push([to, values = std::vector<T>(from, from + n)] {
      std::memcpy(to, values.data(), values.size() * sizeof(T));
    });
    if (!Deferred) wait();
  }
  template <class T>
  void copy_out(T* to, const T* from, std::size_t n) const {
    wait();
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
  }
  void wait() const { stream_->wait(); }

  /// As a CUDA graph: captures what f() enqueues, and enqueues it again as often as wanted.
  using recording = std::deque<emulated_stream::task>;
  template <class F>
  [[nodiscard]] recording record(const F& f) const {
    return stream_->record(f);
  }
  void replay(const recording& r) const {
    for (const auto& task : r) stream_->push(task);
  }

 private:
  friend class emulated_memory;
  std::shared_ptr<emulated_stream> stream_ = std::make_shared<emulated_stream>();
};

using emulated = basic_emulated<true>;
using emulated_at_once = basic_emulated<false>;
static_assert(onebit::Backend<emulated> && onebit::Backend<emulated_at_once>);

/// Recorded work by key, for optimizer::step_with: as onebit::cuda_graphs.
class emulated_graphs {
 public:
  explicit emulated_graphs(emulated backend) : backend_(std::move(backend)) {}

  template <class F>
  void operator()(std::uint64_t key, const F& enqueue) {
    entry& e = entries_[key];
    if (!e.seen) {
      enqueue();
      e.seen = true;  // one that throws has not allocated all, and is no first call
      return;
    }
    if (!e.graph) {
      ++n_recorded;
      e.graph = backend_.record(enqueue);
    }
    ++n_replayed;
    backend_.replay(*e.graph);
  }

  /// Graphs recorded so far.
  [[nodiscard]] int size() const {
    int n = 0;
    for (const auto& [key, e] : entries_) n += e.graph ? 1 : 0;
    return n;
  }

  int n_recorded = 0, n_replayed = 0;  ///< calls, also of those that throw

 private:
  struct entry {
    bool seen = false;
    std::optional<emulated::recording> graph;
  };
  emulated backend_;
  std::map<std::uint64_t, entry> entries_;
};

/// How a transport reaches the backend's memory: as onebit::cuda_memory does.
class emulated_memory {
 public:
  static constexpr bool host_can_touch = false;
  explicit emulated_memory(const emulated& backend) : stream_(backend.stream_) {}

  void copy(void* to, const void* from, std::size_t bytes) const {
    stream_->push([=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  void wait() const { stream_->wait(); }
  [[nodiscard]] void* allocate_host(std::size_t bytes) const { return ::operator new(bytes); }
  void free_host(void* p) const noexcept { ::operator delete(p); }

 private:
  std::shared_ptr<emulated_stream> stream_;
};

/// A model for the conformance suites.
struct emulated_model {
  static std::string name() { return "emulated warps"; }
  static bool available() { return true; }
  static emulated make() { return {}; }
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_EMULATED_HPP
