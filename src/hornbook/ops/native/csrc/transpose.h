// As many vectors as a vector has lanes: across each other, and the sum of each.
#pragma once
#include "simd.h"

namespace {

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

// Transposes a matrix whose rows follow each other in the lanes of vectors: 4x4 in two (in one of 16: avx512.h), 8x8 in four of 16.
template <i64 count>
HB_INLINE void transpose(Vec (&matrix)[count]) {
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
