// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>

/// The reference lanes: a word as 32 plain floats. Every other lane type gives the same bits.
///
/// The operations are what kernels are written in. `value` is a pack of 32 floats, `bits` one bit
/// per lane, in whatever form the registers like it. There is no way to write a multiply-add but
/// `fma`, so nothing is left to contraction.
namespace onebit {

/// What all host lanes share: scalars, bits and sums that need no vector registers.
struct host_lanes {
  /// The number of bits set in a word.
  static std::uint32_t count(std::uint32_t word) {
    return static_cast<std::uint32_t>(__builtin_popcount(word));
  }
  /// A word with its first n bits set, n <= 32.
  static std::uint32_t first(std::uint32_t n) { return n >= 32 ? ~0U : (1U << n) - 1U; }

  static float abs_scalar(float x) { return std::fabs(x); }
  /// One scalar per kernel call, whatever the number of lanes.
  template <class T>
  static void store_scalar(T* p, T x) {
    *p = x;
  }
  /// Sets a flag that several kernel calls may raise at once.
  static void raise(std::uint32_t* flag) {
    std::atomic_ref<std::uint32_t>(*flag).store(1, std::memory_order_relaxed);
  }
  /// Sum in the fixed order of the format: lane l of 32 adds p[l], p[l + 32], ... in double, then
  /// the lanes fold 16, 8, 4, 2, 1.
  template <class T>
  static double sum(const T* p, std::size_t n) {
    double lane[32] = {};
    for (std::size_t i = 0; i < n; ++i) lane[i % 32] += static_cast<double>(p[i]);
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    return lane[0];
  }
  /// Sum of n counts.
  static std::uint64_t sum_counts(const std::uint32_t* p, std::size_t n) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += p[i];
    return sum;
  }
  /// The largest of n values, at least `least`.
  static float largest(const float* p, std::size_t n, float least) {
    float m = least;
    for (std::size_t i = 0; i < n; ++i) m = p[i] > m ? p[i] : m;
    return m;
  }
};

struct portable_lanes : host_lanes {
  struct value {
    float lane[32];
  };
  using bits = std::uint32_t;

  static bits load_bits(const std::uint32_t* p) { return *p; }
  static void store_bits(std::uint32_t* p, bits b) { *p = b; }

  static value set(float x) {
    value r;
    for (float& lane : r.lane) lane = x;
    return r;
  }
  static value load(const float* p) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = p[l];
    return r;
  }
  static value load(const float* p, std::uint32_t n) {
    value r;
    for (std::uint32_t l = 0; l < 32; ++l) r.lane[l] = l < n ? p[l] : 0.0F;
    return r;
  }
  static void store(float* p, const value& v) {
    for (int l = 0; l < 32; ++l) p[l] = v.lane[l];
  }
  static void store(float* p, const value& v, std::uint32_t n) {
    for (std::uint32_t l = 0; l < n; ++l) p[l] = v.lane[l];
  }
  static value add(const value& a, const value& b) {
    return map(a, b, [](float x, float y) { return x + y; });
  }
  static value sub(const value& a, const value& b) {
    return map(a, b, [](float x, float y) { return x - y; });
  }
  static value mul(const value& a, const value& b) {
    value r = map(a, b, [](float x, float y) { return x * y; });
#if defined(__GNUC__)
    __asm__("" : "+m"(r));  // opaque: a product must not be contracted with a sum that follows
#endif
    return r;
  }
  static value div(const value& a, const value& b) {
    return map(a, b, [](float x, float y) { return x / y; });
  }
  /// The larger; b where either is NaN.
  static value max(const value& a, const value& b) {
    return map(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static value sqrt(const value& a) {
    return map(a, a, [](float x, float) { return std::sqrt(x); });
  }
  static value abs(const value& a) {
    return map(a, a, [](float x, float) { return std::fabs(x); });
  }
  /// a * b + c, rounded once.
  static value fma(const value& a, const value& b, const value& c) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
    return r;
  }
  /// Lanes with v >= 0: both zeros count, NaN does not.
  static bits not_negative(const value& v) {
    bits r = 0;
    for (int l = 0; l < 32; ++l) r |= static_cast<bits>(v.lane[l] >= 0.0F) << l;
    return r;
  }
  /// Lanes with v > 0.
  static bits positive(const value& v) {
    bits r = 0;
    for (int l = 0; l < 32; ++l) r |= static_cast<bits>(v.lane[l] > 0.0F) << l;
    return r;
  }
  static value select(bits b, const value& yes, const value& no) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = ((b >> l) & 1U) != 0 ? yes.lane[l] : no.lane[l];
    return r;
  }
  /// s where the bit is set, -s elsewhere.
  static value with_sign(bits b, const value& s) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = ((b >> l) & 1U) != 0 ? s.lane[l] : -s.lane[l];
    return r;
  }
  /// v where the bit is set, +0 elsewhere (also for NaN).
  static value keep(bits b, const value& v) { return select(b, v, set(0.0F)); }
  /// Sum over the lanes, folding 16, 8, 4, 2, 1.
  static float fold(value v) {
    for (int half = 16; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) v.lane[l] += v.lane[l + half];
    }
    return v.lane[0];
  }
  static float fold_max(value v) {
    for (int half = 16; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) {
        v.lane[l] = v.lane[l] > v.lane[l + half] ? v.lane[l] : v.lane[l + half];
      }
    }
    return v.lane[0];
  }

 private:
  template <class F>
  static value map(const value& a, const value& b, F f) {
    value r;
    for (int l = 0; l < 32; ++l) r.lane[l] = f(a.lane[l], b.lane[l]);
    return r;
  }
};

}  // namespace onebit
