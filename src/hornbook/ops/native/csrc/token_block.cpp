// One new token of each of a few texts: a pre-norm block with its cache of keys and values, and the logits.
//
// Weights lie as PyTorch has them, [outputs][inputs], and are read once for all rows: a product takes as long as memory
// needs to give them. What lies between two products stays in fp32. Each number is added up in one order, whatever the
// number of rows or threads.
#include <cmath>
#include <limits>

#include "activations.h"
#include "threads.h"

namespace {

constexpr i64 W = Vec::lanes, most_rows = 8;

inline void wait_for_all(int count) {
  if (count > 1) hb_runtime.barrier();
}

// The sums of up to 8 vectors; each is added up in the order of sum().
inline void sums_of(const Vec* v, int count, float* out) {
#ifdef __AVX512F__
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
#else
  for (int i = 0; i < count; i++) out[i] = sum(v[i]);
#endif
}

// Products of `num_rows` rows of x, zero from `inputs` up to a multiple of W, by `columns` rows of weights.
template <int num_rows, int columns, class T>
void dot_block(const float* x, i64 stride, const T* weight, i64 inputs, float* out) {
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
      const T* from = weight + c * inputs + k;
      values[c] = n == W ? load(from) : load(from, n);
    }
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; r++) {
      const Vec row = load(x + r * stride + k);
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
void dot_range(const float* x, i64 stride, const T* weight, const float* bias, i64 inputs, Range own, Store store) {
  constexpr int columns = Vec::lanes == 16 ? (num_rows <= 2 ? 8 : num_rows <= 5 ? 4 : 3) : (num_rows <= 2 ? 4 : 1);
  float block[columns * num_rows];
  const auto store_columns = [&](i64 first, i64 count) {
    for (i64 c = 0; c < count; c++)
      for (i64 r = 0; r < num_rows; r++) store(r, first + c, block[c * num_rows + r] + (bias ? bias[first + c] : 0.0f));
  };
  i64 column = own.begin;
  for (; column + columns <= own.end; column += columns) {
    dot_block<num_rows, columns>(x, stride, weight + column * inputs, inputs, block);
    store_columns(column, columns);
  }
  for (; column < own.end; column++) {
    dot_block<num_rows, 1>(x, stride, weight + column * inputs, inputs, block);
    store_columns(column, 1);
  }
}

template <class T, class Store>
void dot(const float* x, i64 rows, i64 stride, const T* weight, const float* bias, i64 inputs, Range own, Store store) {
  switch (rows) {
    case 1: return dot_range<1>(x, stride, weight, bias, inputs, own, store);
    case 2: return dot_range<2>(x, stride, weight, bias, inputs, own, store);
    case 3: return dot_range<3>(x, stride, weight, bias, inputs, own, store);
    case 4: return dot_range<4>(x, stride, weight, bias, inputs, own, store);
    case 5: return dot_range<5>(x, stride, weight, bias, inputs, own, store);
    case 6: return dot_range<6>(x, stride, weight, bias, inputs, own, store);
    case 7: return dot_range<7>(x, stride, weight, bias, inputs, own, store);
    default: return dot_range<8>(x, stride, weight, bias, inputs, own, store);
  }
}

// The layer norm of a row, zero behind its end.
template <class T>
void normalize(const T* x, i64 size, const float* gain, const float* bias, float epsilon, float* out) {
  Vec total = set1(0.0f), squares = set1(0.0f);
  for (i64 i = 0; i < size; i += W) {
    const Vec value = load(x + i, smaller(W, size - i));
    total = total + value;
    store(out + i, value);
  }
  const Vec mean = set1(sum(total) / static_cast<float>(size));
  for (i64 i = 0; i < size; i += W) {
    const Vec value = first(size - i, load(out + i) - mean, set1(0.0f));
    squares = fma(value, value, squares);
    store(out + i, value);
  }
  const Vec scale = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon));
  for (i64 i = 0; i < size; i += W) {
    const i64 n = smaller(W, size - i);
    store(out + i, fma(load(out + i) * scale, load(gain + i, n), load(bias + i, n)));
  }
}

template <class T>
void normalize_rows(const T* x, i64 rows, i64 stride, i64 size, const float* gain, const float* bias, float epsilon,
                    float* out, i64 out_stride) {
  for (i64 r = 0; r < rows; r++) normalize(x + r * stride, size, gain, bias, epsilon, out + r * out_stride);
}

