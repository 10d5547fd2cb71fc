// The vector unit as the kernels see it: 16 float lanes, whatever the instruction set.
//
// `F16` is one AVX-512 register or two AVX2 registers, so that every kernel is written once and
// every lane does the same operations in the same order on each instruction set. That, with
// explicit fma and no -ffast-math, is what makes float32 results equal bit for bit across them.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "kernels need AVX2 and FMA: compile with -march=x86-64-v3 or better"
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define KG_AVX512 1
#else
#define KG_AVX512 0
#endif
#if KG_AVX512 && defined(__AVX512BF16__)
#define KG_DOT2 1  // vdpbf16ps: two bfloat16 products added to a float32 lane
#else
#define KG_DOT2 0
#endif

#define KG_INLINE inline __attribute__((always_inline))
#define KG_UNROLL _Pragma("GCC unroll 32")

namespace kg {

constexpr const char* isa_name = KG_DOT2 ? "avx512_bf16" : KG_AVX512 ? "avx512" : "avx2";

constexpr int LANES = 16;                      // floats in an F16
constexpr int REGISTERS = KG_AVX512 ? 32 : 8;  // how many F16 the register file holds

struct bf16 {  // storage only: arithmetic happens in float32 (numeric.h converts)
  uint16_t bits;
};

struct e4m3 {  // storage of a cache: sign, four bits of exponent, three of mantissa; no infinity
  uint8_t bits;
};

#if KG_AVX512

struct F16 { __m512 v; };
struct Mask16 { __mmask16 m; };

KG_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
KG_INLINE F16 splat(float x) { return {_mm512_set1_ps(x)}; }
KG_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
KG_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
KG_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
KG_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
KG_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
KG_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
KG_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
KG_INLINE F16 max(F16 a, F16 b) { return {_mm512_maskz_max_ps((__mmask16)-1, a.v, b.v)}; }  // b where one is NaN

KG_INLINE Mask16 less(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
KG_INLINE Mask16 equal(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
KG_INLINE F16 select(Mask16 m, F16 yes, F16 no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
KG_INLINE Mask16 both(Mask16 a, Mask16 b) { return {(__mmask16)(a.m & b.m)}; }
KG_INLINE Mask16 lanes(unsigned bits) { return {(__mmask16)bits}; }
KG_INLINE unsigned bits(Mask16 m) { return m.m; }

// 2^n, where the low bits of `magic` (1.5 * 2^23 + n) hold the integer n, -126 <= n <= 127.
KG_INLINE F16 pow2(F16 magic) { return {(__m512)(((__v16su)magic.v << 23) + 0x3f800000u)}; }

// 16 pairs of neighbouring bfloat16: the first or the second of each as float32, exact.
KG_INLINE F16 load_even(const bf16* p) { return {(__m512)((__v16su)_mm512_loadu_si512(p) << 16)}; }
KG_INLINE F16 load_odd(const bf16* p) { return {(__m512)((__v16su)_mm512_loadu_si512(p) & 0xffff0000u)}; }

KG_INLINE __m256 low_plus_high(F16 a) {
  return _mm256_add_ps(_mm512_extractf32x8_ps(a.v, 0), _mm512_extractf32x8_ps(a.v, 1));
}
KG_INLINE __m256 low_max_high(F16 a) {
  return _mm256_max_ps(_mm512_extractf32x8_ps(a.v, 0), _mm512_extractf32x8_ps(a.v, 1));
}

#else

struct F16 { __m256 lo, hi; };
struct Mask16 { __m256 lo, hi; };

KG_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KG_INLINE F16 splat(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
KG_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KG_INLINE void store(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
KG_INLINE F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
KG_INLINE F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
KG_INLINE F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
KG_INLINE F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
KG_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KG_INLINE F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

KG_INLINE Mask16 less(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
KG_INLINE Mask16 equal(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
KG_INLINE F16 select(Mask16 m, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
KG_INLINE Mask16 both(Mask16 a, Mask16 b) { return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)}; }
KG_INLINE Mask16 lanes(unsigned bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lo = _mm256_and_si256(_mm256_set1_epi32((int)bits), bit);
  const __m256i hi = _mm256_and_si256(_mm256_set1_epi32((int)(bits >> 8)), bit);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(lo, bit)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(hi, bit))};
}
KG_INLINE unsigned bits(Mask16 m) {
  return (unsigned)_mm256_movemask_ps(m.lo) | (unsigned)_mm256_movemask_ps(m.hi) << 8;
}

// 2^n, where the low bits of `magic` (1.5 * 2^23 + n) hold the integer n, -126 <= n <= 127.
KG_INLINE F16 pow2(F16 magic) {
  return {(__m256)(((__v8su)magic.lo << 23) + 0x3f800000u), (__m256)(((__v8su)magic.hi << 23) + 0x3f800000u)};
}

// 16 pairs of neighbouring bfloat16: the first or the second of each as float32, exact.
KG_INLINE F16 load_even(const bf16* p) {
  const __v8su lo = (__v8su)_mm256_loadu_si256((const __m256i*)p);
  const __v8su hi = (__v8su)_mm256_loadu_si256((const __m256i*)(p + 16));
  return {(__m256)(lo << 16), (__m256)(hi << 16)};
}
KG_INLINE F16 load_odd(const bf16* p) {
  const __v8su lo = (__v8su)_mm256_loadu_si256((const __m256i*)p);
  const __v8su hi = (__v8su)_mm256_loadu_si256((const __m256i*)(p + 16));
  return {(__m256)(lo & 0xffff0000u), (__m256)(hi & 0xffff0000u)};
}

KG_INLINE __m256 low_plus_high(F16 a) { return _mm256_add_ps(a.lo, a.hi); }
KG_INLINE __m256 low_max_high(F16 a) { return _mm256_max_ps(a.lo, a.hi); }

#endif

// Sum of the lanes, always as the tree 8, 4, 2, 1 (lane i meets lane i+8, then i+4, i+2, i+1).
KG_INLINE float sum_lanes(F16 a) {
  const __m256 s8 = low_plus_high(a);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
KG_INLINE float max_lanes(F16 a) {
  const __m256 s8 = low_max_high(a);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#if KG_DOT2
// acc[lane] += pair(lane of w) . pair(x): one instruction; `x` points at two neighbouring bfloat16.
KG_INLINE F16 dot2(F16 acc, __m512i w, const bf16* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair))};
}
#endif

}  // namespace kg
