// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <onebit/backend/lanes.hpp>
#include <onebit/core/element_types.hpp>

// nvcc knows no vector types in code for devices; its host code takes portable lanes.
#if !defined(__CUDACC__)

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/// Lanes made of the compiler's vector types: a word in eight vectors of 16 bytes. Compilers make
/// NEON, VSX or SSE of them, and scalars where a processor has no vectors. What the types have no
/// operators for is in part_of_word: instructions on aarch64, else operators or lane by lane.
namespace onebit { inline namespace v0_3 {

// Without optimisation each operation of a kernel would have its own place in the kernel's frame.
#if defined(__OPTIMIZE__)
#define ONEBIT_VECTOR [[gnu::always_inline]]
#else
#define ONEBIT_VECTOR
#endif

namespace detail {

/// Operations on four lanes. In masks all bits of a lane are set, or none.
struct part_of_word {
  using floats [[gnu::vector_size(16)]] = float;
  using masks [[gnu::vector_size(16)]] = std::int32_t;
  using words [[gnu::vector_size(16)]] = std::uint32_t;
  using halves [[gnu::vector_size(8)]] = std::uint16_t;
  using eighths [[gnu::vector_size(16)]] = std::uint16_t;

  ONEBIT_VECTOR static words words_of(const floats& x) { return __builtin_bit_cast(words, x); }
  ONEBIT_VECTOR static words words_of(const masks& x) { return __builtin_bit_cast(words, x); }
  ONEBIT_VECTOR static floats floats_of(const words& x) { return __builtin_bit_cast(floats, x); }
  ONEBIT_VECTOR static floats set(float x) { return floats{x, x, x, x}; }
  ONEBIT_VECTOR static words set(std::uint32_t x) { return words{x, x, x, x}; }
  /// Loads and stores, at any address. `x` has the size of what lies at p.
  template <class To>
  ONEBIT_VECTOR static To load(const void* p) {
    To x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  template <class From>
  ONEBIT_VECTOR static void store(void* p, const From& x) {
    __builtin_memcpy(p, &x, sizeof x);
  }

  /// Returns a * b, opaque to compilers that contract: product and sum to one fma.
  ONEBIT_VECTOR static floats product(const floats& a, const floats& b) {
    floats p = a * b;
#if defined(__aarch64__)
    __asm__("" : "+w"(p));
#elif defined(__SSE2__)
    __asm__("" : "+x"(p));
#else
    __asm__("" : "+m"(p));
#endif
    return p;
  }
  ONEBIT_VECTOR static floats greater(const floats& a, const floats& b) {
    return choose(a > b, a, b);
  }
#if defined(__aarch64__)
  ONEBIT_VECTOR static floats fma(const floats& a, const floats& b, const floats& c) {
    return vfmaq_f32(c, a, b);
  }
  ONEBIT_VECTOR static floats sqrt(const floats& a) { return vsqrtq_f32(a); }
  /// Returns `yes` in lanes that are set, else `no`.
  ONEBIT_VECTOR static floats choose(const masks& m, const floats& yes, const floats& no) {
    return vbslq_f32(words_of(m), yes, no);
  }
  /// Returns s in lanes that are set, else -s, which is the same in all words of one scale.
  ONEBIT_VECTOR static floats with_sign(const masks& m, const floats& s) {
    return choose(m, s, -s);
  }
  /// Returns the lower 4 bits of `low` with `high` above them.
  ONEBIT_VECTOR static words above(const masks& low, const words& high) {
    return vsliq_n_u32(words_of(low), high, 4);
  }
  ONEBIT_VECTOR static std::uint32_t sum(const words& x) { return vaddvq_u32(x); }
#else
  ONEBIT_VECTOR static floats fma(const floats& a, const floats& b, const floats& c) {
    return floats{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                  __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
  }
  ONEBIT_VECTOR static floats sqrt(const floats& a) {
    return floats{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
                  __builtin_sqrtf(a[3])};
  }
  ONEBIT_VECTOR static floats choose(const masks& m, const floats& yes, const floats& no) {
    return floats_of((words_of(yes) & words_of(m)) | (words_of(no) & ~words_of(m)));
  }
  ONEBIT_VECTOR static floats with_sign(const masks& m, const floats& s) {
    return floats_of(words_of(s) ^ (~words_of(m) & 0x80000000U));
  }
  ONEBIT_VECTOR static words above(const masks& low, const words& high) {
    return (words_of(low) & 15U) | high << 4U;
  }
  ONEBIT_VECTOR static std::uint32_t sum(const words& x) { return x[0] + x[1] + x[2] + x[3]; }
#endif

  /// Returns the bits of x without the sign.
  ONEBIT_VECTOR static words size(const floats& x) { return words_of(x) & 0x7FFFFFFFU; }
  ONEBIT_VECTOR static words larger(const words& a, const words& b) {
    const masks m = a > b;
    return (a & words_of(m)) | (b & ~words_of(m));
  }
  /// Returns words that are 0 where a has the bits of b.
  ONEBIT_VECTOR static words unlike(const floats& a, const floats& b) {
    return words_of(a) ^ words_of(b);
  }
  ONEBIT_VECTOR static floats digest_step(const floats& so_far, const floats& v) {
    return floats_of(words_of(so_far) * 0x9E3779B1U + words_of(v));
  }
  /// Loads four bf16 as floats.
  ONEBIT_VECTOR static floats wide(const bf16* p) {
    return floats_of(__builtin_convertvector(load<halves>(p), words) << 16U);
  }
  /// Applies to_bf16 to four floats; each result is in the upper half of its lane.
  ONEBIT_VECTOR static words rounded(const floats& v) {
    const words u = words_of(v);
    const floats nearest = floats_of(u + (u >> 16U & 1U) + 0x7FFFU);
    // NaN is a number to no comparison
    return words_of(choose(v == v, nearest, floats_of(u | 0x400000U)));
  }
  ONEBIT_VECTOR static void put(bf16* p, const floats& v) {
    store(p, __builtin_convertvector(rounded(v) >> 16U, halves));
  }
  /// Returns a in lanes where a, rounded to bf16, equals b; else b.
  ONEBIT_VECTOR static floats own(const floats& a, const floats& b) {
    return choose(floats_of(rounded(a) & 0xFFFF0000U) == b, a, b);
  }
  /// Applies `mixed` to key + l, for lanes l from 0 to 3.
  ONEBIT_VECTOR static words hashed(std::uint32_t key) {
    words x = words{0, 1, 2, 3} + key;
    x = (x ^ x >> 16U) * 0x7FEB352DU;
    return (x ^ x >> 15U) * 0x846CA68BU;
  }
  /// Applies stochastic_bf16 to four floats, in lane l with key + l.
  ONEBIT_VECTOR static floats stochastic(const floats& v, std::uint32_t key) {
    const words sum = words_of(v) + (hashed(key) >> 16U);
    return choose(size(v) < 0x7F7F0000U, floats_of(sum & 0xFFFF0000U), v);
  }
  /// Return the floats of the first, and of the second, of four pairs of bf16.
  ONEBIT_VECTOR static floats first_of(const words& pairs) { return floats_of(pairs << 16U); }
  ONEBIT_VECTOR static floats second_of(const words& pairs) {
    return floats_of(pairs & 0xFFFF0000U);
  }
  /// Returns random_of_square for four pairs, the first of which is l.
  ONEBIT_VECTOR static eighths in_turn(std::uint16_t l, std::uint16_t of_word) {
    return (eighths{0, 8, 1, 9, 2, 10, 3, 11} + l) * std::uint16_t{0x9E37U} + of_word;
  }
  /// Returns four pairs of stochastic_square.
  ONEBIT_VECTOR static words squares(const floats& first, const floats& second,
                                     const eighths& random) {
    const words a = words_of(first), b = words_of(second);
    const auto upper = __builtin_bit_cast(eighths, (a >> 16U) | (b & 0xFFFF0000U)),
               lower = __builtin_bit_cast(eighths, (a & 0xFFFFU) | b << 16U);
    const auto rounded_up = upper - __builtin_bit_cast(eighths, lower > random);
    const auto lost = __builtin_bit_cast(eighths, (rounded_up == 0) & ((upper | lower) != 0));
    const words nan =
        (words_of(first != first) & 0xFFFFU) | (words_of(second != second) & 0xFFFF0000U);
    return __builtin_bit_cast(words, rounded_up | (lost & 1U)) | nan;
  }
  /// Applies stochastic_power_of_two to four floats, in lane l with key + l.
  ONEBIT_VECTOR static floats power(const floats& v, std::uint32_t key) {
    const words sum = words_of(v) + (hashed(key) >> 9U);
    return choose(size(v) < 0x7F800000U, floats_of(sum & 0x7F800000U), v);
  }
};

struct vector_lanes : host_lanes {
  using part = part_of_word;
  using floats = part::floats;
  using masks = part::masks;

  // members, not an array with loops: g++ at -O2 would keep an array in memory
  struct value {
    floats p0, p1, p2, p3, p4, p5, p6, p7;
  };
  struct bits {
    masks p0, p1, p2, p3, p4, p5, p6, p7;
  };

  ONEBIT_VECTOR static bits load_bits(const std::uint32_t* p) {
    const part::words all = part::set(*p), own = {1U, 2U, 4U, 8U};
    return {(all & own) != 0U,        (all & own << 4U) != 0U,  (all & own << 8U) != 0U,
            (all & own << 12U) != 0U, (all & own << 16U) != 0U, (all & own << 20U) != 0U,
            (all & own << 24U) != 0U, (all & own << 28U) != 0U};
  }
  ONEBIT_VECTOR static void store_bits(std::uint32_t* p, const bits& b) {
    part::words all = part::above(b.p6, part::words_of(b.p7));
    all = part::above(b.p4, part::above(b.p5, all));
    all = part::above(b.p2, part::above(b.p3, all));
    all = part::above(b.p0, part::above(b.p1, all));
    *p = part::sum(all & part::words{0x11111111U, 0x22222222U, 0x44444444U, 0x88888888U});
  }
  ONEBIT_VECTOR static value set(float x) {
    const floats v = part::set(x);
    return {v, v, v, v, v, v, v, v};
  }
  ONEBIT_VECTOR static value load(const float* p) {
    return {part::load<floats>(p),      part::load<floats>(p + 4),  part::load<floats>(p + 8),
            part::load<floats>(p + 12), part::load<floats>(p + 16), part::load<floats>(p + 20),
            part::load<floats>(p + 24), part::load<floats>(p + 28)};
  }
  ONEBIT_VECTOR static value load(const float* p, std::uint32_t n) {
    float x[32];
    widen(x, p, n);
    return load(x);
  }
  ONEBIT_VECTOR static void store(float* p, const value& v) {
    part::store(p, v.p0);
    part::store(p + 4, v.p1);
    part::store(p + 8, v.p2);
    part::store(p + 12, v.p3);
    part::store(p + 16, v.p4);
    part::store(p + 20, v.p5);
    part::store(p + 24, v.p6);
    part::store(p + 28, v.p7);
  }
  ONEBIT_VECTOR static void store(float* p, const value& v, std::uint32_t n) {
    float x[32];
    store(x, v);
    narrow(p, x, n);
  }
  template <detail::Storable T>
  ONEBIT_VECTOR static value load_as(const T* p, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      return n >= 32 ? load(p) : load(p, n);
    } else if constexpr (std::same_as<T, bf16>) {
      if (n >= 32) {
        return {part::wide(p),      part::wide(p + 4),  part::wide(p + 8),  part::wide(p + 12),
                part::wide(p + 16), part::wide(p + 20), part::wide(p + 24), part::wide(p + 28)};
      }
    }
    float x[32];
    widen(x, p, n);
    return load(x);
  }
  template <detail::Storable T>
  ONEBIT_VECTOR static void store_as(T* p, const value& v, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      return n >= 32 ? store(p, v) : store(p, v, n);
    } else if constexpr (std::same_as<T, bf16>) {
      if (n >= 32) {
        part::put(p, v.p0);
        part::put(p + 4, v.p1);
        part::put(p + 8, v.p2);
        part::put(p + 12, v.p3);
        part::put(p + 16, v.p4);
        part::put(p + 20, v.p5);
        part::put(p + 24, v.p6);
        return part::put(p + 28, v.p7);
      }
    }
    float x[32];
    store(x, v);
    narrow(p, x, n);
  }
  template <detail::Storable T>
  ONEBIT_VECTOR static value unrounded(const value& a, const value& b) {
    if constexpr (std::same_as<T, bf16>) {
      return each([](const auto& x, const auto& y) { return part::own(x, y); }, a, b);
    } else {
      float x[32], y[32];
      store(x, a);
      store(y, b);
      for (int l = 0; l < 32; ++l) x[l] = onebit::detail::unrounded<T>(x[l], y[l]);
      return load(x);
    }
  }
  ONEBIT_VECTOR static value stochastic_bf16(const value& a, std::uint32_t key) {
    return {part::stochastic(a.p0, key),      part::stochastic(a.p1, key + 4),
            part::stochastic(a.p2, key + 8),  part::stochastic(a.p3, key + 12),
            part::stochastic(a.p4, key + 16), part::stochastic(a.p5, key + 20),
            part::stochastic(a.p6, key + 24), part::stochastic(a.p7, key + 28)};
  }
  ONEBIT_VECTOR static value load_squares(const bf16* p) {
    const auto a = part::load<part::words>(p), b = part::load<part::words>(p + 8),
               c = part::load<part::words>(p + 16), d = part::load<part::words>(p + 24);
    return {part::first_of(a), part::first_of(b), part::second_of(a), part::second_of(b),
            part::first_of(c), part::first_of(d), part::second_of(c), part::second_of(d)};
  }
  ONEBIT_VECTOR static void store_squares(bf16* p, const value& a, std::uint32_t key) {
    const auto random = static_cast<std::uint16_t>(random_of_word(key));
    part::store(p, part::squares(a.p0, a.p2, part::in_turn(0, random)));
    part::store(p + 8, part::squares(a.p1, a.p3, part::in_turn(4, random)));
    part::store(p + 16, part::squares(a.p4, a.p6, part::in_turn(16, random)));
    part::store(p + 24, part::squares(a.p5, a.p7, part::in_turn(20, random)));
  }
  ONEBIT_VECTOR static value stochastic_power_of_two(const value& a, std::uint32_t key) {
    return {part::power(a.p0, key),      part::power(a.p1, key + 4),  part::power(a.p2, key + 8),
            part::power(a.p3, key + 12), part::power(a.p4, key + 16), part::power(a.p5, key + 20),
            part::power(a.p6, key + 24), part::power(a.p7, key + 28)};
  }
  ONEBIT_VECTOR static value digest(const value& so_far, const value& v) {
    return each([](const auto& x, const auto& y) { return part::digest_step(x, y); }, so_far, v);
  }
  ONEBIT_VECTOR static bool same_bits(const value& a, const value& b) {
    const part::words any = part::unlike(a.p0, b.p0) | part::unlike(a.p1, b.p1) |
                            part::unlike(a.p2, b.p2) | part::unlike(a.p3, b.p3) |
                            part::unlike(a.p4, b.p4) | part::unlike(a.p5, b.p5) |
                            part::unlike(a.p6, b.p6) | part::unlike(a.p7, b.p7);
    return (any[0] | any[1] | any[2] | any[3]) == 0;
  }
  ONEBIT_VECTOR static value add(const value& a, const value& b) {
    return each([](const auto& x, const auto& y) { return x + y; }, a, b);
  }
  ONEBIT_VECTOR static value sub(const value& a, const value& b) {
    return each([](const auto& x, const auto& y) { return x - y; }, a, b);
  }
  ONEBIT_VECTOR static value mul(const value& a, const value& b) {
    return each([](const auto& x, const auto& y) { return part::product(x, y); }, a, b);
  }
  ONEBIT_VECTOR static value div(const value& a, const value& b) {
    return each([](const auto& x, const auto& y) { return x / y; }, a, b);
  }
  ONEBIT_VECTOR static value(max)(const value& a, const value& b) {
    return each([](const auto& x, const auto& y) { return part::greater(x, y); }, a, b);
  }
  ONEBIT_VECTOR static value sqrt(const value& a) {
    return each([](const auto& x) { return part::sqrt(x); }, a);
  }
  ONEBIT_VECTOR static value abs(const value& a) {
    return each([](const auto& x) { return part::floats_of(part::size(x)); }, a);
  }
  ONEBIT_VECTOR static value fma(const value& a, const value& b, const value& c) {
    return each([](const auto& x, const auto& y, const auto& z) { return part::fma(x, y, z); }, a,
                b, c);
  }
  ONEBIT_VECTOR static value bound(const value& a, float most) {
    const floats least = part::set(-most), top = part::set(most), zero = part::set(0.0F);
    return each(
        [&](const auto& x) {
          const floats low = part::greater(x, least);
          return part::choose(low < top, low, top) + zero;
        },
        a);
  }
  ONEBIT_VECTOR static bits not_negative(const value& v) {
    const floats zero = part::set(0.0F);
    return {v.p0 >= zero, v.p1 >= zero, v.p2 >= zero, v.p3 >= zero,
            v.p4 >= zero, v.p5 >= zero, v.p6 >= zero, v.p7 >= zero};
  }
  ONEBIT_VECTOR static bits positive(const value& v) {
    const floats zero = part::set(0.0F);
    return {v.p0 > zero, v.p1 > zero, v.p2 > zero, v.p3 > zero,
            v.p4 > zero, v.p5 > zero, v.p6 > zero, v.p7 > zero};
  }
  ONEBIT_VECTOR static value select(const bits& b, const value& yes, const value& no) {
    return each([](const auto& m, const auto& x, const auto& y) { return part::choose(m, x, y); },
                b, yes, no);
  }
  ONEBIT_VECTOR static value with_sign(const bits& b, const value& s) {
    return each([](const auto& m, const auto& x) { return part::with_sign(m, x); }, b, s);
  }
  ONEBIT_VECTOR static value with_sign_of(const value& a, const value& s) {
    return with_sign(not_negative(a), s);
  }
  ONEBIT_VECTOR static value keep(const bits& b, const value& v) {
    return each(
        [](const auto& m, const auto& x) {
          return part::floats_of(part::words_of(x) & part::words_of(m));
        },
        b, v);
  }
  ONEBIT_VECTOR static float fold(const value& v) {
    const floats q = ((v.p0 + v.p4) + (v.p2 + v.p6)) + ((v.p1 + v.p5) + (v.p3 + v.p7));
    return (q[0] + q[2]) + (q[1] + q[3]);
  }
  ONEBIT_VECTOR static float fold_max(const value& v) {
    const floats a = part::greater(part::greater(v.p0, v.p4), part::greater(v.p2, v.p6));
    const floats b = part::greater(part::greater(v.p1, v.p5), part::greater(v.p3, v.p7));
    const floats q = part::greater(a, b);
    const float x = q[0] > q[2] ? q[0] : q[2], y = q[1] > q[3] ? q[1] : q[3];
    return x > y ? x : y;
  }
  ONEBIT_VECTOR static float fold_size(const value& v) {
    const part::words a = part::larger(part::larger(part::size(v.p0), part::size(v.p1)),
                                       part::larger(part::size(v.p2), part::size(v.p3)));
    const part::words b = part::larger(part::larger(part::size(v.p4), part::size(v.p5)),
                                       part::larger(part::size(v.p6), part::size(v.p7)));
    const part::words q = part::larger(a, b);
    const std::uint32_t x = q[0] > q[1] ? q[0] : q[1], y = q[2] > q[3] ? q[2] : q[3];
    return __builtin_bit_cast(float, x > y ? x : y);
  }

 private:
  /// Applies f to each part of values and bits.
  template <class F, class... V>
  ONEBIT_VECTOR static value each(const F& f, const V&... v) {
    return {f(v.p0...), f(v.p1...), f(v.p2...), f(v.p3...),
            f(v.p4...), f(v.p5...), f(v.p6...), f(v.p7...)};
  }
};

}  // namespace detail

#undef ONEBIT_VECTOR

}}  // namespace onebit

#endif
