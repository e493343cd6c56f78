// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__linux__)
#include <sys/mman.h>

#include <cerrno>
#endif

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <onebit/backend/lanes.hpp>
#include <onebit/backend/strict_math.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/cpu.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/launch.hpp>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Host backend: runs kernels with the best instruction set of this machine, on a given number of
/// threads.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Fork-join team of n threads over an index range: the calling thread works on one share, n - 1
/// threads on the others. Calls do not allocate. The split does not affect results.
class thread_team {
 public:
  using task = void (*)(const void* context, std::size_t begin, std::size_t end);
  /// Shorter ranges run on the calling thread: waking threads would cost more.
  static constexpr std::size_t smallest = 8;

  [[gnu::cold]] explicit thread_team(int n_threads) {
    try {
      for (int i = 1; i < n_threads; ++i) {
        threads_.emplace_back([this, i] { work(static_cast<std::size_t>(i)); });
      }
    } catch (...) {  // a thread could not be started
      stop();
      throw;
    }
  }
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;
  ~thread_team() { stop(); }

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Runs the whole range on the calling thread.
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
  /// Runs one share. If it throws (a user's codec may), it ends early. Other shares go on, since
  /// they use the same kernel; `run` rethrows the first exception when all have ended.
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
  std::mutex callers_;  ///< held by `run`: ranks that share a team take turns
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::size_t round_ = 0, running_ = 0, n_ = 0;
  task task_ = nullptr;
  const void* context_ = nullptr;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}}}  // namespace onebit::detail

// nvcc must not instantiate host/device kernels with types that hold vector registers. Under nvcc
// the host backend uses portable lanes, and is another type (inline namespace) than in plain C++.
#if (defined(__x86_64__) || defined(_M_X64)) && !defined(__CUDACC__)
#define ONEBIT_HOST_SIMD 1
#define ONEBIT_RARE [[gnu::cold]]  // rare kernels, and machines from before 2013
#define ONEBIT_BEST_LANES avx2_lanes
#define ONEBIT_BEST_TARGET [[gnu::target("avx2,fma")]]
#include <onebit/backend/lanes_avx2.hpp>
#elif defined(__aarch64__) && !defined(__CUDACC__)
// No other processor: riscv64 without vectors executes more of vector lanes than of portable ones,
// and x86-64 without AVX2 hardly less, since both call fmaf.
#define ONEBIT_HOST_SIMD 1
#define ONEBIT_RARE [[gnu::cold]]
#define ONEBIT_BEST_LANES vector_lanes
#define ONEBIT_BEST_TARGET  // all machines have NEON
#include <onebit/backend/lanes_vector.hpp>
#else
#define ONEBIT_HOST_SIMD 0
#define ONEBIT_RARE
#endif

namespace onebit { inline namespace v0_3 {

/// Instruction sets of the host backend: plain C++, which every machine has; AVX2 with FMA, of
/// x86-64; the compiler's vector types, of aarch64 (NEON). All give the same bits.
enum class isa : std::uint8_t { scalar, avx2, vector };

/// Returns the name of an instruction set.
[[nodiscard]] constexpr std::string_view to_string(isa i) {
  return i == isa::avx2 ? "avx2" : i == isa::vector ? "vector" : "scalar";
}

namespace detail {

/// Asks Linux for huge pages within a block that is new. A pass reads more streams than the TLB and
/// the prefetchers, which stop at the end of a page, follow through small pages. No promise: if the
/// system has none, or none left, the pages stay small.
inline void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20U;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t skipped = (page - at % page) % page;  // asks for whole pages only
  if (bytes < skipped + page) return;
  const int before = errno;
  ::madvise(static_cast<std::byte*>(data) + skipped, (bytes - skipped) / page * page,
            MADV_HUGEPAGE);
  errno = before;
#endif
}

/// Block of zeroed bytes, 64-byte aligned; movable.
class host_block {
 public:
  host_block() = default;
  [[gnu::cold]] explicit host_block(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    data_ = ::operator new(bytes, alignment);
    prefer_huge_pages(data_, bytes);
    std::memset(data_, 0, bytes);
  }
  host_block(host_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  [[gnu::cold, gnu::noinline]] host_block& operator=(host_block&& other) noexcept {
    host_block old(std::move(other));
    std::swap(data_, old.data_);
    std::swap(bytes_, old.bytes_);
    return *this;
  }
  [[gnu::cold, gnu::noinline]] ~host_block() { ::operator delete(data_, alignment); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t alignment{64};
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Buffer of n zeroed objects of T, 64-byte aligned; movable. Assigning `{}` frees the memory.
template <class T>
class host_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "onebit: buffers hold trivially copyable types");

 public:
  host_buffer() = default;
  /// @{
  /// Buffer operations of the Backend concept.
  explicit host_buffer(std::size_t n) : block_(n * sizeof(T)) {}
  [[nodiscard]] T* data() { return static_cast<T*>(block_.data()); }
  [[nodiscard]] const T* data() const { return static_cast<const T*>(block_.data()); }
  [[nodiscard]] std::size_t size() const { return block_.bytes() / sizeof(T); }
  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }
  /// @}

