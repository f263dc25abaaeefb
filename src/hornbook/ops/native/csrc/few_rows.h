// Products of a few rows with matrices in PyTorch's layout, [outputs][inputs], whose weights are read once.
//
// The order of each sum does not depend on the number of rows.
#pragma once
#include "simd.h"
#include "threads.h"

namespace {

constexpr i64 W = Vec::lanes;

// Products of `num_rows` rows of x by `columns` rows of weights, `step` apart. With several rows, the sums keep the
// processor too busy to run ahead to the next weights, so these are fetched beforehand.
template <int num_rows, int columns, class T>
void dot_block(const float* x, i64 stride, const T* weight, i64 step, i64 inputs, float* out) {
  Vec sums[columns][num_rows];
#pragma GCC unroll 8
  for (int c = 0; c < columns; c++)
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; r++) sums[c][r] = set1(0.0f);
  for (i64 k = 0; k < inputs; k += W) {
    const i64 n = smaller(W, inputs - k);
    Vec values[columns];
#pragma GCC unroll 8
    for (int c = 0; c < columns; c++) {
      const T* from = weight + c * step + k;
      if constexpr (num_rows > 1) __builtin_prefetch(from + columns * step);
      values[c] = n == W ? load(from) : load(from, n);
    }
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; r++) {
      const float* from = x + r * stride + k;
      const Vec row = n == W ? load(from) : load(from, n);
#pragma GCC unroll 8
      for (int c = 0; c < columns; c++) sums[c][r] = fma(values[c], row, sums[c][r]);
    }
  }
  constexpr int all = columns * num_rows;
#pragma GCC unroll 8
  for (int i = 0; i < all; i += 8) sums_of(&sums[0][0] + i, all - i < 8 ? all - i : 8, out + i);
}

// Calls store(row, column, value) for a range of columns of x Wᵀ + bias.
template <int num_rows, class T, class Store>
void dot_range(const float* x, i64 stride, const T* weight, i64 step, const float* bias, i64 inputs, Range own,
               Store store) {
  constexpr int columns = Vec::lanes == 16 ? (num_rows <= 2 ? 8 : num_rows <= 5 ? 4 : 3) : (num_rows <= 2 ? 4 : 1);
  float block[columns * num_rows];
  const auto store_columns = [&](i64 first, i64 count) {
    for (i64 c = 0; c < count; c++)
      for (i64 r = 0; r < num_rows; r++) store(r, first + c, block[c * num_rows + r] + (bias ? bias[first + c] : 0.0f));
  };
  i64 column = own.begin;
  for (; column + columns <= own.end; column += columns) {
    dot_block<num_rows, columns>(x, stride, weight + column * step, step, inputs, block);
    store_columns(column, columns);
  }
  for (; column < own.end; column++) {
    dot_block<num_rows, 1>(x, stride, weight + column * step, step, inputs, block);
    store_columns(column, 1);
  }
}

template <class T, class Store>
void dot(const float* x, i64 rows, i64 stride, const T* weight, const float* bias, i64 inputs, Range own, Store store) {
  switch (rows) {
    case 1: return dot_range<1>(x, stride, weight, inputs, bias, inputs, own, store);
    case 2: return dot_range<2>(x, stride, weight, inputs, bias, inputs, own, store);
    case 3: return dot_range<3>(x, stride, weight, inputs, bias, inputs, own, store);
    case 4: return dot_range<4>(x, stride, weight, inputs, bias, inputs, own, store);
    case 5: return dot_range<5>(x, stride, weight, inputs, bias, inputs, own, store);
    case 6: return dot_range<6>(x, stride, weight, inputs, bias, inputs, own, store);
    case 7: return dot_range<7>(x, stride, weight, inputs, bias, inputs, own, store);
    default: return dot_range<8>(x, stride, weight, inputs, bias, inputs, own, store);
  }
}

}  // namespace
