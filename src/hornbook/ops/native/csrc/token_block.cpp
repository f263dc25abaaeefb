// One new token of each text: pre-norm blocks with their caches of keys and values, and the logits, in one call.
//
// Weights have PyTorch's layout, [outputs][inputs], and are read once for up to 8 rows, so a product takes little longer
// than reading its weights from memory. Intermediate results stay in fp32. The order of each sum does not depend on the
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
      if constexpr (num_rows > 1) _mm_prefetch(reinterpret_cast<const char*>(from + columns * step), _MM_HINT_T0);
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

// The layer norm of rows in whole vectors; both have the same stride.
inline void normalize(const float* x, i64 rows, i64 stride, i64 size, const float* gain, const float* bias,
                      float epsilon, float* out) {
  for (i64 r = 0; r < rows; r++, x += stride, out += stride) {
    Vec total = set1(0.0f), squares = set1(0.0f);
    for (i64 i = 0; i < size; i += W) total = total + load(x + i, smaller(W, size - i));
    const Vec mean = set1(sum(total) / static_cast<float>(size));
    for (i64 i = 0; i < size; i += W) {
      const Vec value = first(size - i, load(x + i) - mean, set1(0.0f));
      squares = fma(value, value, squares);
      store(out + i, value);
    }
    const Vec scale = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon));
    for (i64 i = 0; i < size; i += W) {
      const i64 n = smaller(W, size - i);
      store(out + i, fma(load(out + i) * scale, load(gain + i, n), load(bias + i, n)));
    }
  }
}

// Keys and values, [rows][2][heads][columns][size] with strides; the last column is written.
struct Cache {
  float* data;
  i64 row, kind, head, column, columns;
  const float* mask;  // [rows][columns], added to scores, or null
  i64 mask_row;
};

