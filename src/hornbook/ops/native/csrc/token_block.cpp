// One new token of each text: blocks with their caches of keys and values, and the logits, in one call.
//
// Weights have PyTorch's layout, [outputs][inputs], and are read once for up to 8 rows, so a product takes little longer
// than reading its weights from memory. Intermediate results stay in fp32. The order of each sum does not depend on the
// number of rows or threads.
#include <cmath>
#include <limits>

#include "activations.h"
#include "entry.h"
#include "few_rows.h"

namespace {

constexpr i64 most_rows = 8;

inline void wait_for_all(int count) {
  if (count > 1) hb_runtime.barrier();
}

// A layer or RMS norm; gain and bias may be null, and no epsilon is no norm.
struct Norm {
  const float *gain, *bias, *epsilon;
  i64 is_rms;
};

// The norm of rows in whole vectors; both have the same stride.
inline void normalize(const float* x, i64 rows, i64 stride, i64 size, const Norm& norm, float* out) {
  for (i64 r = 0; r < rows; r++, x += stride, out += stride) {
    Vec total = set1(0.0f), squares = set1(0.0f);
    for (i64 i = 0; i < size && !norm.is_rms; i += W) total = total + load(x + i, smaller(W, size - i));
    const Vec mean = set1(sum(total) / static_cast<float>(size));
    for (i64 i = 0; i < size; i += W) {
      const Vec value = first(size - i, load(x + i) - mean, set1(0.0f));
      squares = fma(value, value, squares);
      store(out + i, value);
    }
    const Vec scale = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + *norm.epsilon));
    for (i64 i = 0; i < size; i += W) {
      const i64 n = smaller(W, size - i);
      const Vec gain = norm.gain ? load(norm.gain + i, n) : set1(1.0f);
      store(out + i, fma(load(out + i) * scale, gain, norm.bias ? load(norm.bias + i, n) : set1(0.0f)));
    }
  }
}

// Keys and values, [rows][2][groups][columns][size] with strides; the last column is written.
struct Cache {
  float* data;
  i64 row, kind, head, column, columns;
  const float* mask;  // [rows][columns], added to scores, or null
  i64 mask_row;
  const float *cosines, *sines;  // of the new tokens, [rows][half], or null
  i64 half;
  float* moved;  // as projected, what the next token's keys take, [rows][2][groups][columns][size / 4], or null
  i64 moved_row, moved_kind, moved_head, moved_column;
};

constexpr float lowest = -std::numeric_limits<float>::infinity();

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

// A block, in the words in which hornbook.ops.native.token_block gives it.
template <class T>
struct Block {
  Norm attention_norm;
  const T* query;
  const float* query_bias;
  const T* key_value;
  const float* key_value_bias;
  Norm query_norm, key_norm;
  const T* out;
  const float* out_bias;
  Norm attention_output_norm, norm;
  const T* up;
  const float* up_bias;
  const T* down;
  const float* down_bias;
  Norm output_norm;
  const float *value_table, *value_gate;  // [ids][groups][size] and [groups][gate_columns], or null
  const float* scales;                    // of the hidden states and of the embedding, or null
  const float* factors;                   // of scores, and their cap, 0 for none
  i64 heads, groups, head_size, feed_forward, activation, is_gated, window, norms_width, gate_columns;

  i64 width() const { return (heads + 2 * groups) * head_size; }
};

// Writes one head of queries or keys, [heads][size], as it enters attention.
template <class T>
void enter(const Block<T>& p, const Cache& cache, const Norm& norm, const float* all, i64 heads, i64 head, i64 row,
           float* line) {
  const i64 size = p.head_size;
  const Entry entry{cache.cosines, cache.sines, {}, cache.half, norm.epsilon ? *norm.epsilon : -1.0f};
  const float *x = all + head * size, *gain = norm.gain && p.norms_width ? norm.gain + head * size : norm.gain;
  const Vec scale = p.norms_width ? entry.inverse_rms(all, heads * size) : entry.inverse_rms(x, size);
  entry.enter(gain, x, scale, size, row, line);
}

