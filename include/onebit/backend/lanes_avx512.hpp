// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <concepts>
#include <cstdint>
#include <onebit/backend/lanes.hpp>

/// Lanes for AVX-512 (F, BW, DQ, VL): a word in two registers. The functions carry the target
/// attribute, so users need no -march; they take packs by reference and are inlined only after the
/// kernel around them was inlined into a runner with the same target.
namespace onebit::inline v0_1 {

#define ONEBIT_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]]

struct avx512_lanes : host_lanes {
  struct value {
    __m512 lo, hi;
  };

  using bits = std::uint32_t;

  static bits load_bits(const std::uint32_t* p) { return *p; }
  static void store_bits(std::uint32_t* p, bits b) { *p = b; }

  ONEBIT_TARGET static value set(float x) { return {_mm512_set1_ps(x), _mm512_set1_ps(x)}; }
  ONEBIT_TARGET static value load(const float* p) {
    return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)};
  }
  ONEBIT_TARGET static value load(const float* p, std::uint32_t n) {
    const std::uint32_t b = first(n);
    return {_mm512_maskz_loadu_ps(low(b), p), _mm512_maskz_loadu_ps(high(b), p + 16)};
  }
  ONEBIT_TARGET static void store(float* p, const value& v) {
    _mm512_storeu_ps(p, v.lo);
    _mm512_storeu_ps(p + 16, v.hi);
  }
  ONEBIT_TARGET static void store(float* p, const value& v, std::uint32_t n) {
    const std::uint32_t b = first(n);
    _mm512_mask_storeu_ps(p, low(b), v.lo);
    _mm512_mask_storeu_ps(p + 16, high(b), v.hi);
  }
  template <Storable T>
  ONEBIT_TARGET static value load_as(const T* p, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      return load(p, n);
    } else {
      const std::uint32_t b = first(n);
      return {wide(p, low(b)), wide(p + 16, high(b))};
    }
  }
  template <Storable T>
  ONEBIT_TARGET static void store_as(T* p, const value& v, std::uint32_t n) {
    if constexpr (std::same_as<T, float>) {
      store(p, v, n);
    } else {
      const std::uint32_t b = first(n);
      put(p, low(b), v.lo);
      put(p + 16, high(b), v.hi);
    }
  }
  template <Storable T>
  ONEBIT_TARGET static value unrounded(const value& a, const value& b) {
    return {_mm512_mask_blend_ps(rounds_to<T>(a.lo, b.lo), b.lo, a.lo),
            _mm512_mask_blend_ps(rounds_to<T>(a.hi, b.hi), b.hi, a.hi)};
  }
  ONEBIT_TARGET static value stochastic_bf16(const value& a, std::uint32_t key) {
    return {stochastic(a.lo, key), stochastic(a.hi, key + 16)};
  }
  ONEBIT_TARGET static value add(const value& a, const value& b) {
    return {_mm512_add_ps(a.lo, b.lo), _mm512_add_ps(a.hi, b.hi)};
  }
  ONEBIT_TARGET static value sub(const value& a, const value& b) {
    return {_mm512_sub_ps(a.lo, b.lo), _mm512_sub_ps(a.hi, b.hi)};
  }
  ONEBIT_TARGET static value mul(const value& a, const value& b) {
    value r{_mm512_mul_ps(a.lo, b.lo), _mm512_mul_ps(a.hi, b.hi)};
    // opaque: g++ contracts even intrinsics, and would make one fma of a product and a sum
    __asm__("" : "+v"(r.lo), "+v"(r.hi));
    return r;
  }
  ONEBIT_TARGET static value div(const value& a, const value& b) {
    return {_mm512_div_ps(a.lo, b.lo), _mm512_div_ps(a.hi, b.hi)};
  }
  ONEBIT_TARGET static value max(const value& a, const value& b) {
    return {_mm512_maskz_max_ps(all, a.lo, b.lo), _mm512_maskz_max_ps(all, a.hi, b.hi)};
  }
  // the maskz forms: g++ 12 warns of an uninitialised register inside its own plain ones
  ONEBIT_TARGET static value sqrt(const value& a) {
    return {_mm512_maskz_sqrt_ps(all, a.lo), _mm512_maskz_sqrt_ps(all, a.hi)};
  }
  ONEBIT_TARGET static value abs(const value& a) {
    const __m512 mask = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FFFFFFF));
    return {_mm512_and_ps(a.lo, mask), _mm512_and_ps(a.hi, mask)};
  }
  ONEBIT_TARGET static value fma(const value& a, const value& b, const value& c) {
    return {_mm512_fmadd_ps(a.lo, b.lo, c.lo), _mm512_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  ONEBIT_TARGET static value bound(const value& a, float most) {
    const __m512 least = _mm512_set1_ps(-most), top = _mm512_set1_ps(most);
    const __m512 zero = _mm512_setzero_ps();
    const __m512 lo = _mm512_maskz_min_ps(all, _mm512_maskz_max_ps(all, a.lo, least), top);
    const __m512 hi = _mm512_maskz_min_ps(all, _mm512_maskz_max_ps(all, a.hi, least), top);
    return {_mm512_add_ps(lo, zero), _mm512_add_ps(hi, zero)};
  }
  ONEBIT_TARGET static bits not_negative(const value& v) {
    const __m512 zero = _mm512_setzero_ps();
    return join(_mm512_cmp_ps_mask(v.lo, zero, _CMP_GE_OQ),
                _mm512_cmp_ps_mask(v.hi, zero, _CMP_GE_OQ));
  }
  ONEBIT_TARGET static bits positive(const value& v) {
    const __m512 zero = _mm512_setzero_ps();
    return join(_mm512_cmp_ps_mask(v.lo, zero, _CMP_GT_OQ),
                _mm512_cmp_ps_mask(v.hi, zero, _CMP_GT_OQ));
  }
  ONEBIT_TARGET static value select(bits b, const value& yes, const value& no) {
    return {_mm512_mask_blend_ps(low(b), no.lo, yes.lo),
            _mm512_mask_blend_ps(high(b), no.hi, yes.hi)};
  }
  /// s where the bit is set, -s elsewhere.
  ONEBIT_TARGET static value with_sign(bits b, const value& s) {
    const __m512 minus = _mm512_set1_ps(-0.0F);
    return {_mm512_mask_xor_ps(s.lo, low(~b), s.lo, minus),
            _mm512_mask_xor_ps(s.hi, high(~b), s.hi, minus)};
  }
  ONEBIT_TARGET static value with_sign_of(const value& a, const value& s) {
    return with_sign(not_negative(a), s);
  }
  ONEBIT_TARGET static value keep(bits b, const value& v) {
    return {_mm512_maskz_mov_ps(low(b), v.lo), _mm512_maskz_mov_ps(high(b), v.hi)};
  }
  ONEBIT_TARGET static float fold(const value& v) {
    const __m512 s = _mm512_add_ps(v.lo, v.hi);
    const __m256 e = _mm256_add_ps(lower(s), upper(s));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
  }
  ONEBIT_TARGET static float fold_max(const value& v) {
    const __m512 s = _mm512_maskz_max_ps(all, v.lo, v.hi);
    const __m256 e = _mm256_max_ps(lower(s), upper(s));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
  }
  ONEBIT_TARGET static float fold_size(const value& v) {
    const __m512i sizes = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i lo = _mm512_and_si512(_mm512_castps_si512(v.lo), sizes);
    const __m512i s =
        _mm512_maskz_max_epu32(all, lo, _mm512_and_si512(_mm512_castps_si512(v.hi), sizes));
    const __m512 both = _mm512_castsi512_ps(s);
    const __m256i e =
        _mm256_max_epu32(_mm256_castps_si256(lower(both)), _mm256_castps_si256(upper(both)));
    __m128i q = _mm_max_epu32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0x4E));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(q));
  }

 private:
  static constexpr __mmask16 all = 0xFFFF;
  static constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  // What the machine's own conversions do is what element_types.hpp does, bit for bit, but for
  // vcvtneps2bf16: that one drops subnormals.
  ONEBIT_TARGET static __m512 wide(const bf16* p, __mmask16 b) {
    const __m256i words = _mm256_maskz_loadu_epi16(b, p);
    return _mm512_castsi512_ps(
        _mm512_maskz_slli_epi32(all, _mm512_maskz_cvtepu16_epi32(all, words), 16));
  }
  ONEBIT_TARGET static __m512 wide(const fp16* p, __mmask16 b) {
    return _mm512_maskz_cvtph_ps(all, _mm256_maskz_loadu_epi16(b, p));
  }
  /// to_bf16 in the upper half of each lane.
  ONEBIT_TARGET static __m512i rounded(const __m512& v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(all, u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                                _mm512_set1_epi32(0x400000));
  }
  ONEBIT_TARGET static void put(bf16* p, __mmask16 b, const __m512& v) {
    const __m512i upper = _mm512_maskz_srli_epi32(all, rounded(v), 16);
    _mm256_mask_storeu_epi16(p, b, _mm512_maskz_cvtepi32_epi16(all, upper));
  }
  /// stochastic_bf16 of 16 floats, the first with this key.
  ONEBIT_TARGET static __m512 stochastic(const __m512& v, std::uint32_t key) {
    const __m512i u = _mm512_castps_si512(v), first = _mm512_set1_epi32(static_cast<int>(key));
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i x = _mm512_add_epi32(first, lanes);
    x = _mm512_xor_si512(x, _mm512_maskz_srli_epi32(all, x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7FEB352D));
    x = _mm512_xor_si512(x, _mm512_maskz_srli_epi32(all, x, 15));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x846CA68BU)));
    const __m512i sum = _mm512_add_epi32(u, _mm512_maskz_srli_epi32(all, x, 16));
    const __m512i size = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x7F7F0000));
    return _mm512_castsi512_ps(
        _mm512_mask_and_epi32(u, small, sum, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  /// Where T(a) is b.
  template <class T>
  ONEBIT_TARGET static __mmask16 rounds_to(const __m512& a, const __m512& b) {
    __m512 near = a;
    if constexpr (std::same_as<T, bf16>) {
      near = _mm512_castsi512_ps(
          _mm512_and_si512(rounded(a), _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
    } else if constexpr (std::same_as<T, fp16>) {
      near = _mm512_maskz_cvtph_ps(all, _mm512_maskz_cvtps_ph(all, a, nearest));
    }
    return _mm512_cmp_ps_mask(near, b, _CMP_EQ_OQ);
  }
  ONEBIT_TARGET static void put(fp16* p, __mmask16 b, const __m512& v) {
    _mm256_mask_storeu_epi16(p, b, _mm512_maskz_cvtps_ph(all, v, nearest));
  }
  ONEBIT_TARGET static __m512 wide(const int8* p, __mmask16 b) {
    const __m512i words = _mm512_maskz_cvtepi8_epi32(all, _mm_maskz_loadu_epi8(b, p));
    return _mm512_maskz_cvtepi32_ps(all, words);
  }
  ONEBIT_TARGET static void put(int8* p, __mmask16 b, const __m512& v) {
    _mm512_mask_cvtepi32_storeu_epi8(p, b, _mm512_maskz_cvtps_epi32(all, v));
  }
  static __mmask16 low(bits b) { return static_cast<__mmask16>(b); }
  static __mmask16 high(bits b) { return static_cast<__mmask16>(b >> 16); }
  static bits join(__mmask16 lo, __mmask16 hi) {
    return static_cast<bits>(lo) | (static_cast<bits>(hi) << 16);
  }
  ONEBIT_TARGET static __m256 lower(const __m512& v) {
    return _mm512_maskz_extractf32x8_ps(0xFF, v, 0);
  }
  ONEBIT_TARGET static __m256 upper(const __m512& v) {
    return _mm512_maskz_extractf32x8_ps(0xFF, v, 1);
  }
};

#undef ONEBIT_TARGET

}  // namespace onebit::inline v0_1
