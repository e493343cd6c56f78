// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <concepts>
#include <cstdint>
#include <onebit/backend/lanes.hpp>

/// Lanes for AVX2 with FMA: a word in four registers. Functions have the target attribute, so users
/// need no -march. They take packs by reference. The compiler inlines them only after it has
/// inlined the calling kernel into a runner with the same target.
namespace onebit { inline namespace v0_3 {

#define ONEBIT_TARGET [[gnu::target("avx2,fma")]]

namespace detail {

struct avx2_lanes : host_lanes {
  // four members, not an array with loops: g++ at -O2 would keep an array in memory
  struct value {
    __m256 p0, p1, p2, p3;
  };
  /// One bit per lane: the sign bit of a float. The other bits of the floats are unspecified.
  struct bits {
    __m256 p0, p1, p2, p3;
  };

  ONEBIT_TARGET static bits load_bits(const std::uint32_t* p) { return spread(*p); }
  ONEBIT_TARGET static void store_bits(std::uint32_t* p, const bits& b) {
    *p = mask_of(b.p0) | mask_of(b.p1) << 8U | mask_of(b.p2) << 16U | mask_of(b.p3) << 24U;
  }
  ONEBIT_TARGET static value set(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v, v, v};
  }
  ONEBIT_TARGET static value load(const float* p) {
    prefetch(p);
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), _mm256_loadu_ps(p + 16),
            _mm256_loadu_ps(p + 24)};
  }
  ONEBIT_TARGET static value load(const float* p, std::uint32_t n) {
    const bits b = spread(first(n));
    return {_mm256_maskload_ps(p, _mm256_castps_si256(b.p0)),
            _mm256_maskload_ps(p + 8, _mm256_castps_si256(b.p1)),
            _mm256_maskload_ps(p + 16, _mm256_castps_si256(b.p2)),
            _mm256_maskload_ps(p + 24, _mm256_castps_si256(b.p3))};
  }
  ONEBIT_TARGET static void store(float* p, const value& v) {
    _mm256_storeu_ps(p, v.p0);
    _mm256_storeu_ps(p + 8, v.p1);
    _mm256_storeu_ps(p + 16, v.p2);
    _mm256_storeu_ps(p + 24, v.p3);
  }
  ONEBIT_TARGET static void store(float* p, const value& v, std::uint32_t n) {
    const bits b = spread(first(n));
    _mm256_maskstore_ps(p, _mm256_castps_si256(b.p0), v.p0);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(b.p1), v.p1);
    _mm256_maskstore_ps(p + 16, _mm256_castps_si256(b.p2), v.p2);
    _mm256_maskstore_ps(p + 24, _mm256_castps_si256(b.p3), v.p3);
  }
  template <detail::Storable T>
  ONEBIT_TARGET static value load_as(const T* p, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      return n >= 32 ? load(p) : load(p, n);
    } else if constexpr (std::same_as<T, bf16>) {
      if (n >= 32) return {wide(p), wide(p + 8), wide(p + 16), wide(p + 24)};
    }
    float x[32];
    widen(x, p, n);
    return load(x);
  }
  template <detail::Storable T>
  ONEBIT_TARGET static void store_as(T* p, const value& v, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      return n >= 32 ? store(p, v) : store(p, v, n);
    } else if constexpr (std::same_as<T, bf16>) {
      if (n >= 32) {
        put(p, rounded(v.p0), rounded(v.p1));
        return put(p + 16, rounded(v.p2), rounded(v.p3));
      }
    }
    float x[32];
    store(x, v);
    narrow(p, x, n);
  }
  template <detail::Storable T>
  ONEBIT_TARGET static value unrounded(const value& a, const value& b) {
    if constexpr (std::same_as<T, bf16>) {
      return {own(a.p0, b.p0), own(a.p1, b.p1), own(a.p2, b.p2), own(a.p3, b.p3)};
    } else {
      float x[32], y[32];
      store(x, a);
      store(y, b);
      for (int l = 0; l < 32; ++l) x[l] = onebit::detail::unrounded<T>(x[l], y[l]);
      return load(x);
    }
  }
  ONEBIT_TARGET static value stochastic_bf16(const value& a, std::uint32_t key) {
    return {stochastic(a.p0, key), stochastic(a.p1, key + 8), stochastic(a.p2, key + 16),
            stochastic(a.p3, key + 24)};
  }
  ONEBIT_TARGET static value load_squares(const bf16* p) {
    _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + 1024),
                 _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p)));
    const __m256i b =
        _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p + 16)));
    return {first_of(a), second_of(a), first_of(b), second_of(b)};
  }
  ONEBIT_TARGET static void store_squares(bf16* p, const value& a, std::uint32_t key) {
    const __m256i random = _mm256_set1_epi16(static_cast<short>(random_of_word(key)));
    _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(p)),
                        squares(a.p0, a.p1, _mm256_add_epi16(random, in_turn(0))));
    _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(p + 16)),
                        squares(a.p2, a.p3, _mm256_add_epi16(random, in_turn(16))));
  }
  ONEBIT_TARGET static value stochastic_power_of_two(const value& a, std::uint32_t key) {
    return {power(a.p0, key), power(a.p1, key + 8), power(a.p2, key + 16), power(a.p3, key + 24)};
  }
  ONEBIT_TARGET static value digest(const value& so_far, const value& v) {
    return {digest_step(so_far.p0, v.p0), digest_step(so_far.p1, v.p1),
            digest_step(so_far.p2, v.p2), digest_step(so_far.p3, v.p3)};
  }
  ONEBIT_TARGET static bool same_bits(const value& a, const value& b) {
    const __m256i first = _mm256_or_si256(unlike(a.p0, b.p0), unlike(a.p1, b.p1));
    const __m256i second = _mm256_or_si256(unlike(a.p2, b.p2), unlike(a.p3, b.p3));
    const __m256i any = _mm256_or_si256(first, second);
    return _mm256_testz_si256(any, any) != 0;
  }
  ONEBIT_TARGET static value add(const value& a, const value& b) {
    return {_mm256_add_ps(a.p0, b.p0), _mm256_add_ps(a.p1, b.p1), _mm256_add_ps(a.p2, b.p2),
            _mm256_add_ps(a.p3, b.p3)};
  }
  ONEBIT_TARGET static value sub(const value& a, const value& b) {
    return {_mm256_sub_ps(a.p0, b.p0), _mm256_sub_ps(a.p1, b.p1), _mm256_sub_ps(a.p2, b.p2),
            _mm256_sub_ps(a.p3, b.p3)};
  }
  ONEBIT_TARGET static value mul(const value& a, const value& b) {
    return {product(a.p0, b.p0), product(a.p1, b.p1), product(a.p2, b.p2), product(a.p3, b.p3)};
  }
  ONEBIT_TARGET static value div(const value& a, const value& b) {
    return {_mm256_div_ps(a.p0, b.p0), _mm256_div_ps(a.p1, b.p1), _mm256_div_ps(a.p2, b.p2),
            _mm256_div_ps(a.p3, b.p3)};
  }
  ONEBIT_TARGET static value(max)(const value& a, const value& b) {
    return {_mm256_max_ps(a.p0, b.p0), _mm256_max_ps(a.p1, b.p1), _mm256_max_ps(a.p2, b.p2),
            _mm256_max_ps(a.p3, b.p3)};
  }
  ONEBIT_TARGET static value sqrt(const value& a) {
    return {_mm256_sqrt_ps(a.p0), _mm256_sqrt_ps(a.p1), _mm256_sqrt_ps(a.p2), _mm256_sqrt_ps(a.p3)};
  }
  ONEBIT_TARGET static value abs(const value& a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    return {_mm256_and_ps(a.p0, mask), _mm256_and_ps(a.p1, mask), _mm256_and_ps(a.p2, mask),
            _mm256_and_ps(a.p3, mask)};
  }
  ONEBIT_TARGET static value fma(const value& a, const value& b, const value& c) {
    return {_mm256_fmadd_ps(a.p0, b.p0, c.p0), _mm256_fmadd_ps(a.p1, b.p1, c.p1),
            _mm256_fmadd_ps(a.p2, b.p2, c.p2), _mm256_fmadd_ps(a.p3, b.p3, c.p3)};
  }
  ONEBIT_TARGET static value bound(const value& a, float most) {
    const __m256 least = _mm256_set1_ps(-most), top = _mm256_set1_ps(most);
    const __m256 zero = _mm256_setzero_ps();
    return {_mm256_add_ps(_mm256_min_ps(_mm256_max_ps(a.p0, least), top), zero),
            _mm256_add_ps(_mm256_min_ps(_mm256_max_ps(a.p1, least), top), zero),
            _mm256_add_ps(_mm256_min_ps(_mm256_max_ps(a.p2, least), top), zero),
            _mm256_add_ps(_mm256_min_ps(_mm256_max_ps(a.p3, least), top), zero)};
  }
  ONEBIT_TARGET static bits not_negative(const value& v) {
    const __m256 zero = _mm256_setzero_ps();
    return {_mm256_cmp_ps(v.p0, zero, _CMP_GE_OQ), _mm256_cmp_ps(v.p1, zero, _CMP_GE_OQ),
            _mm256_cmp_ps(v.p2, zero, _CMP_GE_OQ), _mm256_cmp_ps(v.p3, zero, _CMP_GE_OQ)};
  }
  ONEBIT_TARGET static bits positive(const value& v) {
    const __m256 zero = _mm256_setzero_ps();
    return {_mm256_cmp_ps(v.p0, zero, _CMP_GT_OQ), _mm256_cmp_ps(v.p1, zero, _CMP_GT_OQ),
            _mm256_cmp_ps(v.p2, zero, _CMP_GT_OQ), _mm256_cmp_ps(v.p3, zero, _CMP_GT_OQ)};
  }
  ONEBIT_TARGET static value select(const bits& b, const value& yes, const value& no) {
    return {_mm256_blendv_ps(no.p0, yes.p0, b.p0), _mm256_blendv_ps(no.p1, yes.p1, b.p1),
            _mm256_blendv_ps(no.p2, yes.p2, b.p2), _mm256_blendv_ps(no.p3, yes.p3, b.p3)};
  }
  ONEBIT_TARGET static value with_sign(const bits& b, const value& s) {
    const __m256 minus = _mm256_set1_ps(-0.0F);
    return {_mm256_xor_ps(s.p0, _mm256_andnot_ps(b.p0, minus)),
            _mm256_xor_ps(s.p1, _mm256_andnot_ps(b.p1, minus)),
            _mm256_xor_ps(s.p2, _mm256_andnot_ps(b.p2, minus)),
            _mm256_xor_ps(s.p3, _mm256_andnot_ps(b.p3, minus))};
  }
  ONEBIT_TARGET static value with_sign_of(const value& a, const value& s) {
    return with_sign(not_negative(a), s);
  }
  ONEBIT_TARGET static value keep(const bits& b, const value& v) { return select(b, v, set(0.0F)); }
  ONEBIT_TARGET static float fold(const value& v) {
    const __m256 a = _mm256_add_ps(v.p0, v.p2);
    const __m256 e = _mm256_add_ps(a, _mm256_add_ps(v.p1, v.p3));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
  }
  ONEBIT_TARGET static float fold_max(const value& v) {
    const __m256 a = _mm256_max_ps(v.p0, v.p2);
    const __m256 e = _mm256_max_ps(a, _mm256_max_ps(v.p1, v.p3));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
  }
  ONEBIT_TARGET static float fold_size(const value& v) {
    const __m256i a = _mm256_max_epu32(size(v.p0), size(v.p1));
    const __m256i e = _mm256_max_epu32(a, _mm256_max_epu32(size(v.p2), size(v.p3)));
    __m128i q = _mm_max_epu32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0x4E));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(q));
  }

 private:
  /// Returns a * b, opaque to g++, which contracts even intrinsics: product and sum to one fma.
  ONEBIT_TARGET static __m256 product(const __m256& a, const __m256& b) {
    __m256 p = _mm256_mul_ps(a, b);
    __asm__("" : "+x"(p));  // on a local: a member of a value would be stored to memory
    return p;
  }
  /// Prefetches 128 bytes 2 KB after p, which a pass reads 16 words later. May be unmapped memory.
  ONEBIT_TARGET static void prefetch(const float* p) {
    const auto ahead = reinterpret_cast<std::uintptr_t>(p) + 2048;
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T0);
  }
  /// Returns the bits of x without the sign.
  ONEBIT_TARGET static __m256i size(const __m256& x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
  }
  /// Loads eight bf16 as floats.
  ONEBIT_TARGET static __m256 wide(const bf16* p) {
    const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  /// Applies to_bf16 to eight floats; each result is in the lower half of its lane.
  ONEBIT_TARGET static __m256i rounded(const __m256& v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
  }
  /// Returns a in lanes where a, rounded to bf16, equals b; else b.
  ONEBIT_TARGET static __m256 own(const __m256& a, const __m256& b) {
    const __m256 nearest = _mm256_castsi256_ps(_mm256_slli_epi32(rounded(a), 16));
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(nearest, b, _CMP_EQ_OQ));
  }
  ONEBIT_TARGET static __m256 digest_step(const __m256& so_far, const __m256& v) {
    const __m256i factor = _mm256_set1_epi32(static_cast<int>(0x9E3779B1U));
    return _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_mullo_epi32(_mm256_castps_si256(so_far), factor), _mm256_castps_si256(v)));
  }
  ONEBIT_TARGET static __m256i unlike(const __m256& a, const __m256& b) {
    return _mm256_xor_si256(_mm256_castps_si256(a), _mm256_castps_si256(b));
  }
  /// Applies `mixed` to key + l, for lanes l from 0 to 7.
  ONEBIT_TARGET static __m256i hashed(std::uint32_t key) {
    const __m256i first = _mm256_set1_epi32(static_cast<int>(key));
    __m256i x = _mm256_add_epi32(first, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7FEB352D));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    return _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x846CA68BU)));
  }
  /// Applies stochastic_bf16 to eight floats, in lane l with key + l.
  ONEBIT_TARGET static __m256 stochastic(const __m256& v, std::uint32_t key) {
    const __m256i sum =
        _mm256_add_epi32(_mm256_castps_si256(v), _mm256_srli_epi32(hashed(key), 16));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    const __m256i within = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7F7F0000), size(v));
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_and_si256(sum, upper)),
                            _mm256_castsi256_ps(within));
  }
  /// Return the floats of the first, and of the second, of eight pairs of bf16.
  ONEBIT_TARGET static __m256 first_of(const __m256i& pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  }
  ONEBIT_TARGET static __m256 second_of(const __m256i& pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
  }
  /// Returns random_of_square of a word whose bits are 0, for eight pairs, the first of which is l.
  ONEBIT_TARGET static __m256i in_turn(short l) {
    const __m256i pairs = _mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm256_mullo_epi16(_mm256_add_epi16(pairs, _mm256_set1_epi16(l)),
                              _mm256_set1_epi16(static_cast<short>(0x9E37U)));
  }
  /// Returns eight pairs of stochastic_square.
  ONEBIT_TARGET static __m256i squares(const __m256& first, const __m256& second,
                                       const __m256i& random) {
    const __m256i a = _mm256_castps_si256(first), b = _mm256_castps_si256(second);
    const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA);
    const __m256i lower = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i up = _mm256_min_epu16(_mm256_subs_epu16(lower, random), one);
    const __m256i least = _mm256_min_epu16(_mm256_or_si256(upper, lower), one);
    const __m256i nan =
        _mm256_blend_epi16(_mm256_castps_si256(_mm256_cmp_ps(first, first, _CMP_UNORD_Q)),
                           _mm256_castps_si256(_mm256_cmp_ps(second, second, _CMP_UNORD_Q)), 0xAA);
    return _mm256_or_si256(_mm256_max_epu16(_mm256_add_epi16(upper, up), least), nan);
  }
  /// Applies stochastic_power_of_two to eight floats, in lane l with key + l.
  ONEBIT_TARGET static __m256 power(const __m256& v, std::uint32_t key) {
    const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(v), _mm256_srli_epi32(hashed(key), 9));
    const __m256i exponent = _mm256_set1_epi32(0x7F800000);
    const __m256i within = _mm256_cmpgt_epi32(exponent, size(v));
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_and_si256(sum, exponent)),
                            _mm256_castsi256_ps(within));
  }
  template <class T>
  ONEBIT_TARGET static void put(T* p, const __m256i& a, const __m256i& b) {
    // packus works within 128-bit halves: the permutation restores the order
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
    _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(p)), packed);
  }
  /// Copies bit l of the word to the sign bit of lane l.
  ONEBIT_TARGET static bits spread(std::uint32_t word) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(word));
    return {shifted(all, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24)),
            shifted(all, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16)),
            shifted(all, _mm256_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8)),
            shifted(all, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0))};
  }
  ONEBIT_TARGET static __m256 shifted(const __m256i& v, const __m256i& by) {
    return _mm256_castsi256_ps(_mm256_sllv_epi32(v, by));
  }
  ONEBIT_TARGET static std::uint32_t mask_of(const __m256& v) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(v));
  }
};

}  // namespace detail

#undef ONEBIT_TARGET

}}  // namespace onebit
