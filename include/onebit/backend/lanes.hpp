// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/element_types.hpp>

/// Reference lane type, which holds a word as 32 floats. All other lane types give the same bits.
///
/// Kernels are written in the operations of a lane type. `value` is a pack of 32 floats. `bits` has
/// one bit per lane, in a form that suits the registers. `fma` is the only multiply-add: the
/// compiler must not contract a product and a sum.
///
/// If a warp runs a kernel call, all its lanes must reach each operation together. Control flow may
/// depend on words, tiles, scalars and results of `fold`, but not on values of single lanes.
namespace onebit { inline namespace v0_3 {

// Kernels are host/device functions. nvcc warns if such a function calls a host function, even in
// an instantiation for host lanes, which only the host runs. Devices run warp_lanes.
#if defined(__CUDACC__)
#define ONEBIT_LANES __host__ __device__
#else
#define ONEBIT_LANES
#endif

namespace detail {

/// Common part of the host lanes: operations that need no vector registers.
struct host_lanes {
  /// Number of words in a value: several in wide_lanes.
  static constexpr unsigned words = 1;
  /// Returns the number of bits set in a word.
  ONEBIT_LANES static std::uint32_t count(std::uint32_t word) {
    std::uint32_t n = 0;
#if !defined(__CUDA_ARCH__)
    n = static_cast<std::uint32_t>(__builtin_popcount(word));
#endif
    return n;
  }
  /// Returns a word with its first n bits set; all for n >= 32.
  ONEBIT_LANES static std::uint32_t first(std::uint32_t n) {
    return n >= 32 ? ~0U : (1U << n) - 1U;
  }
  /// Returns true in exactly one thread of a kernel call: for scalar code that stores.
  ONEBIT_LANES static bool first_lane() { return true; }

  ONEBIT_LANES static float abs_scalar(float x) { return std::fabs(x); }
  /// Stores one scalar per kernel call. On a warp, one of the 32 threads stores.
  template <class T>
  ONEBIT_LANES static void store_scalar(T* p, T x) {
    *p = x;
  }
  // With builtins, since libc++ has std::atomic_ref only from version 19 on.

  /// Sets a flag to 1, atomically: several kernel calls may do so at once.
  ONEBIT_LANES static void raise(std::uint32_t* flag) {
#if !defined(__CUDA_ARCH__)
    __atomic_store_n(flag, 1U, __ATOMIC_RELAXED);
#endif
  }
  /// Adds 1 to `count`, atomically. Returns true in the last of n calls, which sees everything that
  /// the other calls wrote, and resets `count` to 0.
  ONEBIT_LANES static bool last_of(std::size_t n, std::uint32_t* count) {
    bool last = false;
#if !defined(__CUDA_ARCH__)
    last = __atomic_add_fetch(count, 1U, __ATOMIC_ACQ_REL) == n;
    if (last) __atomic_store_n(count, 0U, __ATOMIC_RELAXED);
#endif
    return last;
  }
  /// For loops over indices without lanes: first index of this thread, and stride. `any`: true if
  /// `own` is true in any thread of the kernel call.
  ONEBIT_LANES static std::uint32_t own_index() { return 0; }
  ONEBIT_LANES static std::uint32_t n_indices() { return 1; }
  ONEBIT_LANES static bool any(bool own) { return own; }

  /// Sums in the fixed order of the format: lane l of 32 adds p[l], p[l + 32], ... in double, then
  /// the lanes are folded in halves of 16, 8, 4, 2, 1.
  template <class T>
  ONEBIT_LANES static double sum(const T* p, std::size_t n) {
    double lane[32] = {};
    for (std::size_t i = 0; i < n; ++i) lane[i % 32] += static_cast<double>(p[i]);
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    return lane[0];
  }
  /// Returns the sum of n counts, modulo 2^64.
  template <class T>
  ONEBIT_LANES static std::uint64_t sum_counts(const T* p, std::size_t n) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) total += p[i];
    return total;
  }
  /// Returns the largest of n values and `least`. If the result is a zero and `least` is negative,
  /// the sign of the zero depends on the lane type.
  ONEBIT_LANES static float largest(const float* p, std::size_t n, float least) {
    float m = least;
    for (std::size_t i = 0; i < n; ++i) m = p[i] > m ? p[i] : m;
    return m;
  }

