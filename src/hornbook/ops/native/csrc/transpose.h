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
inline void turn(const float* from, i64 stride, i64 rows, i64 columns, float* to, i64 to_stride) {
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

// Lane i is the sum of vector i.
HB_INLINE Vec sums(const Vec (&vectors)[Vec::lanes]) {
  Vec quads[Vec::lanes / 4];  // in each quarter, the sums of that quarter of four vectors
#pragma GCC unroll 4
  for (i64 i = 0; i < Vec::lanes / 4; ++i) {
    const Vec* v = vectors + 4 * i;
    const Vec a = low(v[0], v[1]) + high(v[0], v[1]), b = low(v[2], v[3]) + high(v[2], v[3]);
    quads[i] = low_pairs(a, b) + high_pairs(a, b);
  }
  const Vec a = even(quads[0], quads[1]) + odd(quads[0], quads[1]);
  if constexpr (Vec::lanes == 8) {
    return a;
  } else {
    const Vec b = even(quads[2], quads[3]) + odd(quads[2], quads[3]);
    return even(a, b) + odd(a, b);
  }
}

}  // namespace
