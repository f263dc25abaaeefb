// As many vectors as a vector has lanes: across each other, and the sum of each.
#pragma once
#include "simd.h"

#define HB_INLINE inline __attribute__((always_inline))

namespace {

// Of each 128 bits of `a` and `b`: the lower floats, alternating; the upper ones; the lower pairs; the upper pairs.
#ifdef __AVX512F__
HB_INLINE Vec low(Vec a, Vec b) { return {_mm512_unpacklo_ps(a.v, b.v)}; }
HB_INLINE Vec high(Vec a, Vec b) { return {_mm512_unpackhi_ps(a.v, b.v)}; }
HB_INLINE Vec low_pairs(Vec a, Vec b) { return {_mm512_shuffle_ps(a.v, b.v, 0x44)}; }
HB_INLINE Vec high_pairs(Vec a, Vec b) { return {_mm512_shuffle_ps(a.v, b.v, 0xEE)}; }
// The 128 bits of even and of odd numbers of `a`, then those of `b`.
HB_INLINE Vec even(Vec a, Vec b) { return {_mm512_shuffle_f32x4(a.v, b.v, 0x88)}; }
HB_INLINE Vec odd(Vec a, Vec b) { return {_mm512_shuffle_f32x4(a.v, b.v, 0xDD)}; }
#else
HB_INLINE Vec low(Vec a, Vec b) { return {_mm256_unpacklo_ps(a.v, b.v)}; }
HB_INLINE Vec high(Vec a, Vec b) { return {_mm256_unpackhi_ps(a.v, b.v)}; }
HB_INLINE Vec low_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0x44)}; }
HB_INLINE Vec high_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0xEE)}; }
HB_INLINE Vec even(Vec a, Vec b) { return {_mm256_permute2f128_ps(a.v, b.v, 0x20)}; }
HB_INLINE Vec odd(Vec a, Vec b) { return {_mm256_permute2f128_ps(a.v, b.v, 0x31)}; }
#endif

// Lane j of vector i goes to lane i of vector j.
HB_INLINE void transpose(Vec (&square)[Vec::lanes]) {
  Vec quads[Vec::lanes];  // quads[4 i + j] holds, in quarter q, lane 4 q + j of vectors 4 i to 4 i + 3
#pragma GCC unroll 4
  for (i64 i = 0; i < Vec::lanes; i += 4) {
    const Vec a = low(square[i], square[i + 1]), b = high(square[i], square[i + 1]);
    const Vec c = low(square[i + 2], square[i + 3]), d = high(square[i + 2], square[i + 3]);
    quads[i] = low_pairs(a, c), quads[i + 1] = high_pairs(a, c);
    quads[i + 2] = low_pairs(b, d), quads[i + 3] = high_pairs(b, d);
  }
#pragma GCC unroll 4
  for (i64 j = 0; j < 4; ++j) {
    const Vec a = even(quads[j], quads[j + 4]), b = odd(quads[j], quads[j + 4]);
    if constexpr (Vec::lanes == 8) {
      square[j] = a, square[j + 4] = b;
    } else {
      const Vec c = even(quads[j + 8], quads[j + 12]), d = odd(quads[j + 8], quads[j + 12]);
      square[j] = even(a, c), square[j + 4] = even(b, d), square[j + 8] = odd(a, c), square[j + 12] = odd(b, d);
    }
  }
}

// to[column][row] of from[row][column], whose rows and columns are `stride` and `to_stride` apart: whole vectors of rows.
template <class T>
inline void turn(const T* from, i64 stride, i64 rows, i64 columns, T* to, i64 to_stride) {
  for (i64 column = 0; column < columns; column += Vec::lanes) {
    const i64 there = smaller(Vec::lanes, columns - column);
    for (i64 row = 0; row < rows; row += Vec::lanes) {
      Vec square[Vec::lanes];
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i) square[i] = load(from + (row + i) * stride + column, there);
      transpose(square);
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i)
        if (i < there) store(to + (column + i) * to_stride + row, square[i]);
    }
  }
}

#ifdef __AVX512F__
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
#else
HB_INLINE void zip(Vec& a, Vec& b) {
  const Vec lower = low(a, b), upper = high(a, b);
  a = even(lower, upper), b = odd(lower, upper);
}
HB_INLINE Vec sums_of_pairs(Vec a, Vec b) {
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_hadd_ps(a.v, b.v)), 0xD8))};
}
template <i64 group>
HB_INLINE Vec repeat(const float* from) {
  if constexpr (group == 1) return set1(*from);
  return {_mm256_castpd_ps(_mm256_broadcast_sd((const double*)from))};
}
#endif

// Lane i of vector j goes to lane i group + j of all vectors together.
template <i64 group>
HB_INLINE void interleave(Vec (&vectors)[group]) {
  if constexpr (group == 4) {
    zip(vectors[0], vectors[2]), zip(vectors[1], vectors[3]);
    zip(vectors[0], vectors[1]), zip(vectors[2], vectors[3]);
  } else if constexpr (group == 2) {
    zip(vectors[0], vectors[1]);
  }
}

// The sums of groups of lanes of `group` vectors, one vector after the other.
template <i64 group>
HB_INLINE Vec sums_of_groups(const Vec* v) {
  if constexpr (group == 4) return sums_of_pairs(sums_of_pairs(v[0], v[1]), sums_of_pairs(v[2], v[3]));
  if constexpr (group == 2) return sums_of_pairs(v[0], v[1]);
  return *v;
}

// Transposes a matrix whose rows follow each other in the lanes of vectors: 4x4 in one or two, 8x8 in four of 16.
template <i64 count>
HB_INLINE void transpose(Vec (&matrix)[count]) {
#ifdef __AVX512F__
  if constexpr (count == 1) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    matrix[0] = {_mm512_permutexvar_ps(order, matrix[0].v)};
    return;
  }
#endif
  if constexpr (count == 2) {
    zip(matrix[0], matrix[1]), zip(matrix[0], matrix[1]);
  } else if constexpr (count == 4) {
#pragma GCC unroll 3
    for (i64 bit = 0; bit < 3; ++bit) {
      zip(matrix[0], matrix[2]), zip(matrix[1], matrix[3]);
      const Vec second = matrix[2];
      matrix[2] = matrix[1], matrix[1] = second;
    }
  }
}

}  // namespace