 protected:
  /// Converts the first n of 32 elements; the others become 0. For lanes without a faster way.
  template <detail::Storable T>
  ONEBIT_LANES static void widen(float (&to)[32], const T* p, std::uint32_t n) {
    for (std::uint32_t l = 0; l < 32; ++l) to[l] = l < n ? to_float(p[l]) : 0.0F;
  }
  template <detail::Storable T>
  ONEBIT_LANES static void narrow(T* p, const float (&from)[32], std::uint32_t n) {
    for (std::uint32_t l = 0; l < 32 && l < n; ++l) p[l] = from_float<T>(from[l]);
  }
};

}  // namespace detail

// If other lanes exist, portable lanes run only rare kernels, and machines from before 2013. Their
// operations are not inlined: each kernel would compile them again without being faster, since 32
// floats fit in no register. They are not cold, so that loops over lanes are vectorized.
#if (defined(__x86_64__) || defined(_M_X64) || defined(__aarch64__)) && !defined(__CUDACC__)
#define ONEBIT_PORTABLE [[gnu::noinline]]
#else
#define ONEBIT_PORTABLE ONEBIT_LANES
#endif

namespace detail {

struct portable_lanes : host_lanes {
  struct value {
    float lane[32];
  };
  using bits = std::uint32_t;

  ONEBIT_PORTABLE static bits load_bits(const std::uint32_t* p) { return *p; }
  ONEBIT_PORTABLE static void store_bits(std::uint32_t* p, bits b) { *p = b; }

  ONEBIT_PORTABLE static value set(float x) {
    value r;
    for (float& lane : r.lane) lane = x;
    return r;
  }
  ONEBIT_PORTABLE static value load(const float* p) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = p[l];
    return r;
  }
  ONEBIT_PORTABLE static value load(const float* p, std::uint32_t n) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l) r.lane[l] = l < n ? p[l] : 0.0F;
    return r;
  }
  ONEBIT_PORTABLE static void store(float* p, const value& v) {
    for (int l = 0; l < 32; ++l) p[l] = v.lane[l];
  }
  ONEBIT_PORTABLE static void store(float* p, const value& v, std::uint32_t n) {
    for (std::uint32_t l = 0; l < n; ++l) p[l] = v.lane[l];
  }
  /// Loads and converts the first n elements (all 32 if n >= 32) of any type; other lanes are 0.
  template <detail::Storable T>
  ONEBIT_PORTABLE static value load_as(const T* p, std::uint32_t n) {
    value r;
    widen(r.lane, p, n);
    return r;
  }
  /// Stores the first n lanes (all 32 if n >= 32), rounded to any element type.
  template <detail::Storable T>
  ONEBIT_PORTABLE static void store_as(T* p, const value& v, std::uint32_t n) {
    narrow(p, v.lane, n);
  }
  /// Returns a in lanes where a, rounded to T, equals b; else b. For NaN returns b.
  template <detail::Storable T>
  ONEBIT_PORTABLE static value unrounded(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = onebit::detail::unrounded<T>(a.lane[l], b.lane[l]);
    return r;
  }
  /// Applies onebit::detail::stochastic_bf16, in lane l with key + l.
  ONEBIT_PORTABLE static value stochastic_bf16(const value& a, std::uint32_t key) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l)
      r.lane[l] = onebit::detail::stochastic_bf16(a.lane[l], key + l);
    return r;
  }
  /// Loads a word of squares: see place_of_square.
  ONEBIT_PORTABLE static value load_squares(const bf16* p) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l) r.lane[l] = to_float(p[place_of_square(l)]);
    return r;
  }
  /// Rounds by stochastic_square, at random by the hash of `key`, and stores a word of squares.
  ONEBIT_PORTABLE static void store_squares(bf16* p, const value& a, std::uint32_t key) {
    const std::uint32_t random = random_of_word(key);
    for (std::uint32_t l = 0; l < 32; ++l)
      p[place_of_square(l)] =
          onebit::detail::stochastic_square(a.lane[l], random_of_square(l, random));
  }
  /// Applies onebit::detail::stochastic_power_of_two, in lane l with key + l.
  ONEBIT_PORTABLE static value stochastic_power_of_two(const value& a, std::uint32_t key) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l)
      r.lane[l] = onebit::detail::stochastic_power_of_two(a.lane[l], key + l);
    return r;
  }
  /// Adds the bits of v to a digest, by lane: a change of one value changes the digest.
  ONEBIT_PORTABLE static value digest(const value& so_far, const value& v) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = digest_step(so_far.lane[l], v.lane[l]);
    return r;
  }
  /// Returns true if a and b have the same bits in all lanes.
  ONEBIT_PORTABLE static bool same_bits(const value& a, const value& b) {
    std::uint32_t other = 0;
    for (int l = 0; l < 32; ++l) {
      other |= __builtin_bit_cast(std::uint32_t, a.lane[l]) ^
               __builtin_bit_cast(std::uint32_t, b.lane[l]);
    }
    return other == 0;
  }
  ONEBIT_PORTABLE static value add(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] + b.lane[l];
    return r;
  }
  ONEBIT_PORTABLE static value sub(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] - b.lane[l];
    return r;
  }
  ONEBIT_PORTABLE static value mul(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] * b.lane[l];
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
    __asm__("" : "+m"(r));  // hides the product: it must not be contracted with a later sum