// Keeps the second and the last quarter of each head of a row's keys, and writes those of the token before, or zeros.
template <class T>
void shift_keys(const Block<T>& p, const Cache& cache, i64 row, float* keys) {
  const i64 quarter = p.head_size / 4, last = cache.columns - 1;
  const bool is_first = last == 0 || (cache.mask && cache.mask[row * cache.mask_row + last - 1] == lowest);
  for (i64 part = 0; part < 2 * p.groups; part++) {
    float* k = keys + (2 * part + 1) * quarter;
    float* kept = cache.moved + row * cache.moved_row + part % 2 * cache.moved_kind + part / 2 * cache.moved_head +
                  last * cache.moved_column;
    for (i64 i = 0; i < quarter; i++) {
      kept[i] = k[i];
      k[i] = is_first ? 0.0f : kept[i - cache.moved_column];
    }
  }
}

// Writes one head of values, plus the gated embedding of its token, if there is one; `x` is attention's input.
template <class T>
void enter_values(const Block<T>& p, const float* v, const float* x, i64 token, i64 group, float* values) {
  const i64 size = p.head_size;
  float gate = 0.0f;
  if (p.value_table) {
    float logit = 0.0f;
    for (i64 c = 0; c < p.gate_columns; c++) logit += p.value_gate[group * p.gate_columns + c] * x[c];
    gate = 3.0f / (1.0f + std::exp(-logit));
  }
  const float* row = p.value_table ? p.value_table + (token * p.groups + group) * size : v;
  for (i64 i = 0; i < size; i++) values[i] = p.value_table ? v[i] + gate * row[i] : v[i];
}

// The attention of the heads of one row that share keys and values; `x` and `qkv` are the row's, `scores` has a place
// for each column and then for two rows of a head.
template <class T>
void attend(const Block<T>& p, const Cache& cache, const float* x, const float* qkv, i64 token, i64 row, i64 group,
            float* scores, float* out) {
  const i64 size = p.head_size, heads = p.heads / p.groups, last = (cache.columns - 1) * cache.column;
  float* line = scores + round_up(cache.columns, W);
  float* keys = cache.data + row * cache.row + group * cache.head;
  float* values = keys + cache.kind;
  const float *k = qkv + p.heads * size, *mask = cache.mask ? cache.mask + row * cache.mask_row : nullptr;
  enter(p, cache, p.key_norm, k, p.groups, group, row, line);
  std::memcpy(keys + last, line, static_cast<std::size_t>(size) * sizeof(float));
  enter_values(p, k + (p.groups + group) * size, x, token, group, values + last);
  const float scale = p.factors[0], cap = p.factors[1];
  // the first column that the text sees: earlier ones may hold anything, and 0 * NaN is NaN
  i64 begin = p.window ? larger(0, cache.columns - p.window) : 0;
  if (mask)
    while (begin + 1 < cache.columns && mask[begin] == lowest) begin++;
  const i64 count = cache.columns - begin;
  values += begin * cache.column;
  for (i64 head = group * heads; head < (group + 1) * heads; head++) {
    enter(p, cache, p.query_norm, qkv, p.heads, head, row, line);
    float top = lowest;
    std::fill(scores, scores + begin, lowest);
    dot_range<1>(line, 0, keys, cache.column, nullptr, size, {begin, cache.columns}, [&](i64, i64 j, float value) {
      value *= scale;
      if (cap > 0.0f) value = cap * std::tanh(value / cap);
      scores[j] = value + (mask ? mask[j] : 0.0f);
      if (scores[j] > top) top = scores[j];
    });
    Vec sums = set1(0.0f);
    for (i64 j = 0; j < cache.columns; j += W) {
      const Vec e = first(cache.columns - j, exp(load(scores + j) - set1(top)), set1(0.0f));
      sums = sums + e;
      store(scores + j, e);
    }
    const Vec factor = set1(1.0f / sum(sums));
    float* to = out + head * size;
    i64 i = 0;
    for (; i + 4 * W <= size; i += 4 * W)
      mix<4>(values + i, cache.column, count, scores + begin, factor, size - i, to + i);
    for (; i < size; i += W) mix<1>(values + i, cache.column, count, scores + begin, factor, size - i, to + i);
  }
}

// The final norm and the output table, likewise.
template <class T>
struct Head {
  Norm norm;
  const T* table;
  const float* cap;  // of logits, 0 for none
  i64 vocabulary;
};

// What all threads share: `x` are the hidden states, `part` what is added to them after a norm.
struct Buffers {
  i64 wide, inner, far, qkv_width;  // floats of a row of hidden states, of mixed heads, of the feed-forward, of qkv
  float *x = nullptr, *part = nullptr, *mixed = nullptr, *active = nullptr, *gated = nullptr, *qkv = nullptr;
};

