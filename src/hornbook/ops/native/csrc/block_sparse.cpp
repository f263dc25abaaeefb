// Products of tokens with a block-sparse matrix, fp32, tiles of tokens: features lie one after the other, and of each
// the tokens of a tile side by side, [features][tile]. A weight is then one broadcast for a whole vector of tokens, and
// the layout, not the size of the blocks, decides the speed.
//
// Rows of blocks are told by `starts` [rows + 1], the columns of their blocks by `columns` [n]; blocks are [n][b][b].
#include "simd.h"
#include "threads.h"

namespace {

constexpr i64 kVectors = 2;                      // of tokens in a tile
constexpr i64 kTile = kVectors * Vec::lanes;     // tokens
constexpr i64 kLargest = 64;                     // block size
constexpr i64 kTilesAtOnce = 32;                 // of the weight gradient, so that tiles stay in the cache

// to[j][i] = from[i][j] for 4 x 4 numbers.
inline void transpose_4(const float* from, i64 from_stride, float* to, i64 to_stride) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride);
  __m128 c = _mm_loadu_ps(from + 2 * from_stride), d = _mm_loadu_ps(from + 3 * from_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_stride, b);
  _mm_storeu_ps(to + 2 * to_stride, c);
  _mm_storeu_ps(to + 3 * to_stride, d);
}

// tile[feature][token] of rows [token][feature], a multiple of 4 features; tokens that do not exist are zero.
void pack_tile(const float* rows, i64 stride, i64 num_tokens, i64 num_features, float* tile) {
  constexpr i64 kBlock = 16;  // features: a cache line of each row
  const i64 whole = num_tokens / 4 * 4;
  for (i64 first = 0; first < num_features; first += kBlock) {
    const i64 end = smaller(first + kBlock, num_features);
    for (i64 token = 0; token < whole; token += 4)
      for (i64 feature = first; feature < end; feature += 4)
        transpose_4(rows + token * stride + feature, stride, tile + feature * kTile + token, kTile);
    for (i64 token = whole; token < kTile; ++token)
      for (i64 feature = first; feature < end; ++feature)
        tile[feature * kTile + token] = token < num_tokens ? rows[token * stride + feature] : 0.0f;
  }
}

// N outputs of a row of blocks for a tile of tokens.
template <i64 N>
void outputs(const float* tile, const float* values, const i64* columns, i64 first, i64 last, i64 size, i64 row,
             float* out) {
  Vec sums[N][kVectors];
  for (i64 n = 0; n < N; ++n)
    for (i64 v = 0; v < kVectors; ++v) sums[n][v] = set1(0.0f);
  for (i64 block = first; block < last; ++block) {
    const float* weights = values + (block * size + row) * size;
    const float* x = tile + columns[block] * size * kTile;
    for (i64 k = 0; k < size; ++k) {
      Vec tokens[kVectors];
      for (i64 v = 0; v < kVectors; ++v) tokens[v] = load(x + k * kTile + v * Vec::lanes);
#pragma GCC unroll 8
      for (i64 n = 0; n < N; ++n) {
        const Vec weight = set1(weights[n * size + k]);
        for (i64 v = 0; v < kVectors; ++v) sums[n][v] = fma(weight, tokens[v], sums[n][v]);
      }
    }
  }
  for (i64 n = 0; n < N; ++n)
    for (i64 v = 0; v < kVectors; ++v) store(out + n * kTile + v * Vec::lanes, sums[n][v]);
}

// Adds dy x of a 4 x 4 part of a block over some tiles to `of_values`.
void gradients(const float* dy, i64 dy_step, const float* x, i64 x_step, i64 num_tiles, i64 size, float* of_values) {
  Vec sums[4][4];
  for (auto& row : sums)
    for (auto& entry : row) entry = set1(0.0f);
  for (i64 tile = 0; tile < num_tiles; ++tile, dy += dy_step, x += x_step)
    for (i64 v = 0; v < kVectors; ++v) {
      Vec tokens[4];
      for (i64 k = 0; k < 4; ++k) tokens[k] = load(x + k * kTile + v * Vec::lanes);
#pragma GCC unroll 4
      for (i64 n = 0; n < 4; ++n) {
        const Vec gradient = load(dy + n * kTile + v * Vec::lanes);
        for (i64 k = 0; k < 4; ++k) sums[n][k] = fma(gradient, tokens[k], sums[n][k]);
      }
    }
  for (i64 n = 0; n < 4; ++n)
    for (i64 k = 0; k < 4; ++k) of_values[n * size + k] += sum(sums[n][k]);
}

}  // namespace

