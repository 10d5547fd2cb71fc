// Packed weights as products read them: codes of 4 or 8 bits, a scale for each lane and group of k.
//
// A panel holds 32 outputs. Group by group: 32 scales, 32 zero points where the format has them, then
// words of 32 bits, one a lane, with 8 or 4 consecutive k of that output. Shifted right by j codes, a
// word has the elements 2j and 2j+1 at the bottom of its halves, where bfloat16 pairs want them. After
// the groups: 32 float32 factors where the format has them.
#pragma once
#include <type_traits>

#include "numeric.h"

namespace kg {

// 16 words of 32 bits.
#if KG_AVX512
struct I16 { __m512i v; };
KG_INLINE I16 load_words(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
KG_INLINE I16 load_bytes(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
KG_INLINE I16 load_halves(const uint8_t* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))}; }
KG_INLINE I16 shifted(I16 a, int bits) { return {_mm512_srli_epi32(a.v, bits)}; }
KG_INLINE I16 operator<<(I16 a, int bits) { return {_mm512_slli_epi32(a.v, bits)}; }
KG_INLINE I16 operator&(I16 a, uint32_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi32((int)mask))}; }
KG_INLINE I16 operator|(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
KG_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
KG_INLINE I16 splat_word(int x) { return {_mm512_set1_epi32(x)}; }
KG_INLINE F16 whole(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
KG_INLINE F16 as_floats(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
KG_INLINE F16 from_half(I16 a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))}; }  // float16 in the low halves
#else
struct I16 { __m256i lo, hi; };
KG_INLINE I16 load_words(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
KG_INLINE I16 load_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
KG_INLINE I16 load_halves(const uint8_t* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
KG_INLINE I16 shifted(I16 a, int bits) { return {_mm256_srli_epi32(a.lo, bits), _mm256_srli_epi32(a.hi, bits)}; }
KG_INLINE I16 operator<<(I16 a, int bits) { return {_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)}; }
KG_INLINE I16 operator&(I16 a, uint32_t mask) {
  const __m256i m = _mm256_set1_epi32((int)mask);
  return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
KG_INLINE I16 operator|(I16 a, I16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
KG_INLINE I16 operator-(I16 a, I16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
KG_INLINE I16 splat_word(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
KG_INLINE F16 whole(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
KG_INLINE F16 as_floats(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
KG_INLINE __m256 from_half(__m256i a) {
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
KG_INLINE F16 from_half(I16 a) {
  const I16 low = a & 0xffffu;
  return {from_half(low.lo), from_half(low.hi)};
}
#endif

// Codes. `value` takes a code from the low bits of each word, whatever lies above; `zero` is the code
// of zero in every word, for formats that have one of their own for each group.
struct Int4 {
  static constexpr int bits = 4;
#if KG_AVX512
  static KG_INLINE F16 value(I16 raw) {
    return {_mm512_permutexvar_ps(raw.v, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7))};
  }
#else
  static KG_INLINE F16 value(I16 raw) { return whole((raw & 15u) - splat_word(8)); }
#endif
  static KG_INLINE F16 value(I16 raw, I16 zero) { return whole((raw & 15u) - zero); }
};

struct Int8 {
  static constexpr int bits = 8;
  static KG_INLINE F16 value(I16 raw) { return whole((raw & 255u) - splat_word(128)); }
  static KG_INLINE F16 value(I16 raw, I16 zero) { return whole((raw & 255u) - zero); }
};

struct E2M1 {
  static constexpr int bits = 4;
  static KG_INLINE F16 value(I16 raw) {
#if KG_AVX512
    return {_mm512_permutexvar_ps(
        raw.v, _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6))};
#else
    const __m256 table = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
    const F16 sign = as_floats((raw << 28) & 0x80000000u);
    return {_mm256_xor_ps(_mm256_permutevar8x32_ps(table, raw.lo), sign.lo),
            _mm256_xor_ps(_mm256_permutevar8x32_ps(table, raw.hi), sign.hi)};
#endif
  }
};

struct E4M3 {  // through float16, whose exponent is one bit longer: exact, subnormals at full speed
  static constexpr int bits = 8;
  static KG_INLINE F16 value(I16 raw) {
    return from_half(((raw & 0x7fu) << 7) | ((raw & 0x80u) << 8)) * splat(256.0f);
  }
};

// Scales: 16 of them, for the lanes of half a panel.
struct ScaleF32 {
  static constexpr int bytes = 4;
  static KG_INLINE F16 at(const uint8_t* p) { return as_floats(load_words(p)); }
};
struct ScaleBF16 {
  static constexpr int bytes = 2;
  static KG_INLINE F16 at(const uint8_t* p) { return as_floats(load_halves(p) << 16); }
};
struct ScaleF16 {
  static constexpr int bytes = 2;
  static KG_INLINE F16 at(const uint8_t* p) { return from_half(load_halves(p)); }
};
struct ScaleE8M0 {  // 2^(b - 127)
  static constexpr int bytes = 1;
  static KG_INLINE F16 at(const uint8_t* p) { return max(as_floats(load_bytes(p) << 23), splat(0x1p-127f)); }
};
struct ScaleE4M3 {
  static constexpr int bytes = 1;
  static KG_INLINE F16 at(const uint8_t* p) { return from_half(load_bytes(p) << 7) * splat(256.0f); }
};

// One byte of a packed matrix; as a type it says how to read them all.
//   GROUP   consecutive k with one scale, 0: the whole row
template <class CODE, class SCALE, int GROUP, bool ZERO, bool FACTOR>
struct Packed {
  using Code = CODE;
  using Scale = SCALE;
  static constexpr int group = GROUP;
  static constexpr bool zero = ZERO, factor = FACTOR;
  static constexpr int word = 32 / CODE::bits;                    // k in a word
  static constexpr int header = 32 * (SCALE::bytes + (ZERO ? 1 : 0));  // bytes before the words of a group
  static constexpr int group_bytes(int k) { return header + 32 * k * CODE::bits / 8; }
  uint8_t byte;
};
template <class T> struct IsPacked : std::false_type {};
template <class C, class S, int G, bool Z, bool F> struct IsPacked<Packed<C, S, G, Z, F>> : std::true_type {};
template <class T> struct IsFactored : std::false_type {};
template <class C, class S, int G, bool Z> struct IsFactored<Packed<C, S, G, Z, true>> : std::true_type {};

// Elements 2j and 2j+1 of each word, already shifted down, as float32.
template <class P>
KG_INLINE F16 element(I16 raw, I16 zero) {
  if constexpr (P::zero) return P::Code::value(raw, zero);
  return P::Code::value(raw);
}

#if KG_DOT2
namespace detail {
constexpr uint16_t bf16_bits(float x) { return (uint16_t)(__builtin_bit_cast(uint32_t, x) >> 16); }
struct Table32 { alignas(64) uint16_t entry[32]; };
constexpr Table32 int4_table() {
  Table32 t{};
  for (int i = 0; i < 32; ++i) t.entry[i] = bf16_bits((float)(i % 16 - 8));
  return t;
}
constexpr Table32 difference_table() {  // -16 … 15
  Table32 t{};
  for (int i = 0; i < 32; ++i) t.entry[i] = bf16_bits((float)(i - 16));
  return t;
}
constexpr Table32 e2m1_table() {
  constexpr float size[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  Table32 t{};
  for (int i = 0; i < 32; ++i) t.entry[i] = bf16_bits(i & 8 ? -size[i & 7] : size[i & 7]);
  return t;
}
constexpr Table32 subnormal_table() {
  Table32 t{};
  for (int i = 0; i < 32; ++i) t.entry[i] = bf16_bits((float)(i & 7) * 0x1p-9f);
  return t;
}
inline constexpr Table32 INT4 = int4_table(), DIFFERENCE = difference_table(), E2M1_VALUES = e2m1_table(),
                         SUBNORMAL = subnormal_table();
KG_INLINE __m512i looked_up(__m512i index, const Table32& table) {  // by the low 5 bits of each half
  return _mm512_permutexvar_epi16(index, _mm512_load_si512(table.entry));
}
}  // namespace detail

// Both elements of each word as a pair of bfloat16, exactly.
template <class P>
KG_INLINE __m512i element_pair(I16 raw, I16 zero) {
  using Code = typename P::Code;
  if constexpr (std::is_same<Code, Int4>::value && P::zero) {
    // `zero` holds 16 - z in both halves: q - z + 16 is an index
    return detail::looked_up(_mm512_add_epi16((raw & 0x000f000fu).v, zero.v), detail::DIFFERENCE);
  } else if constexpr (std::is_same<Code, Int4>::value) {
    return detail::looked_up(raw.v, detail::INT4);
  } else if constexpr (std::is_same<Code, E2M1>::value) {
    return detail::looked_up(raw.v, detail::E2M1_VALUES);
  } else if constexpr (std::is_same<Code, E4M3>::value) {
    const __m512i size = ((raw & 0x007f007fu) << 4).v;
    const __m512i normal = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
    const __mmask32 small = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8 << 4));
    const __m512i table = _mm512_load_si512(detail::SUBNORMAL.entry);
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, small, raw.v, table);
    return _mm512_or_si512(value, ((raw & 0x00800080u) << 8).v);
  } else {
    const I16 even{(__m512i)element<P>(raw, zero).v}, odd{(__m512i)element<P>(shifted(raw, 16), zero).v};
    return (shifted(even, 16) | (odd & 0xffff0000u)).v;
  }
}
#endif

// What `element` and `element_pair` take for the zero points of 16 lanes.
template <class P, bool PAIRS>
KG_INLINE I16 zero_points(const uint8_t* p) {
  if constexpr (!P::zero) return splat_word(0);
  const I16 z = load_bytes(p);
  if constexpr (PAIRS && P::Code::bits == 4) {
    const I16 rest = splat_word(16) - z;
    return rest | (rest << 16);
  }
  return z;
}

}  // namespace kg