// x += norm(value Wᵀ + bias), for the thread's columns, or its rows if there is a norm.
template <class T>
void add_output(const float* value, i64 stride, i64 inputs, const T* weight, const float* bias, const Norm& norm,
                i64 rows, i64 hidden, const Buffers& b, int thread, int count) {
  float* to = norm.epsilon ? b.part : b.x;
  dot(value, rows, stride, weight, bias, inputs, share(hidden, 8, thread, count), [&](i64 r, i64 c, float y) {
    if (norm.epsilon)
      to[r * b.wide + c] = y;
    else
      to[r * b.wide + c] += y;
  });
  wait_for_all(count);
  if (!norm.epsilon) return;
  const Range own = share(rows, 1, thread, count);
  for (i64 r = own.begin; r < own.end; r++) {
    float *row = b.part + r * b.wide, *x = b.x + r * b.wide;
    normalize(row, 1, b.wide, hidden, norm, row);
    for (i64 i = 0; i < hidden; i += W) store(x + i, load(x + i) + load(row + i));
  }
  wait_for_all(count);
}

template <class T>
void run_block(const Block<T>& p, i64 rows, i64 hidden, const i64* tokens, const Cache& cache, const Buffers& b,
               int thread, int count) {
  const i64 inner = p.heads * p.head_size, kv = 2 * p.groups * p.head_size, width = p.width();
  auto* normed = static_cast<float*>(scratch(1, rows * b.wide * i64(sizeof(float))));
  const auto input = [&](const Norm& norm) -> const float* {
    if (!norm.epsilon) return b.x;
    normalize(b.x, rows, b.wide, hidden, norm, normed);
    return normed;
  };
  const float* x = input(p.attention_norm);
  dot(x, rows, b.wide, p.query, p.query_bias, hidden, share(inner, 8, thread, count),
      [&](i64 r, i64 c, float value) { b.qkv[r * width + c] = value; });
  dot(x, rows, b.wide, p.key_value, p.key_value_bias, hidden, share(kv, 8, thread, count),
      [&](i64 r, i64 c, float value) { b.qkv[r * width + inner + c] = value; });
  wait_for_all(count);
  if (cache.moved) {
    const Range own = share(rows, 1, thread, count);
    for (i64 r = own.begin; r < own.end; r++) shift_keys(p, cache, r, b.qkv + r * width + inner);
    wait_for_all(count);
  }
  const i64 floats = round_up(cache.columns, W) + 2 * round_up(p.head_size, W);
  auto* scores = static_cast<float*>(scratch(2, floats * i64(sizeof(float))));
  const Range tasks = share(rows * p.groups, 1, thread, count);
  for (i64 task = tasks.begin; task < tasks.end; task++) {
    const i64 row = task / p.groups;
    attend(p, cache, x + row * b.wide, b.qkv + row * width, tokens ? tokens[row] : 0, row, task % p.groups, scores,
           b.mixed + row * b.inner);
  }
  wait_for_all(count);
  add_output(b.mixed, b.inner, inner, p.out, p.out_bias, p.attention_output_norm, rows, hidden, b, thread, count);
  x = input(p.norm);
  const Range own = share(p.feed_forward, W, thread, count);
  dot(x, rows, b.wide, p.up, p.up_bias, hidden, own,
      [&](i64 r, i64 c, float value) { b.active[r * b.far + c] = value; });
  if (p.is_gated)
    dot(x, rows, b.wide, p.up + p.feed_forward * hidden, p.up_bias ? p.up_bias + p.feed_forward : nullptr, hidden, own,
        [&](i64 r, i64 c, float value) { b.gated[r * b.far + c] = value; });
  with_activation(static_cast<Activation>(p.activation), [&](auto fixed) {
    for (i64 r = 0; r < rows; r++)
      for (i64 c = own.begin; c < own.end; c += W) {
        float* at = b.active + r * b.far + c;
        const Vec f = activate<decltype(fixed)::value>(load(at));
        store(at, p.is_gated ? f * load(b.gated + r * b.far + c) : f);
      }
  });
  wait_for_all(count);
  add_output(b.active, b.far, p.feed_forward, p.down, p.down_bias, p.output_norm, rows, hidden, b, thread, count);
}