// Keys and values, [rows][2][heads][columns][size] with strides; the last column is written.
struct Cache {
  float* data;
  i64 row, kind, head, column, columns;
  const float* mask;  // [rows][columns], added to scores, or null
  i64 mask_row;
};

// The attention of one head of one row; `qkv` is [3][heads][size] of the row, `scores` has a place for each column.
inline void attend(const Cache& cache, const float* qkv, i64 row, i64 head, i64 heads, i64 size, float* scores,
                   float* out) {
  float* keys = cache.data + row * cache.row + head * cache.head;
  float* values = keys + cache.kind;
  const i64 last = (cache.columns - 1) * cache.column, step = heads * size;
  const float *q = qkv + head * size, *mask = cache.mask ? cache.mask + row * cache.mask_row : nullptr;
  std::memcpy(keys + last, q + step, static_cast<std::size_t>(size) * sizeof(float));
  std::memcpy(values + last, q + 2 * step, static_cast<std::size_t>(size) * sizeof(float));
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  float top = -std::numeric_limits<float>::infinity();
  for (i64 j = 0; j < cache.columns; j += 8) {
    const int count = static_cast<int>(smaller(8, cache.columns - j));
    Vec totals[8];
    for (int c = 0; c < count; c++) {
      totals[c] = set1(0.0f);
      for (i64 i = 0; i < size; i += W) {
        const i64 n = smaller(W, size - i);
        totals[c] = fma(load(q + i, n), load(keys + (j + c) * cache.column + i, n), totals[c]);
      }
    }
    sums_of(totals, count, scores + j);
    for (i64 c = j; c < j + count; c++) {
      scores[c] = scores[c] * scale + (mask ? mask[c] : 0.0f);
      if (scores[c] > top) top = scores[c];
    }
  }
  Vec sums = set1(0.0f);
  for (i64 j = 0; j < cache.columns; j += W) {
    const Vec p = first(cache.columns - j, exp(load(scores + j) - set1(top)), set1(0.0f));
    sums = sums + p;
    store(scores + j, p);
  }
  const Vec factor = set1(1.0f / sum(sums));
  for (i64 i = 0; i < size; i += W) {
    const i64 n = smaller(W, size - i);
    Vec total = set1(0.0f);
    for (i64 j = 0; j < cache.columns; j++)
      total = fma(set1(scores[j]), load(values + j * cache.column + i, n), total);
    store(out + i, total * factor, n);
  }
}

// The parameters of a block in the order in which hornbook.ops.native.token_block gives them.
template <class T>
struct Parameters {
  const float *attention_gain, *attention_bias;
  const T* qkv;
  const float* qkv_bias;
  const T* out;
  const float* out_bias;
  const float *gain, *bias;
  const T* up;
  const float* up_bias;
  const T* down;
  const float* down_bias;
};

struct Sizes {
  i64 hidden, heads, head_size, feed_forward, activation;
};

struct Buffers {
  i64 wide, inner, far;  // floats of a row of hidden states, of mixed heads, of the feed-forward
  float *qkv, *mixed, *sums, *active;
};