 private:
  detail::host_block block_;
};

}  // namespace detail

#if ONEBIT_HOST_SIMD
inline namespace host_simd {
#else
inline namespace host_portable {
#endif

/// Runs kernels on this machine's cores, on any number of threads, with an instruction set chosen
/// at run time. Results have the same bits for every choice, and for every rounding or denormal
/// mode of the calling thread. A handle: copies share the threads.
class host {
 public:
  /// `launch` returns after its kernels have run.
  static constexpr bool deferred = false;

  /// Returns the best instruction set that this machine has.
  [[nodiscard, gnu::cold]] static isa best_isa() {
#if ONEBIT_HOST_SIMD && defined(__aarch64__)
    return isa::vector;
#else
#if ONEBIT_HOST_SIMD
    if (detail::this_cpu().avx2_fma) return isa::avx2;
#endif
    return isa::scalar;
#endif
  }

  host() : host(1) {}  ///< one thread per rank
  /// Uses `threads` threads per rank, including the calling one. Throws invalid_input if
  /// `threads` is below 1, if `set` is not supported by this machine or compiler, or if the
  /// compiler has changed the arithmetic of kernels, as parts of -ffast-math let it. (The first
  /// host of a process looks: half a microsecond, once its code is in memory.)
  [[gnu::cold]] explicit host(int threads, isa set = best_isa()) : isa_(set) {
    if (threads < 1) {
      throw invalid_input(detail::error_text("host: ", threads, " threads; must be at least 1"));
    }
    if (set != isa::scalar && set != best_isa()) {
      throw invalid_input(detail::error_text("host: this machine has no ", to_string(set),
                                             "; its best is ", to_string(best_isa())));
    }
    [[maybe_unused]] static const bool strict = [this] {
      detail::require_strict_math([this](const auto& kernel) { launch(1, kernel); });
      return true;
    }();
    if (threads > 1) team_ = std::make_shared<detail::thread_team>(threads);
  }

  [[nodiscard]] isa instruction_set() const { return isa_; }               ///< in use
  [[nodiscard]] int threads() const { return team_ ? team_->size() : 1; }  ///< including the caller

  /// Returns a buffer of n zeroed objects.
  template <class T>
  [[nodiscard]] detail::host_buffer<T> make_buffer(std::size_t n) const {
    return detail::host_buffer<T>(n);
  }

  /// Copies n objects into a buffer, with memcpy.
  template <class T>
  void copy_in(T* to, const T* from, std::size_t n) const {
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
  }
  /// Copies n objects out of a buffer, with memcpy.
  template <class T>
  void copy_out(T* to, const T* from, std::size_t n) const {
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
  }
  /// Does nothing: `launch` has already waited.
  void wait() const {}

  /// Calls kernel(L{}, i) for each i in [0, n) and waits. Does not allocate.
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    run(n, task_of<Kernel>(), &kernel);
  }

 private:
  using task = detail::thread_team::task;

  [[gnu::noinline]] void run(std::size_t n, task f, const void* kernel) const {
    if (team_) {
      team_->run(n, f, kernel);
    } else {
      detail::thread_team::run_here(n, f, kernel);
    }
  }
  template <class Kernel>
  [[nodiscard]] task task_of() const {
    if constexpr (detail::SerialKernel<Kernel>) {
      return &run_serial<Kernel>;
    } else if constexpr (detail::OneIsaKernel<Kernel>) {
      return &run_portable<Kernel>;
    } else {
#if ONEBIT_HOST_SIMD
      if (isa_ != isa::scalar) return &run_best<Kernel>;
#endif
      return &run_portable<Kernel>;
    }
  }
  template <class Kernel>
  static void run_serial(const void* kernel, std::size_t begin, std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(detail::host_lanes{}, i);
  }
  template <class Kernel>
  ONEBIT_RARE static void run_portable(const void* kernel, std::size_t begin, std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(detail::portable_lanes{}, i);
  }
#if ONEBIT_HOST_SIMD
  template <class Kernel>
  ONEBIT_BEST_TARGET static void run_best(const void* kernel, std::size_t begin, std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(detail::ONEBIT_BEST_LANES{}, i);
  }
#endif

  isa isa_;
  std::shared_ptr<detail::thread_team> team_;
};

}  // inline namespace

static_assert(Backend<host>);

}}  // namespace onebit

#undef ONEBIT_BEST_TARGET
#undef ONEBIT_BEST_LANES
#undef ONEBIT_RARE
#undef ONEBIT_HOST_SIMD
