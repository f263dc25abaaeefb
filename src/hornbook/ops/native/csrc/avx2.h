// The operations of simd.h with AVX2 and FMA: 8 lanes.
#pragma once
#include "x86.h"

namespace {

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
HB_INLINE void stream(float* p, Vec a) { store(p, a); }

struct Ints {
  __m256i v;
};
inline Ints ints(std::uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
inline Ints count_from(std::uint32_t x) {
  return {_mm256_add_epi32(ints(x).v, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, std::uint32_t b) { return {_mm256_mullo_epi32(a.v, ints(b).v)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm256_and_si256(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline Ints operator>>(Ints a, unsigned bits) { return {_mm256_srli_epi32(a.v, static_cast<int>(bits))}; }
inline Vec where_at_least(Ints a, Ints b, Vec x) {
  return {_mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v)), x.v)};
}

HB_INLINE Vec low(Vec a, Vec b) { return {_mm256_unpacklo_ps(a.v, b.v)}; }
HB_INLINE Vec high(Vec a, Vec b) { return {_mm256_unpackhi_ps(a.v, b.v)}; }
HB_INLINE Vec low_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0x44)}; }
HB_INLINE Vec high_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0xEE)}; }
HB_INLINE Vec even(Vec a, Vec b) { return {_mm256_permute2f128_ps(a.v, b.v, 0x20)}; }
HB_INLINE Vec odd(Vec a, Vec b) { return {_mm256_permute2f128_ps(a.v, b.v, 0x31)}; }
HB_INLINE Vec sums_of_pairs(Vec a, Vec b) {
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_hadd_ps(a.v, b.v)), 0xD8))};
}
template <i64 group>
HB_INLINE Vec repeat(const float* from) {
  if constexpr (group == 1) return set1(*from);
  return {_mm256_castpd_ps(_mm256_broadcast_sd((const double*)from))};
}

HB_INLINE Vec load_pairs(const bf16* first, const bf16* second, i64 n) {
  bf16 rows[2][8] = {};
  std::memcpy(rows[0], first, static_cast<std::size_t>(larger(0, smaller(n, 8))) * sizeof(bf16));
  if (second) std::memcpy(rows[1], second, static_cast<std::size_t>(larger(0, smaller(n, 8))) * sizeof(bf16));
  const __m128i a = _mm_loadu_si128((const __m128i*)rows[0]), b = _mm_loadu_si128((const __m128i*)rows[1]);
  return {_mm256_castsi256_ps(_mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b)))};
}

}  // namespace