template <class T>
void run_block(const T* x, i64 rows, const Parameters<T>& p, const Sizes& s, float epsilon, const Cache& cache, T* y,
               const Buffers& b, int thread, int count) {
  const i64 inner = s.heads * s.head_size;
  auto* normed = static_cast<float*>(scratch(1, rows * b.wide * i64(sizeof(float))));
  normalize_rows(x, rows, s.hidden, s.hidden, p.attention_gain, p.attention_bias, epsilon, normed, b.wide);
  dot(normed, rows, b.wide, p.qkv, p.qkv_bias, s.hidden, share(3 * inner, 8, thread, count),
      [&](i64 r, i64 c, float value) { b.qkv[r * 3 * inner + c] = value; });
  wait_for_all(count);
  auto* scores = static_cast<float*>(scratch(2, round_up(cache.columns, W) * i64(sizeof(float))));
  const Range tasks = share(rows * s.heads, 1, thread, count);
  for (i64 task = tasks.begin; task < tasks.end; task++) {
    const i64 row = task / s.heads, head = task % s.heads;
    float* out = b.mixed + row * b.inner + head * s.head_size;
    attend(cache, b.qkv + row * 3 * inner, row, head, s.heads, s.head_size, scores, out);
  }
  wait_for_all(count);
  dot(b.mixed, rows, b.inner, p.out, p.out_bias, inner, share(s.hidden, 8, thread, count),
      [&](i64 r, i64 c, float value) { b.sums[r * b.wide + c] = value + to_float(x[r * s.hidden + c]); });
  wait_for_all(count);
  normalize_rows(b.sums, rows, b.wide, s.hidden, p.gain, p.bias, epsilon, normed, b.wide);
  const Range own = share(s.feed_forward, W, thread, count);
  dot(normed, rows, b.wide, p.up, p.up_bias, s.hidden, own,
      [&](i64 r, i64 c, float value) { b.active[r * b.far + c] = value; });
  with_activation(static_cast<Activation>(s.activation), [&](auto fixed) {
    for (i64 r = 0; r < rows; r++)
      for (i64 c = own.begin; c < own.end; c += W) {
        float* at = b.active + r * b.far + c;
        store(at, activate<decltype(fixed)::value>(load(at)));
      }
  });
  wait_for_all(count);
  dot(b.active, rows, b.far, p.down, p.down_bias, s.feed_forward, share(s.hidden, 8, thread, count),
      [&](i64 r, i64 c, float value) {
        const float result = value + b.sums[r * b.wide + c];
        if constexpr (sizeof(T) == 2)
          y[r * s.hidden + c] = to_bf16(result);
        else
          y[r * s.hidden + c] = result;
      });
}

template <class T>
void token_block(const T* x, i64 rows, const i64* parameters, const i64* sizes, const float* epsilon, float* data,
                 const i64* strides, const float* mask, T* y, i64 threads) {
  Parameters<T> p;
  static_assert(sizeof(p) == 12 * sizeof(i64), "one address a parameter");
  std::memcpy(&p, parameters, sizeof(p));
  const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  const Cache cache{data, strides[0], strides[1], strides[2], strides[3], strides[4], mask, strides[5]};
  const i64 inner = s.heads * s.head_size;
  Buffers b{round_up(s.hidden, W), round_up(inner, W), round_up(s.feed_forward, W), nullptr, nullptr, nullptr, nullptr};
  const i64 floats = rows * (3 * inner + b.wide + b.inner + b.far);
  b.mixed = static_cast<float*>(scratch(0, floats * i64(sizeof(float))));
  std::memset(b.mixed, 0, static_cast<std::size_t>(floats) * sizeof(float));
  b.sums = b.mixed + rows * b.inner;
  b.active = b.sums + rows * b.wide;
  b.qkv = b.active + rows * b.far;
  parallel(threads, [&](int thread, int count) { run_block(x, rows, p, s, *epsilon, cache, y, b, thread, count); });
}

template <class T>
void token_logits(const T* x, i64 rows, i64 hidden, const float* gain, const float* bias, const float* epsilon,
                  const T* table, i64 vocabulary, float* logits, i64 threads) {
  parallel(threads, [=](int thread, int count) {
    const i64 wide = round_up(hidden, W);
    auto* normed = static_cast<float*>(scratch(1, rows * wide * i64(sizeof(float))));
    normalize_rows(x, rows, hidden, hidden, gain, bias, *epsilon, normed, wide);
    dot(normed, rows, wide, table, nullptr, hidden, share(vocabulary, 8, thread, count),
        [=](i64 r, i64 c, float value) { logits[r * vocabulary + c] = value; });
  });
}

}  // namespace

#define HB_TOKEN(name, T)                                                                                             \
  HB_EXPORT(void, token_block_##name)(const T* x, i64 rows, const i64* parameters, const i64* sizes,                  \
                                     const float* epsilon, float* cache, const i64* strides, const float* mask, T* y, \
                                     i64 threads) {                                                                   \
    token_block(x, rows, parameters, sizes, epsilon, cache, strides, mask, y, threads);                               \
  }                                                                                                                   \
  HB_EXPORT(void, token_logits_##name)(const T* x, i64 rows, i64 hidden, const float* gain, const float* bias,        \
                                      const float* epsilon, const T* table, i64 vocabulary, float* logits,            \
                                      i64 threads) {                                                                  \
    token_logits(x, rows, hidden, gain, bias, epsilon, table, vocabulary, logits, threads);                           \
  }

HB_TOKEN(f32, float)
HB_TOKEN(bf16, bf16)
