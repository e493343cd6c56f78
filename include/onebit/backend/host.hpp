// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <onebit/backend/lanes.hpp>
#include <onebit/backend/thread_team.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <string_view>
#include <type_traits>
#include <utility>

// A host/device kernel must not meet a type that holds a vector register: under nvcc the host
// backend runs on the portable lanes, and is another type (another inline namespace) than in C++.
#if (defined(__x86_64__) || defined(_M_X64)) && !defined(__CUDACC__)
#define ONEBIT_HOST_SIMD 1
#include <onebit/backend/lanes_avx2.hpp>
#include <onebit/backend/lanes_avx512.hpp>
#else
#define ONEBIT_HOST_SIMD 0
#endif

namespace onebit {

/// The instruction sets of the host backend. All give the same bits.
enum class isa : std::uint8_t { scalar, avx2, avx512 };

[[nodiscard]] constexpr std::string_view to_string(isa i) {
  return i == isa::avx512 ? "avx512" : i == isa::avx2 ? "avx2" : "scalar";
}

/// n objects of T, zeroed, 64-byte aligned; movable. Freed on destruction or by assigning `{}`.
template <class T>
class host_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "onebit: buffers hold trivially copyable types");

 public:
  host_buffer() = default;
  explicit host_buffer(std::size_t n) : size_(n) {
    if (n == 0) return;
    data_.reset(static_cast<T*>(::operator new(n * sizeof(T), alignment)));
    for (std::size_t i = 0; i < n; ++i) ::new (static_cast<void*>(data_.get() + i)) T{};
  }
  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }

  host_buffer(host_buffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  host_buffer& operator=(host_buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

 private:
  static constexpr std::align_val_t alignment{64};
  struct deleter {
    void operator()(T* p) const { ::operator delete(static_cast<void*>(p), alignment); }
  };
  std::unique_ptr<T, deleter> data_;
  std::size_t size_ = 0;
};

#if ONEBIT_HOST_SIMD
inline namespace host_simd {
#else
inline namespace host_portable {
#endif

/// Runs kernels on this machine's cores: instruction set chosen at run time, any number of threads,
/// the same bits for every choice. A handle: copies share the threads.
class host {
 public:
  /// `launch` waits for its kernels.
  static constexpr bool deferred = false;

  /// The best instruction set that this machine has.
  [[nodiscard]] static isa best_isa() {
#if ONEBIT_HOST_SIMD
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("fma")) {
      return isa::avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return isa::avx2;
#endif
    return isa::scalar;
  }

  /// `threads` per rank, the caller included. Throws invalid_input when threads < 1 or this machine
  /// (or this compiler) has no such instruction set.
  explicit host(int threads = 1, isa set = best_isa()) : isa_(set) {
    if (threads < 1) {
      throw invalid_input(detail::message("host: ", threads, " threads; must be at least 1"));
    }
    if (set > best_isa()) {
      throw invalid_input(detail::message("host: this machine has no ", to_string(set),
                                          "; its best is ", to_string(best_isa())));
    }
    if (threads > 1) team_ = std::make_shared<detail::thread_team>(threads);
  }

  [[nodiscard]] isa instruction_set() const { return isa_; }
  [[nodiscard]] int threads() const { return team_ ? team_->size() : 1; }

  template <class T>
  [[nodiscard]] host_buffer<T> make_buffer(std::size_t n) const {
    return host_buffer<T>(n);
  }

  /// Copies n objects into a buffer, or out of one: here all memory is the host's.
  template <class T>
  void copy_in(T* to, const T* from, std::size_t n) const {
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
  }
  template <class T>
  void copy_out(T* to, const T* from, std::size_t n) const {
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
  }
  /// Waits for what was launched: nothing here.
  void wait() const {}

  /// Calls kernel(L{}, i) for i in [0, n) and waits. No allocation.
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    using task = detail::thread_team::task;
    task f = &run_portable<Kernel>;
#if ONEBIT_HOST_SIMD
    if (isa_ == isa::avx512) f = &run_avx512<Kernel>;
    if (isa_ == isa::avx2) f = &run_avx2<Kernel>;
#endif
    if (team_) {
      team_->run(n, f, &kernel);
    } else {
      f(&kernel, 0, n);
    }
  }

 private:
  template <class Kernel>
  static void run_portable(const void* kernel, std::size_t begin, std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(portable_lanes{}, i);
  }
#if ONEBIT_HOST_SIMD
  template <class Kernel>
  [[gnu::target("avx2,fma")]] static void run_avx2(const void* kernel, std::size_t begin,
                                                   std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(avx2_lanes{}, i);
  }
  template <class Kernel>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]] static void run_avx512(
      const void* kernel, std::size_t begin, std::size_t end) {
    const Kernel& k = *static_cast<const Kernel*>(kernel);
    for (std::size_t i = begin; i < end; ++i) k(avx512_lanes{}, i);
  }
#endif

  isa isa_;
  std::shared_ptr<detail::thread_team> team_;
};

}  // inline namespace

static_assert(Backend<host>);

}  // namespace onebit

#undef ONEBIT_HOST_SIMD
