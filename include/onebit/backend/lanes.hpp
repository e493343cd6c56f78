// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>

/// The reference lanes: a word as 32 plain floats. Every other lane type gives the same bits.
///
/// The operations are what kernels are written in. `value` is a pack of 32 floats, `bits` one bit
/// per lane, in whatever form the registers like it. There is no way to write a multiply-add but
/// `fma`, so nothing is left to contraction.
///
/// Where one warp runs a kernel call, all its lanes must reach an operation together: control flow
/// may depend on words, tiles, scalars and what `fold` gave, not on a lane.
namespace onebit::inline v0_2 {

// Kernels are host/device functions, and nvcc warns where one of those calls a host function, even
// in an instantiation that only the host runs. What runs on the device is warp_lanes.
#if defined(__CUDACC__)
#define ONEBIT_LANES __host__ __device__
#else
#define ONEBIT_LANES
#endif

/// What all host lanes share: scalars, bits and sums that need no vector registers.
struct host_lanes {
  /// How many words a value holds: one here, several in wide_lanes.
  static constexpr unsigned words = 1;
  /// The number of bits set in a word.
  ONEBIT_LANES static std::uint32_t count(std::uint32_t word) {
    std::uint32_t n = 0;
#if !defined(__CUDA_ARCH__)
    n = static_cast<std::uint32_t>(__builtin_popcount(word));
#endif
    return n;
  }
  /// A word with its first n bits set, n <= 32.
  ONEBIT_LANES static std::uint32_t first(std::uint32_t n) {
    return n >= 32 ? ~0U : (1U << n) - 1U;
  }
  /// True once per kernel call, whatever the number of lanes: for plain code that stores.
  ONEBIT_LANES static bool first_lane() { return true; }

  ONEBIT_LANES static float abs_scalar(float x) { return std::fabs(x); }
  /// One scalar per kernel call, whatever the number of lanes.
  template <class T>
  ONEBIT_LANES static void store_scalar(T* p, T x) {
    *p = x;
  }
  // Built in where std::atomic_ref is not: libc++ has it from version 19 on.

  /// Sets a flag that several kernel calls may raise at once.
  ONEBIT_LANES static void raise(std::uint32_t* flag) {
#if !defined(__CUDA_ARCH__)
    __atomic_store_n(flag, 1U, __ATOMIC_RELAXED);
#endif
  }
  /// Adds a call to `count`. True for the last of n, which sees what the others wrote and finds
  /// `count` at 0 again.
  ONEBIT_LANES static bool last_of(std::size_t n, std::uint32_t* count) {
    bool last = false;
#if !defined(__CUDA_ARCH__)
    last = __atomic_add_fetch(count, 1U, __ATOMIC_ACQ_REL) == n;
    if (last) __atomic_store_n(count, 0U, __ATOMIC_RELAXED);
#endif
    return last;
  }
  /// Where each lane may go on its own, in plain code: the first index of this one, and how many
  /// there are; and whether one of them says true.
  ONEBIT_LANES static std::uint32_t own_index() { return 0; }
  ONEBIT_LANES static std::uint32_t n_indices() { return 1; }
  ONEBIT_LANES static bool any(bool own) { return own; }

  /// Sum in the fixed order of the format: lane l of 32 adds p[l], p[l + 32], ... in double, then
  /// the lanes fold 16, 8, 4, 2, 1.
  template <class T>
  ONEBIT_LANES static double sum(const T* p, std::size_t n) {
    double lane[32] = {};
    for (std::size_t i = 0; i < n; ++i) lane[i % 32] += static_cast<double>(p[i]);
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    return lane[0];
  }
  /// Sum of n counts, modulo 2^64.
  template <class T>
  ONEBIT_LANES static std::uint64_t sum_counts(const T* p, std::size_t n) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) total += p[i];
    return total;
  }
  /// The largest of n values, at least `least`. (Which zero, where only zeros reach it and `least`
  /// is negative, depends on the lanes.)
  ONEBIT_LANES static float largest(const float* p, std::size_t n, float least) {
    float m = least;
    for (std::size_t i = 0; i < n; ++i) m = p[i] > m ? p[i] : m;
    return m;
  }

 protected:
  /// The first n of 32 elements as floats, the others 0: for lanes without a faster way.
  template <Storable T>
  ONEBIT_LANES static void widen(float (&to)[32], const T* p, std::uint32_t n) {
    for (std::uint32_t l = 0; l < 32; ++l) to[l] = l < n ? to_float(p[l]) : 0.0F;
  }
  template <Storable T>
  ONEBIT_LANES static void narrow(T* p, const float (&from)[32], std::uint32_t n) {
    for (std::uint32_t l = 0; l < 32 && l < n; ++l) p[l] = from_float<T>(from[l]);
  }
};

