// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

/// The vocabulary of the library: what each policy promises.
///
/// word     32 elements of the flat axis; one uint32_t of signs, bit i is element i
/// tile     at most 4096 elements of one tensor in one chunk: the unit of work and of partial sums
/// chunk    the contiguous words that one rank serves (averages) in gather-scatter
/// slot     the bytes that one rank sends to another in one collective

/// major * 10000 + minor * 100 + patch
#define ONEBIT_VERSION 100

/// Marks per-element arithmetic: compiled for the host (inlined into a runner that carries the
/// target attribute of one instruction set) and, under nvcc, for the device.
#if defined(__CUDACC__)
#define ONEBIT_HD __host__ __device__ __forceinline__
#else
#define ONEBIT_HD __attribute__((always_inline)) inline
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "onebit detects non-finite gradients and promises equal bits: compile without -ffast-math"
#endif

namespace onebit {

inline constexpr std::size_t word_elements = 32;
inline constexpr std::size_t tile_elements = 4096;
inline constexpr std::size_t tile_words = tile_elements / word_elements;

struct tile;  // layout.hpp

namespace detail {

/// Lanes that only exist in concepts: stands for whatever a backend hands to a kernel.
struct any_lanes {
  struct value {};
  struct bits {};
  static value set(float);
  static value load(const float*);
  static void store(float*, const value&);
  static value add(const value&, const value&);
  static value fma(const value&, const value&, const value&);
  static value select(const bits&, const value&, const value&);
  static bits not_negative(const value&);
  static bits load_bits(const std::uint32_t*);
  static void store_bits(std::uint32_t*, const bits&);
};

struct any_kernel {
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {}
};

}  // namespace detail

/// What one step does. Every rank gets the same plan from the same numbers.
struct step_plan {
  bool average_gradient = true;  ///< exact mean of the gradients
  bool exchange = false;         ///< compressed exchange of the rule's message
                                 ///< neither: a local step, for rules that have one
};

/// Was a step called off by a rank that saw a non-finite value?
enum class outcome : std::uint8_t {
  agreed,
  skipped,
  pending  ///< on a backend that runs behind the host: not known yet
};

/// Where arithmetic runs. `launch(n, kernel)` calls `kernel(L{}, i)` for i in [0, n), L being the
/// backend's lanes: on the host a pack of 32 floats, on CUDA one float per thread of a warp.
/// `make_buffer<T>(n)` gives n zeroed objects, 64-byte aligned, owned, movable: `.data()`,
/// `.size()`, `.bytes()`. `deferred` says that launch may return before the kernels have run, that
/// is in order, and that the host must not touch buffers: `copy_in(to, from, n)` brings n objects
/// into a buffer, `copy_out(to, from, n)` waits for all kernels and fetches n objects.
template <class B>
concept Backend = requires(B backend, std::size_t n, const detail::any_kernel& kernel, float* to,
                           const float* from) {
  backend.launch(n, kernel);
  { B::deferred } -> std::convertible_to<bool>;
  backend.copy_in(to, from, n);
  backend.copy_out(to, from, n);
  { backend.template make_buffer<float>(n).data() } -> std::same_as<float*>;
  { backend.template make_buffer<float>(n).size() } -> std::convertible_to<std::size_t>;
};

/// How bytes travel between `size()` ranks. All three operations are collective and take buffers
/// that do not overlap; slot i of `send` goes to rank i, slot i of `receive` came from it. They
/// wait, or, with a deferred backend, are ordered with its kernels.
///
/// A transport may also have `start_all_to_all` and `start_all_gather`, which return a request with
/// `wait()` and `test()` (for buckets that travel while others are encoded); `split(color, key)`
/// (for hierarchical collectives); and `host_all_gather`, where all_gather takes device memory.
template <class T>
concept Transport = requires(T transport, const void* send, void* receive, std::size_t slot_bytes,
                             float* data, std::size_t n) {
  { transport.rank() } -> std::convertible_to<int>;
  { transport.size() } -> std::convertible_to<int>;
  transport.all_to_all(send, receive, slot_bytes);
  transport.all_gather(send, receive, slot_bytes);
  transport.all_reduce_sum(data, n);
};

/// A compressor whose codec works word by word and fuses into the passes that produce and use the
/// values: `sign`, `identity`. See compress/sign.hpp for what each member means.
template <class C>
concept WordCompressor = requires(const C c, std::byte* out, const std::byte* in, double statistic,
                                  std::uint64_t n, const detail::any_lanes::value& v) {
  { C::word_bytes } -> std::convertible_to<std::size_t>;
  { C::scaled } -> std::convertible_to<bool>;
  { C::carries } -> std::convertible_to<bool>;
  c.scale_granularity();
  { c.scale(statistic, n) } -> std::convertible_to<float>;
  c.template encode<detail::any_lanes>(out, v);
  { c.template decode<detail::any_lanes>(in, 1.0F) } -> std::same_as<detail::any_lanes::value>;
  { c.template accumulate<detail::any_lanes>(v, v) } -> std::same_as<detail::any_lanes::value>;
  { c.template residual<detail::any_lanes>(v, 1.0F) } -> std::same_as<detail::any_lanes::value>;
};

/// The short way to write a compressor: a codec for one tile of at most 4096 floats. Its message
/// has `tile_bytes(n)` bytes, whatever the values. The residual is kept for it (error feedback).
template <class C>
concept TileCompressor = requires(const C c, const float* values, std::size_t n, std::byte* out,
                                  const std::byte* in, float* decoded) {
  { c.tile_bytes(n) } -> std::convertible_to<std::size_t>;
  c.encode(values, n, out);
  c.decode(in, n, decoded);
};

template <class C>
concept Compressor = WordCompressor<C> || TileCompressor<C>;

/// One call per requirement, so that a compiler says in words what is missing.
template <class C>
consteval void check_compressor() {
  static_assert(Compressor<C>,
                "onebit: this type is no Compressor: write either the three members of a "
                "TileCompressor: tile_bytes(n), encode(values, n, out), decode(in, n, values), all "
                "const, or the members of a WordCompressor as in onebit/compress/sign.hpp");
}

template <class T>
consteval void check_transport() {
  static_assert(
      requires(T t) {
        { t.rank() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int rank() is missing");
  static_assert(
      requires(T t) {
        { t.size() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int size() is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_to_all(s, r, n); },
      "onebit: this type is no Transport: all_to_all(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_gather(s, r, n); },
      "onebit: this type is no Transport: all_gather(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, float* d, std::size_t n) { t.all_reduce_sum(d, n); },
      "onebit: this type is no Transport: all_reduce_sum(float* data, std::size_t n) is "
      "missing");
}

template <class B>
consteval void check_backend() {
  static_assert(Backend<B>,
                "onebit: this type is no Backend: it needs launch(n, kernel), make_buffer<T>(n), "
                "copy_in(to, from, n), copy_out(to, from, n) and a static bool `deferred` as in "
                "onebit/backend/host.hpp");
}

/// The name of a policy, as checkpoints and error messages tell it: its `name()`, if it has one.
template <class Policy>
[[nodiscard]] std::string policy_name(const Policy& policy) {
  if constexpr (requires { std::string(policy.name()); }) {
    return policy.name();
  } else {
    return "custom";
  }
}

}  // namespace onebit