// The size of a tile in tokens: tiles of m tokens and k features take round_up(m, tile) k floats.
HB_EXPORT(i64, block_sparse_tile_f32)() { return kTile; }

// Writes x [m][k], rows `stride` apart, as tiles.
HB_EXPORT(void, block_sparse_pack_f32)(const float* x, i64 stride, i64 m, i64 k, float* tiles, i64 threads) {
  const i64 count = (m + kTile - 1) / kTile;
  parallel(threads, [&](int thread, int running) {
    const Range own = share(count, 1, thread, running);
    for (i64 tile = own.begin; tile < own.end; ++tile)
      pack_tile(x + tile * kTile * stride, stride, smaller(kTile, m - tile * kTile), k, tiles + tile * kTile * k);
  });
}

// y [m][rows b] = x W^T of x in tiles of `columns_k` features; b is a multiple of 4, at most 64.
HB_EXPORT(void, block_sparse_product_f32)
(const float* tiles, i64 m, i64 columns_k, const float* values, const i64* starts, const i64* columns, i64 rows, i64 b,
 float* y, i64 threads) {
  const i64 count = (m + kTile - 1) / kTile, features = rows * b;
  parallel(threads, [&](int thread, int running) {
    const Range own = share(count, 1, thread, running);
    alignas(64) float out[kLargest * kTile];
    for (i64 tile = own.begin; tile < own.end; ++tile) {
      const float* x = tiles + tile * kTile * columns_k;
      const i64 num_tokens = smaller(kTile, m - tile * kTile);
      for (i64 row = 0; row < rows; ++row) {
        i64 n = 0;
#ifdef __AVX512F__
        for (; n + 8 <= b; n += 8) outputs<8>(x, values, columns, starts[row], starts[row + 1], b, n, out + n * kTile);
#endif
        for (; n < b; n += 4) outputs<4>(x, values, columns, starts[row], starts[row + 1], b, n, out + n * kTile);
        float* target = y + tile * kTile * features + row * b;
        i64 token = 0;
        for (; token + 4 <= num_tokens; token += 4)
          for (i64 feature = 0; feature < b; feature += 4)
            transpose_4(out + feature * kTile + token, kTile, target + token * features + feature, features);
        for (; token < num_tokens; ++token)
          for (i64 feature = 0; feature < b; ++feature) target[token * features + feature] = out[feature * kTile + token];
      }
    }
  });
}

// of_values [n][b][b] = (dy^T x) at the blocks; dy in tiles of rows b features, x of `columns_k`. Each thread has rows
// of blocks of its own, and the order of sums does not depend on how many there are.
HB_EXPORT(void, block_sparse_weight_gradient_f32)
(const float* dy, const float* x, i64 m, i64 columns_k, const i64* starts, const i64* columns, i64 rows, i64 b,
 float* of_values, i64 threads) {
  const i64 count = (m + kTile - 1) / kTile, features = rows * b;
  parallel(threads, [&](int thread, int running) {
    const Range own = share(rows, 1, thread, running);
    for (i64 at = starts[own.begin] * b * b; at < starts[own.end] * b * b; ++at) of_values[at] = 0.0f;
    for (i64 tile = 0; tile < count; tile += kTilesAtOnce) {
      const i64 some = smaller(kTilesAtOnce, count - tile);
      for (i64 row = own.begin; row < own.end; ++row)
        for (i64 block = starts[row]; block < starts[row + 1]; ++block)
          for (i64 n = 0; n < b; n += 4)
            for (i64 k = 0; k < b; k += 4)
              gradients(dy + (tile * features + row * b + n) * kTile, features * kTile,
                        x + (tile * columns_k + columns[block] * b + k) * kTile, columns_k * kTile, some, b,
                        of_values + (block * b + n) * b + k);
    }
  });
}