// Where there are others, these run rare kernels, and all of machines from before 2013: operations
// are called, since every kernel would compile them once more, and none be faster for it (32 floats
// are no register). Not cold: the loops over lanes become vectors.
#if (defined(__x86_64__) || defined(_M_X64)) && !defined(__CUDACC__)
#define ONEBIT_PORTABLE [[gnu::noinline]]
#else
#define ONEBIT_PORTABLE ONEBIT_LANES
#endif

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
  /// The first n elements of any type (all 32 where n >= 32), converted; the other lanes are 0.
  template <Storable T>
  ONEBIT_PORTABLE static value load_as(const T* p, std::uint32_t n) {
    value r;
    widen(r.lane, p, n);
    return r;
  }
  /// Stores the first n lanes (all 32 where n >= 32), rounded to any element type.
  template <Storable T>
  ONEBIT_PORTABLE static void store_as(T* p, const value& v, std::uint32_t n) {
    narrow(p, v.lane, n);
  }
  /// a where it rounds to b, a value of T; b where not. Of NaN b.
  template <Storable T>
  ONEBIT_PORTABLE static value unrounded(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = onebit::unrounded<T>(a.lane[l], b.lane[l]);
    return r;
  }
  /// stochastic_bf16 of lane l with key + l.
  ONEBIT_PORTABLE static value stochastic_bf16(const value& a, std::uint32_t key) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l) r.lane[l] = onebit::stochastic_bf16(a.lane[l], key + l);
    return r;
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
    __asm__("" : "+m"(r));  // opaque: a product must not be contracted with a sum that follows
#endif
    return r;
  }
  ONEBIT_PORTABLE static value div(const value& a, const value& b) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = a.lane[l] / b.lane[l];
    return r;
  }
  /// The larger; b where either is NaN.
  ONEBIT_PORTABLE static value max(const value& a, const value& b) {
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
  /// a * b + c, rounded once.
  ONEBIT_PORTABLE static value fma(const value& a, const value& b, const value& c) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
    return r;
  }
  /// a, at most `most` > 0 in size; -most where a is NaN, +0 where it is -0.
  ONEBIT_PORTABLE static value bound(const value& a, float most) {
    value r;
    for (int l = 0; l < 32; ++l) {
      const float x = a.lane[l] > -most ? a.lane[l] : -most;
      r.lane[l] = (x < most ? x : most) + 0.0F;
    }
    return r;
  }
  /// Lanes with v >= 0: both zeros count, NaN does not.
  ONEBIT_PORTABLE static bits not_negative(const value& v) {
    bits r = 0;
    for (int l = 0; l < 32; ++l) r |= static_cast<bits>(v.lane[l] >= 0.0F) << l;
    return r;
  }
  /// Lanes with v > 0.
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
  /// s where the bit is set, -s elsewhere.
  ONEBIT_PORTABLE static value with_sign(bits b, const value& s) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = ((b >> l) & 1U) != 0 ? s.lane[l] : -s.lane[l];
    return r;
  }
  /// s where a is not negative, -s elsewhere.
  ONEBIT_PORTABLE static value with_sign_of(const value& a, const value& s) {
    return with_sign(not_negative(a), s);
  }
  /// v where the bit is set, +0 elsewhere (also for NaN).
  ONEBIT_PORTABLE static value keep(bits b, const value& v) { return select(b, v, set(0.0F)); }
  /// Sum over the lanes, folding 16, 8, 4, 2, 1.
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
  /// The largest magnitude; of words with NaN the greatest of these, as integers.
  ONEBIT_PORTABLE static float fold_size(const value& v) {
    std::uint32_t most = 0;
    for (const float x : v.lane) {
      const std::uint32_t size = __builtin_bit_cast(std::uint32_t, x) & 0x7FFFFFFFU;
      most = size > most ? size : most;
    }
    return __builtin_bit_cast(float, most);
  }
};

#undef ONEBIT_PORTABLE
#undef ONEBIT_LANES

}  // namespace onebit::inline v0_2
