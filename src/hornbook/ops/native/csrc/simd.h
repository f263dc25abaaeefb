// Vectors of floats: 16 lanes with AVX-512, 8 with AVX2; bf16 is converted when it is loaded and rounded when stored.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "isa.h"

namespace {

inline float to_float(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
inline float to_float(float value) { return value; }

// Rounded to nearest, ties to even; a NaN stays one.
inline bf16 to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<bf16>((bits | 0x400000u) >> 16);
  return static_cast<bf16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __AVX512F__

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
inline Vec load(const bf16* p, i64 n) { return {widen(_mm256_maskz_loadu_epi16(first_lanes(n), p))}; }
inline void store(float* p, Vec a, i64 n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline void store(bf16* p, Vec a, i64 n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(a.v)); }
#endif

#else  // AVX2

struct Vec {
  static constexpr i64 lanes = 8;
  __m256 v;
};
struct Mask {
  __m256 m;
};
inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec times_power_of_2(Vec a, Vec n) {  // in two halves, so that results near the ends of the range come right
  const __m256i whole = _mm256_cvtps_epi32(max(min(n, set1(252.0f)), set1(-252.0f)).v);
  const __m256i half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, first), second)};
}
inline Mask less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline unsigned equal(Vec a, Vec b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
}
inline Vec first(i64 n, Vec a, Vec b) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32(static_cast<int>(n));
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)))};
}
inline Vec select(Mask mask, Vec a, Vec b) { return {_mm256_blendv_ps(b.v, a.v, mask.m)}; }
inline float sum(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Vec a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
inline __m128i narrow(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const bf16* p) { return {widen(_mm_loadu_si128((const __m128i*)p))}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline void store(bf16* p, Vec a) { _mm_storeu_si128((__m128i*)p, narrow(a.v)); }
#endif

#if !defined(__AVX512F__) || defined(__SANITIZE_ADDRESS__)  // which does not see what masked instructions touch
template <class T>
inline Vec load(const T* p, i64 n) {
  if (n >= Vec::lanes) return load(p);
  T part[Vec::lanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(part);
}
template <class T>
inline void store(T* p, Vec a, i64 n) {
  if (n >= Vec::lanes) return store(p, a);
  T part[Vec::lanes];
  store(part, a);
  std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}
#endif

// e^x, relative error below 2e-7 where the result is a normal number; 0 below that range, infinity above, NaN of NaN.
inline Vec exp(Vec x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));  // of a NaN, both return the second
  const Vec n = round(x * set1(1.44269504f));
  const Vec r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), x));
  Vec p = set1(1.9875691500e-4f);  // Cephes' expf
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  return times_power_of_2(fma(p, r * r, r) + set1(1.0f), n);
}

// tanh(x), relative error below 3e-7.
inline Vec tanh(Vec x) {
  const Vec z = x * x, e = exp(abs(x) * set1(-2.0f));
  const Vec far = (set1(1.0f) - e) / (set1(1.0f) + e);
  Vec p = set1(-5.70498872745e-3f);  // Cephes' tanhf
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x), signed_far = select(less(x, set1(0.0f)), set1(0.0f) - far, far);
  return select(less(abs(x), set1(0.625f)), near, signed_far);
}

}  // namespace