// A call: `x` goes through the blocks; `head` makes logits of it, and without one it is the result itself.
template <class T>
struct Pass {
  const T *x, *embedding;
  const i64* tokens;
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
    if (cache.moved) cache.moved += first * cache.moved_row;
    if (cache.mask) cache.mask += first * cache.mask_row;
    if (cache.cosines) cache.cosines += first * cache.half, cache.sines += first * cache.half;
    if (const float* scales = pass.blocks[i].scales) {
      for (i64 r = own.begin; r < own.end; r++)
        for (i64 c = 0; c < hidden; c += W) {
          const Vec start = load(pass.embedding + (first + r) * hidden + c, smaller(W, hidden - c));
          float* x = b.x + r * b.wide + c;
          store(x, fma(load(x), set1(scales[0]), start * set1(scales[1])));
        }
      wait_for_all(count);
    }
    run_block(pass.blocks[i], rows, hidden, pass.tokens ? pass.tokens + first : nullptr, cache, b, thread, count);
  }
  if (pass.head) {
    const Head<T>& head = *pass.head;
    float* logits = static_cast<float*>(pass.out) + first * head.vocabulary;
    auto* normed = static_cast<float*>(scratch(1, rows * b.wide * i64(sizeof(float))));
    normalize(b.x, rows, b.wide, hidden, head.norm, normed);
    const Range columns = share(head.vocabulary, 8, thread, count);
    dot(normed, rows, b.wide, head.table, nullptr, hidden, columns,
        [=](i64 r, i64 c, float value) { logits[r * head.vocabulary + c] = value; });
    for (i64 r = 0; r < rows && *head.cap > 0.0f; r++)
      for (i64 c = columns.begin; c < columns.end; c += W) {
        const i64 n = smaller(W, columns.end - c);
        float* at = logits + r * head.vocabulary + c;
        store(at, tanh(load(at, n) * set1(1.0f / *head.cap)) * set1(*head.cap), n);
      }
  } else {
    T* y = static_cast<T*>(pass.out) + first * hidden;
    for (i64 r = own.begin; r < own.end; r++)
      for (i64 i = 0; i < hidden; i += W) store(y + r * hidden + i, load(b.x + r * b.wide + i), smaller(W, hidden - i));
  }
  wait_for_all(count);
}

template <class T>
void run(const Pass<T>& pass, i64 threads) {
  const i64 rows = smaller(pass.rows, most_rows);
  i64 inner = 0, far = 0, width = 0;
  for (i64 i = 0; i < pass.num_blocks; i++) {
    const Block<T>& block = pass.blocks[i];
    inner = larger(inner, block.heads * block.head_size);
    far = larger(far, block.feed_forward);
    width = larger(width, block.width());
  }
  Buffers b{round_up(pass.hidden, W), round_up(inner, W), round_up(far, W), round_up(width, W)};
  const i64 floats = rows * (2 * b.wide + b.inner + 2 * b.far + b.qkv_width);
  b.x = static_cast<float*>(scratch(0, floats * i64(sizeof(float))));
  b.part = b.x + rows * b.wide;
  b.mixed = b.part + rows * b.wide;
  b.active = b.mixed + rows * b.inner;
  b.gated = b.active + rows * b.far;
  b.qkv = b.gated + rows * b.far;
  parallel(threads, [&](int thread, int count) {
    for (i64 first = 0; first < pass.rows; first += most_rows)
      run_rows(pass, first, smaller(most_rows, pass.rows - first), b, thread, count);
  });
}

}  // namespace

// `caches` has a Cache for each block; `embedding` and `tokens` may be null if no block reads them.
#define HB_TOKEN(name, T)                                                                                          \
  HB_EXPORT(void, tokens_##name)(const T* x, const T* embedding, const i64* tokens, i64 rows, i64 hidden,          \
                                 i64 num_blocks, const Block<T>* blocks, const Cache* caches, const Head<T>* head, \
                                 void* out, i64 threads) {                                                         \
    static_assert(sizeof(Block<T>) == 47 * sizeof(i64) && sizeof(Cache) == 16 * sizeof(i64), "a field is a word"); \
    run(Pass<T>{x, embedding, tokens, rows, hidden, num_blocks, blocks, caches, head, out}, threads);              \
  }

HB_TOKEN(f32, float)
HB_TOKEN(bf16, bf16)