#endif
    return r;
  }
  ONEBIT_PORTABLE static value div(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] / b.lane[l];
    return r;
  }
  /// Returns the larger of a and b; b if either is NaN.
  ONEBIT_PORTABLE static value(max)(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
    return r;
  }
  ONEBIT_PORTABLE static value sqrt(const value& a) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = std::sqrt(a.lane[l]);
    return r;
  }
  ONEBIT_PORTABLE static value abs(const value& a) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = std::fabs(a.lane[l]);
    return r;
  }
  /// Returns a * b + c, rounded once.
  ONEBIT_PORTABLE static value fma(const value& a, const value& b, const value& c) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
    return r;
  }
  /// Clamps a to [-most, most], most > 0. NaN becomes -most, and -0 becomes +0.
  ONEBIT_PORTABLE static value bound(const value& a, float most) {
    value r;
    for (int l = 0; l < 32; ++l) {
      const float x = a.lane[l] > -most ? a.lane[l] : -most;
      r.lane[l] = (x < most ? x : most) + 0.0F;
    }
    return r;
  }
  /// Returns bits of the lanes with v >= 0: set for both zeros, clear for NaN.
  ONEBIT_PORTABLE static bits not_negative(const value& v) {
    bits r = 0;
    for (int l = 0; l < 32; ++l) r |= static_cast<bits>(v.lane[l] >= 0.0F) << l;
    return r;
  }
  /// Returns bits of the lanes with v > 0.
  ONEBIT_PORTABLE static bits positive(const value& v) {
    bits r = 0;
    for (int l = 0; l < 32; ++l) r |= static_cast<bits>(v.lane[l] > 0.0F) << l;
    return r;
  }
  ONEBIT_PORTABLE static value select(bits b, const value& yes, const value& no) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = ((b >> l) & 1U) != 0 ? yes.lane[l] : no.lane[l];
    return r;
  }
  /// Returns s in lanes with the bit set, else -s.
  ONEBIT_PORTABLE static value with_sign(bits b, const value& s) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = ((b >> l) & 1U) != 0 ? s.lane[l] : -s.lane[l];
    return r;
  }
  /// Returns s in lanes with a >= 0, else -s.
  ONEBIT_PORTABLE static value with_sign_of(const value& a, const value& s) {
    return with_sign(not_negative(a), s);
  }
  /// Returns v in lanes with the bit set, else +0, even if v is NaN.
  ONEBIT_PORTABLE static value keep(bits b, const value& v) { return select(b, v, set(0.0F)); }
  /// Sums over the lanes, folded in halves of 16, 8, 4, 2, 1.
  ONEBIT_PORTABLE static float fold(value v) {
    for (int half = 16; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) v.lane[l] += v.lane[l + half];
    }
    return v.lane[0];
  }
  ONEBIT_PORTABLE static float fold_max(value v) {
    for (int half = 16; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) {
        v.lane[l] = v.lane[l] > v.lane[l + half] ? v.lane[l] : v.lane[l + half];
      }
    }
    return v.lane[0];
  }
  /// Returns the largest magnitude, compared as integers: with NaN the result is a NaN.
  ONEBIT_PORTABLE static float fold_size(const value& v) {
    std::uint32_t most = 0;
    for (const float x : v.lane) {
      const std::uint32_t size = __builtin_bit_cast(std::uint32_t, x) & 0x7FFFFFFFU;
      most = size > most ? size : most;
    }
    return __builtin_bit_cast(float, most);
  }
};

}  // namespace detail

#undef ONEBIT_PORTABLE
#undef ONEBIT_LANES

}}  // namespace onebit