// The first vectors of the sum of all columns of values, each times its score.
template <int vectors>
void mix(const float* values, i64 step, i64 columns, const float* scores, Vec factor, i64 size, float* out) {
  Vec totals[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) totals[v] = set1(0.0f);
  for (i64 j = 0; j < columns; j++) {
    const Vec score = set1(scores[j]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) totals[v] = fma(score, load(values + j * step + v * W, size - v * W), totals[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) store(out + v * W, totals[v] * factor, size - v * W);
}

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
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  float top = lowest;
  i64 begin = 0;  // the text's first column: earlier ones may hold anything, and 0 * NaN is NaN
  if (mask)
    while (begin + 1 < cache.columns && mask[begin] == lowest) scores[begin++] = lowest;
  dot_range<1>(q, 0, keys, cache.column, nullptr, size, {begin, cache.columns}, [&](i64, i64 j, float value) {
    scores[j] = value * scale + (mask ? mask[j] : 0.0f);
    if (scores[j] > top) top = scores[j];
  });
  Vec sums = set1(0.0f);
  for (i64 j = 0; j < cache.columns; j += W) {
    const Vec p = first(cache.columns - j, exp(load(scores + j) - set1(top)), set1(0.0f));
    sums = sums + p;
    store(scores + j, p);
  }
  const Vec factor = set1(1.0f / sum(sums));
  values += begin * cache.column;
  const i64 count = cache.columns - begin;
  i64 i = 0;
  for (; i + 4 * W <= size; i += 4 * W)
    mix<4>(values + i, cache.column, count, scores + begin, factor, size - i, out + i);
  for (; i < size; i += W) mix<1>(values + i, cache.column, count, scores + begin, factor, size - i, out + i);
}

// A block, in the words in which hornbook.ops.native.token_block gives it.
template <class T>
struct Block {
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
  const float *attention_epsilon, *epsilon;
  i64 heads, head_size, feed_forward, activation;
};

// The final norm and the output table, likewise.
template <class T>
struct Head {
  const float *gain, *bias;
  const T* table;
  const float* epsilon;
  i64 vocabulary;
};

// What all threads share: `x` are the hidden states.
struct Buffers {
  i64 wide, inner, far;  // floats of a row of hidden states, of mixed heads, of the feed-forward
  float *x, *mixed, *active, *qkv;
};

template <class T>
void run_block(const Block<T>& p, i64 rows, i64 hidden, const Cache& cache, const Buffers& b, int thread, int count) {
  const i64 inner = p.heads * p.head_size;
  auto* normed = static_cast<float*>(scratch(1, rows * b.wide * i64(sizeof(float))));
  const auto add = [&](i64 r, i64 c, float value) { b.x[r * b.wide + c] += value; };
  normalize(b.x, rows, b.wide, hidden, p.attention_gain, p.attention_bias, *p.attention_epsilon, normed);
  dot(normed, rows, b.wide, p.qkv, p.qkv_bias, hidden, share(3 * inner, 8, thread, count),
      [&](i64 r, i64 c, float value) { b.qkv[r * 3 * inner + c] = value; });
  wait_for_all(count);
  auto* scores = static_cast<float*>(scratch(2, round_up(cache.columns, W) * i64(sizeof(float))));
  const Range tasks = share(rows * p.heads, 1, thread, count);
  for (i64 task = tasks.begin; task < tasks.end; task++) {
    const i64 row = task / p.heads, head = task % p.heads;
    float* out = b.mixed + row * b.inner + head * p.head_size;
    attend(cache, b.qkv + row * 3 * inner, row, head, p.heads, p.head_size, scores, out);
  }
  wait_for_all(count);
  dot(b.mixed, rows, b.inner, p.out, p.out_bias, inner, share(hidden, 8, thread, count), add);
  wait_for_all(count);
  normalize(b.x, rows, b.wide, hidden, p.gain, p.bias, *p.epsilon, normed);
  const Range own = share(p.feed_forward, W, thread, count);
  dot(normed, rows, b.wide, p.up, p.up_bias, hidden, own,
      [&](i64 r, i64 c, float value) { b.active[r * b.far + c] = value; });
  with_activation(static_cast<Activation>(p.activation), [&](auto fixed) {
    for (i64 r = 0; r < rows; r++)
      for (i64 c = own.begin; c < own.end; c += W) {
        float* at = b.active + r * b.far + c;
        store(at, activate<decltype(fixed)::value>(load(at)));
      }
  });
  wait_for_all(count);
  dot(b.active, rows, b.far, p.down, p.down_bias, p.feed_forward, share(hidden, 8, thread, count), add);
  wait_for_all(count);
}

// A call: `x` goes through the blocks; `head` makes logits of it, and without one it is the result itself.
template <class T>
struct Pass {
  const T* x;
  i64 rows, hidden, num_blocks;
  const Block<T>* blocks;
  const Cache* caches;
  const Head<T>* head;
  void* out;
};

// Up to 8 rows of a call, on one of its threads.
template <class T>
void run_rows(const Pass<T>& pass, i64 first, i64 rows, const Buffers& b, int thread, int count) {
  const i64 hidden = pass.hidden;
  const Range own = share(rows, 1, thread, count);
  for (i64 r = own.begin; r < own.end; r++)
    for (i64 i = 0; i < hidden; i += W)
      store(b.x + r * b.wide + i, load(pass.x + (first + r) * hidden + i, smaller(W, hidden - i)));
  wait_for_all(count);
  for (i64 i = 0; i < pass.num_blocks; i++) {
    Cache cache = pass.caches[i];
    cache.data += first * cache.row;
    if (cache.mask) cache.mask += first * cache.mask_row;
    run_block(pass.blocks[i], rows, hidden, cache, b, thread, count);
  }
  if (pass.head) {
    const Head<T>& head = *pass.head;
    float* logits = static_cast<float*>(pass.out) + first * head.vocabulary;
    auto* normed = static_cast<float*>(scratch(1, rows * b.wide * i64(sizeof(float))));
    normalize(b.x, rows, b.wide, hidden, head.gain, head.bias, *head.epsilon, normed);
    dot(normed, rows, b.wide, head.table, nullptr, hidden, share(head.vocabulary, 8, thread, count),
        [=](i64 r, i64 c, float value) { logits[r * head.vocabulary + c] = value; });
  } else {
    T* y = static_cast<T*>(pass.out) + first * hidden;
    for (i64 r = own.begin; r < own.end; r++)
      for (i64 i = 0; i < hidden; i += W)
        store(y + r * hidden + i, load(b.x + r * b.wide + i), smaller(W, hidden - i));
  }
  wait_for_all(count);
}

template <class T>
void run(const Pass<T>& pass, i64 threads) {
  const i64 rows = smaller(pass.rows, most_rows);
  i64 inner = 0, far = 0;
  for (i64 i = 0; i < pass.num_blocks; i++) {
    inner = larger(inner, pass.blocks[i].heads * pass.blocks[i].head_size);
    far = larger(far, pass.blocks[i].feed_forward);
  }
  Buffers b{round_up(pass.hidden, W), round_up(inner, W), round_up(far, W), nullptr, nullptr, nullptr, nullptr};
  const i64 floats = rows * (b.wide + b.inner + b.far + 3 * inner);
  b.x = static_cast<float*>(scratch(0, floats * i64(sizeof(float))));
  b.mixed = b.x + rows * b.wide;
  b.active = b.mixed + rows * b.inner;
  b.qkv = b.active + rows * b.far;
  parallel(threads, [&](int thread, int count) {
    for (i64 first = 0; first < pass.rows; first += most_rows)
      run_rows(pass, first, smaller(most_rows, pass.rows - first), b, thread, count);
  });
}

}  // namespace

// `caches` has a Cache for each block, `mask_row` included.
#define HB_TOKEN(name, T)                                                                                       \
  HB_EXPORT(void, tokens_##name)(const T* x, i64 rows, i64 hidden, i64 num_blocks, const Block<T>* blocks,      \
                                const Cache* caches, const Head<T>* head, void* out, i64 threads) {             \
    static_assert(sizeof(Block<T>) == 18 * sizeof(i64) && sizeof(Cache) == 8 * sizeof(i64), "a field is a word"); \
    run(Pass<T>{x, rows, hidden, num_blocks, blocks, caches, head, out}, threads);                              \
  }

HB_TOKEN(f32, float)
HB_TOKEN(bf16, bf16)
