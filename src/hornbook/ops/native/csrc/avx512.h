// The operations of simd.h with AVX-512: 16 lanes.
#pragma once
#include "x86.h"

namespace {

struct Vec {
  static constexpr i64 lanes = 16;
  __m512 v;
};
struct Mask {
  __mmask16 m;
};
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a b + c
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec times_power_of_2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }  // n integral, any range
inline Mask less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Vec select(Mask mask, Vec a, Vec b) { return {_mm512_mask_blend_ps(mask.m, b.v, a.v)}; }  // mask ? a : b
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline unsigned equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }  // a bit for each lane

inline __mmask16 first_lanes(i64 n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1u << n) - 1); }
inline Vec first(i64 n, Vec a, Vec b) { return {_mm512_mask_blend_ps(first_lanes(n), b.v, a.v)}; }  // n lanes of a
inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
inline __m256i narrow(__m512 x) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(x);
#else
  const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
#endif
}

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const bf16* p) { return {widen(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store(bf16* p, Vec a) { _mm256_storeu_si256((__m256i*)p, narrow(a.v)); }
#ifndef __SANITIZE_ADDRESS__
// The first n lanes; the others are zero, and memory behind them is neither read nor written.
inline Vec load(const float* p, i64 n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline Vec load(const bf16* p, i64 n) {
  return n >= 16 ? load(p) : Vec{widen(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
inline void store(float* p, Vec a, i64 n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline void store(bf16* p, Vec a, i64 n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(a.v)); }
#endif
HB_INLINE void stream(float* p, Vec a) { _mm512_stream_ps(p, a.v); }  // past the caches, to the beginning of a line

// Whole numbers of 32 bits.
struct Ints {
  __m512i v;
};
inline Ints ints(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline Ints count_from(std::uint32_t x) {
  return {_mm512_add_epi32(ints(x).v, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))};
}
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, std::uint32_t b) { return {_mm512_mullo_epi32(a.v, ints(b).v)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Ints operator>>(Ints a, unsigned bits) { return {_mm512_srli_epi32(a.v, bits)}; }
// x where a >= b, which are below 2^31; 0 elsewhere.
inline Vec where_at_least(Ints a, Ints b, Vec x) {
  return {_mm512_maskz_mov_ps(_mm512_cmpge_epi32_mask(a.v, b.v), x.v)};
}

// Of each 128 bits of `a` and `b`: the lower floats, alternating; the upper ones; the lower pairs; the upper pairs.
HB_INLINE Vec low(Vec a, Vec b) { return {_mm512_unpacklo_ps(a.v, b.v)}; }
HB_INLINE Vec high(Vec a, Vec b) { return {_mm512_unpackhi_ps(a.v, b.v)}; }
HB_INLINE Vec low_pairs(Vec a, Vec b) { return {_mm512_shuffle_ps(a.v, b.v, 0x44)}; }
HB_INLINE Vec high_pairs(Vec a, Vec b) { return {_mm512_shuffle_ps(a.v, b.v, 0xEE)}; }
// The 128 bits of even and of odd numbers of `a`, then those of `b`.
HB_INLINE Vec even(Vec a, Vec b) { return {_mm512_shuffle_f32x4(a.v, b.v, 0x88)}; }
HB_INLINE Vec odd(Vec a, Vec b) { return {_mm512_shuffle_f32x4(a.v, b.v, 0xDD)}; }
// The lanes of `a` and `b` in turn: those of their first halves, and those of their second halves.
HB_INLINE void zip(Vec& a, Vec& b) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const Vec whole = a;
  a = {_mm512_permutex2var_ps(whole.v, first, b.v)}, b = {_mm512_permutex2var_ps(whole.v, second, b.v)};
}
// The sums of neighboring lanes of `a`, then of `b`.
HB_INLINE Vec sums_of_pairs(Vec a, Vec b) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_add_ps(_mm512_permutex2var_ps(a.v, evens, b.v), _mm512_permutex2var_ps(a.v, odds, b.v))};
}
// A vector of the same `group` floats over and over.
template <i64 group>
HB_INLINE Vec repeat(const float* from) {
  if constexpr (group == 1) return set1(*from);
  if constexpr (group == 4) return {_mm512_broadcast_f32x4(_mm_loadu_ps(from))};
  return {_mm512_castpd_ps(_mm512_set1_pd(*(const double*)from))};
}
// Transposes the 4x4 matrix whose rows follow each other in the lanes.
HB_INLINE void transpose(Vec (&matrix)[1]) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  matrix[0] = {_mm512_permutexvar_ps(order, matrix[0].v)};
}

// The sums of up to 8 vectors; each is added up in the order of sum().
inline void sums_of(const Vec* v, int count, float* out) {
  __m512 a[8];
  for (int i = 0; i < 8; i++) a[i] = i < count ? v[i].v : _mm512_setzero_ps();
  for (int i = 0; i < 4; i++)
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xEE));
  for (int i = 0; i < 2; i++)
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
  const __m512 pairs = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4E)));
  for (int i = 0; i < count; i++) out[i] = lanes[i % 4 * 4 + i / 4];
}

// The first n values of two rows of bf16 as pairs, zeros after them; `second` may be null, which means zeros.
HB_INLINE Vec load_pairs(const bf16* first, const bf16* second, i64 n) {
  if (n >= 16 && second) {
    const __m512i lower = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)first));
    const __m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)second));
    return {_mm512_castsi512_ps(_mm512_or_si512(lower, _mm512_slli_epi32(upper, 16)))};
  }
  const __mmask16 mask = first_lanes(n);
  __m512i pairs = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first));
  if (second) {
    const __m512i upper = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second));
    pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(upper, 16));
  }
  return {_mm512_castsi512_ps(pairs)};
}

#ifdef __AVX512BF16__
#define HB_PAIRS  // products of pairs of bf16
// sum + the products of pairs.
HB_INLINE Vec dot_pairs(Vec a, Vec b, Vec sum) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_castps_si512(a.v), (__m512bh)_mm512_castps_si512(b.v))};
}
// Two vectors as bf16.
struct Halves {
  __m512i both;  // the first in the lower half
};
HB_INLINE Halves narrow_two(Vec first, Vec second) { return {(__m512i)_mm512_cvtne2ps_pbh(second.v, first.v)}; }
HB_INLINE void store_first(bf16* p, Halves a) { _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(a.both)); }
HB_INLINE void store_second(bf16* p, Halves a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_extracti64x4_epi64(a.both, 1));
}
HB_INLINE Vec pair_up(Halves a) {  // lane i: value i of the first, then of the second
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(order, a.both))};
}
#endif

}  // namespace
