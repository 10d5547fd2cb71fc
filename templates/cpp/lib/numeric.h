// Scalar numbers of the kernels: dtype conversion and elementary functions.
//
// The functions are branch-free chains of IEEE operations with explicit fma, so a loop over 32 lanes
// vectorises and gives the same bits in every instruction set, inlined or not. A fused kernel rounds
// each op's result to that op's dtype (`as<T>`): fusion never changes a value.
#pragma once
#include "isa.h"

namespace kg {

KG_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
KG_INLINE float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

KG_INLINE float to_float(float x) { return x; }
KG_INLINE float to_float(bf16 x) { return float_of((uint32_t)x.bits << 16); }

// float32 -> T, to nearest even; a NaN stays a NaN.
template <class T> KG_INLINE T from_float(float x);
template <> KG_INLINE float from_float<float>(float x) { return x; }
template <> KG_INLINE bf16 from_float<bf16>(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return {(uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded)};
}

KG_INLINE float to_float(e4m3 x) {
  const uint32_t size = x.bits & 0x7fu;
  if (size == 0x7fu) return __builtin_nanf("");
  return float_of(((uint32_t)x.bits & 0x80u) << 24 | size << 20) * 0x1p120f;
}

// Beyond 448 the largest number: a cache saturates.
template <> KG_INLINE e4m3 from_float<e4m3>(float x) {
  const uint32_t u = bits_of(x), size = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
  if (size > 0x7f800000u) return {(uint8_t)(sign | 0x7fu)};
  if (size >= 0x43e00000u) return {(uint8_t)(sign | 0x7eu)};
  if (size < 0x3c800000u) return {(uint8_t)(sign | (bits_of(float_of(size) + 0x1p14f) - 0x46800000u))};  // multiples of 2^-9
  return {(uint8_t)(sign | ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - 0x3c0u)};
}

// The value of x once stored as T: what ends an op whose result has dtype T.
template <class T> KG_INLINE float as(float x) { return to_float(from_float<T>(x)); }

namespace poly {
constexpr float LOG2E = 0x1.715476p+0f, LOG2E_LOW = 1.92596299e-08f;  // their sum is log2(e)
constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
// 2^f = 1 + f q(f) on |f| <= 1/2, relative error 2e-9
constexpr float EXP2[6] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                           0x1.3b2d4cp-7f, 0x1.5f3e52p-10f, 0x1.41fbbcp-13f};
// atanh(s) = s (1 + z r(z)), z = s^2 <= 1/9
constexpr float ATANH[6] = {0x1.555556p-2f, 0x1.9999bep-3f, 0x1.248a56p-3f,
                            0x1.c8bc14p-4f, 0x1.5f3038p-4f, 0x1.be4ea4p-4f};
// tanh(x) = x (1 + z t(z)), z = x^2 <= 0.36
constexpr float TANH[6] = {-0x1.555554p-2f, 0x1.11109cp-3f,  -0x1.b9f9e6p-5f,
                           0x1.6411a4p-6f,  -0x1.0ec0f4p-7f, 0x1.23e4f2p-9f};

KG_INLINE float horner(const float (&c)[6], float x) {
  float p = __builtin_fmaf(c[5], x, c[4]);
  p = __builtin_fmaf(p, x, c[3]);
  p = __builtin_fmaf(p, x, c[2]);
  p = __builtin_fmaf(p, x, c[1]);
  return __builtin_fmaf(p, x, c[0]);
}
}  // namespace poly

// e^x, within 2 ulp; 0 below -104, infinity above 88.7, denormals in between.
KG_INLINE float exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float n = __builtin_fmaf(x, poly::LOG2E, poly::ROUND) - poly::ROUND;
  const float f = __builtin_fmaf(x, poly::LOG2E_LOW, __builtin_fmaf(x, poly::LOG2E, -n));
  const float p = __builtin_fmaf(f, poly::horner(poly::EXP2, f), 1.0f);
  const int whole = (int)bits_of(n + poly::ROUND) - (int)bits_of(poly::ROUND);
  const int half = whole >> 1;  // two factors: 2^whole itself may not be a float
  return p * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(whole - half + 127) << 23);
}

// 2^x for x <= 0 (softmax weights): exactly 1 at 0, and 0 below -125, so never a denormal.
KG_INLINE float exp2_weight(float x) {
  const float t = x + poly::ROUND;
  const float f = x - (t - poly::ROUND);
  const float p = __builtin_fmaf(f, poly::horner(poly::EXP2, f), 1.0f);
  const float y = p * float_of((bits_of(t) << 23) + 0x3f800000u);
  return x < -125.0f ? 0.0f : y;
}

// The same function on 16 lanes: the same operations, so the same bits.
KG_INLINE F16 exp2_weight(F16 x) {
  const F16 t = x + splat(poly::ROUND);
  const F16 f = x - (t - splat(poly::ROUND));
  F16 p = fma(splat(poly::EXP2[5]), f, splat(poly::EXP2[4]));
  p = fma(p, f, splat(poly::EXP2[3]));
  p = fma(p, f, splat(poly::EXP2[2]));
  p = fma(p, f, splat(poly::EXP2[1]));
  p = fma(p, f, splat(poly::EXP2[0]));
  p = fma(f, p, splat(1.0f));
  return select(less(x, splat(-125.0f)), zero(), p * pow2(t));
}

// Natural logarithm of a normal positive x, within 2 ulp.
KG_INLINE float log(float x) {
  const uint32_t u = bits_of(x) - 0x3f3504f3u;  // mantissa to [sqrt(1/2), sqrt(2))
  const float e = (float)((int)u >> 23);
  const float m = float_of((u & 0x7fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  const float tail = __builtin_fmaf(s * z, poly::horner(poly::ATANH, z), s);
  return __builtin_fmaf(e, 0x1.62e42ep-1f, __builtin_fmaf(e, 0x1.efa39ep-25f, 2.0f * tail));
}

KG_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
KG_INLINE float silu(float x) { return x / (1.0f + exp(-x)); }
KG_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// tanh, within 2 ulp.
KG_INLINE float tanh(float x) {
  const float a = __builtin_fabsf(x), z = x * x;
  const float small = __builtin_fmaf(x * z, poly::horner(poly::TANH, z), x);
  const float large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  return a < 0.6f ? small : __builtin_copysignf(large, x);
}

}  // namespace kg
