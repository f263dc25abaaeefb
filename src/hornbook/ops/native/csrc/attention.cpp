// Softmax attention over sequences of tokens, causal or in both directions, and its gradients.
//
// One task is one head of one sequence. A block of queries takes its scores against all keys that it may see into a
// buffer of block x length floats, so that the softmax is exact and nothing of size length x length is kept: backward
// computes the weights again, from the logarithms of their sums.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "cache_product.h"
#include "dropout.h"
#include "threads.h"

namespace {

constexpr i64 kForwardQueries = 4 * kRows, kBackwardQueries = 8 * kRows;

// What all tasks share; strides are in elements.
struct Attention {
  i64 sequences, heads, size, tokens, is_causal;
  i64 q_token, q_head, kv_token, kv_head, y_token, y_head;
  i64 site, threshold;     // of dropout
  const i64* keys;         // of dropout, [heads][tokens], or null for none
  const i64 *firsts, *lengths;  // of each sequence, in tokens
  const i64* columns;           // of dropout, of each sequence's first token, or null for 0
  float scale, factor;     // of scores; 1 / (1 - probability)

  i64 visible(i64 query, i64 length) const { return is_causal ? query + 1 : length; }
  Keep keep(i64 sequence, i64 head, i64 token) const {
    if (!keys) return Keep();
    return Keep(keys[head * tokens + token], site, threshold, columns ? columns[sequence] : 0);
  }
};

// Parts of one piece of memory; without memory it measures.
class Carver {
 public:
  explicit Carver(float* memory) : memory_(memory) {}
  float* take(i64 words) {
    float* result = memory_ ? memory_ + used_ : nullptr;
    used_ += round_up(words, 16);
    return result;
  }
  i64 used() const { return used_; }

 private:
  float* memory_;
  i64 used_ = 0;
};

template <class Buffers, class... Sizes>
Buffers carve(Sizes... sizes) {
  Carver measure(nullptr);
  Buffers(measure, sizes...);
  Carver carver(static_cast<float*>(scratch(0, measure.used() * 4)));
  return Buffers(carver, sizes...);
}

// c = the sum over the keys that each query sees. Words of several queries meet all that the last one sees, with zeros:
// if a key that others do not see holds an infinity or a NaN, that shows in the result, which is then computed again.
template <class Kind, class Seen>
void sum_over_keys(i64 queries, i64 columns, Left a, Right b, float* c, Seen seen) {
  multiply<Kind>(queries, columns, a, b, c, columns, false,
                 [&](i64 m, i64 rows) { return Part{columns, 0, words_of(seen(m, rows), Kind::depth)}; });
  if (!all_finite(c, queries * columns))
    multiply_rows<Kind>(queries, columns, a, b, c, columns, false, [&](i64 m) { return Span{0, seen(m, 1)}; });
}

// c += the sum over those of `queries` queries that see each key, from `first(key)` on; `apart` if others may hold
// infinities or NaNs.
template <class Kind, class First>
void sum_over_queries(bool apart, i64 keys, i64 columns, i64 queries, Left a, Right b, float* c, First first) {
  if (apart)
    multiply_rows<Kind>(keys, columns, a, b, c, columns, true, [&](i64 m) { return Span{first(m), queries}; });
  else
    multiply<Kind>(keys, columns, a, b, c, columns, true, [&](i64 m, i64) {
      return Part{columns, first(m) / Kind::depth, words_of(queries, Kind::depth)};
    });
}

// ---- forward

template <class Kind>
struct ForwardBuffers {
  static constexpr i64 block = kForwardQueries, depth = Kind::depth;
  i64 width, out, row;  // words of a row of q, k; floats of a row of y; floats of a row of scores
  float *rows, *keys, *values, *queries, *scores, *weights, *mixed;

  ForwardBuffers(Carver& carver, i64 length, i64 size)
      : width(words_of(size, depth)), out(round_up(size, W)), row(round_up(length, kPanel)) {
    rows = carver.take(length * width);
    keys = carver.take(row * width);
    values = carver.take(words_of(length, depth) * out);
    queries = carver.take(block * width);
    scores = carver.take(block * row);
    weights = depth == 1 ? scores : carver.take(block * row / depth);
    mixed = carver.take(block * out);
  }
};

// Replaces the scores of one query by exp(scale * (score - largest)), dropped ones by zero, as a row of A; it is zero
// from `visible` up to `end`. Returns the sum, dropped ones included, and the largest score.
template <class Kind>
float softmax(float* scores, i64 visible, i64 end, float scale, const Keep* keep, float* words, float& top) {
  const Vec lowest = set1(-std::numeric_limits<float>::infinity());
  Vec best = lowest, total = set1(0.0f);
  i64 j = 0;
  for (; j + W <= visible; j += W) best = max(best, load(scores + j));
  if (j < visible) best = max(best, first(visible - j, load(scores + j), lowest));
  top = largest(best);
  const Vec by = set1(scale), shift = set1(-top * scale);
  for (j = 0; j < end; j += W) {
    Vec p = exp(fma(load(scores + j), by, shift));
    if (j + W > visible) p = first(visible - j, p, set1(0.0f));
    total = total + p;
    if (keep) p = (*keep)(p, j);
    if constexpr (Kind::depth == 1)
      store(words + j, p);
    else
      store(reinterpret_cast<bf16*>(words) + j, p);
  }
  return sum(total);
}

template <class T>
void write_rows(const float* x, i64 stride, i64 rows, i64 size, const float* factors, T* to, i64 to_stride) {
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < size; j += W) {
      const Vec value = load(x + i * stride + j);
      store(to + i * to_stride + j, factors ? value * set1(factors[i]) : value, smaller(W, size - j));
    }
}

template <class T>
struct Forward {
  const T *q, *k, *v;
  T* y;
  float* log_sums;  // [heads][tokens]
};

template <class Kind, class T>
void attend(const Attention& a, const Forward<T>& t, i64 sequence, i64 head) {
  constexpr int depth = Kind::depth;
  const i64 begin = a.firsts[sequence], length = a.lengths[sequence], size = a.size;
  const auto b = carve<ForwardBuffers<Kind>>(length, size);
  const T* k = t.k + begin * a.kv_token + head * a.kv_head;
  pack_rows(Kind{}, k, a.kv_token, length, size, b.rows);
  transpose_words(b.rows, length, b.width, b.keys);
  pack_for_rows(Kind{}, t.v + begin * a.kv_token + head * a.kv_head, a.kv_token, length, size, b.out, b.values);
  for (i64 start = 0; start < length; start += b.block) {
    const i64 count = smaller(b.block, length - start), token = begin + start;
    const auto seen = [&](i64 m, i64 rows) { return a.visible(start + m + rows - 1, length); };
    pack_rows(Kind{}, t.q + token * a.q_token + head * a.q_head, a.q_token, count, size, b.queries);
    multiply<Kind>(count, seen(0, count), {b.queries, b.width, 1}, {b.keys, kPanel * b.width, kPanel}, b.scores, b.row,
                   false, [&](i64 m, i64 rows) { return Part{seen(m, rows), 0, b.width}; });
    float factors[kForwardQueries];
    for (i64 i = 0; i < count; i++) {
      const Keep keep = a.keep(sequence, head, token + i);
      const i64 group = i / kRows * kRows, end = round_up(seen(group, smaller(kRows, count - group)), W);
      float top;
      const float total = softmax<Kind>(b.scores + i * b.row, seen(i, 1), end, a.scale, a.keys ? &keep : nullptr,
                                        b.weights + i * (b.row / depth), top);
      factors[i] = a.factor / total;
      t.log_sums[head * a.tokens + token + i] = top * a.scale + std::log(total);
    }
    sum_over_keys<Kind>(count, b.out, {b.weights, b.row / depth, 1}, {b.values, kPanel, b.out}, b.mixed, seen);
    write_rows(b.mixed, b.out, count, size, factors, t.y + token * a.y_token + head * a.y_head, a.y_token);
  }
}

// ---- backward

template <class Kind>
struct BackwardBuffers {
  static constexpr i64 block = kBackwardQueries, depth = Kind::depth;
  i64 width, out, row;
  float *rows, *keys_T, *values_T, *keys;               // of the sequence
  float *queries, *gradient, *scores, *of_weights, *of_scores;  // of a block of queries
  float *of_q, *of_k, *of_v;

  BackwardBuffers(Carver& carver, i64 length, i64 size)
      : width(words_of(size, depth)), out(round_up(size, W)), row(round_up(length, kPanel)) {
    rows = carver.take(std::max(length, block) * width);
    keys_T = carver.take(row * width);
    values_T = carver.take(row * width);
    keys = carver.take(words_of(length, depth) * out);
    queries = carver.take(block * out);
    gradient = carver.take(block * out);
    scores = carver.take(block * row);
    of_weights = carver.take(block * row);
    of_scores = depth == 1 ? nullptr : carver.take(block * row / depth);
    of_q = carver.take(block * out);
    of_k = carver.take(length * out);
    of_v = carver.take(length * out);
  }
};

struct Query {
  float log_sum;  // of the weights
  i64 visible;
  Keep keep;
};

// Turns scores into weights, negative where they are dropped, and the gradients of kept weights into those of all.
// Returns their product, summed over the keys.
inline float recompute(const Attention& a, const Query& query, i64 end, float* scores, float* gradients) {
  Vec total = set1(0.0f);
  const Vec by = set1(a.scale), shift = set1(-query.log_sum), factor = set1(a.factor);
  for (i64 j = 0; j < end; j += W) {
    Vec p = exp(fma(load(scores + j), by, shift)), g = load(gradients + j);
    if (j + W > query.visible) {  // what lies beyond was never computed
      p = first(query.visible - j, p, set1(0.0f));
      g = first(query.visible - j, g, set1(0.0f));
    }
    if (a.keys) g = query.keep(g, j) * factor;
    total = fma(p, g, total);
    store(scores + j, a.keys ? query.keep(p + p, j) - p : p);
    store(gradients + j, g);
  }
  return sum(total);
}

// Returns the gradient of scores, and `weight` as it met the values.
inline Vec differentiate(const Attention& a, float delta, Vec& weight, Vec gradient) {
  const Vec p = abs(weight);
  if (a.keys) weight = max(weight, set1(0.0f)) * set1(a.factor);
  return p * (gradient - set1(delta)) * set1(a.scale);
}

// The weights and the gradients of the scores of a block of queries, as words for three products.
struct Block {
  const float *weights, *of_scores;  // A summed over queries: a key after the other, words `stride` apart
  const float* of_score_rows;        // A summed over keys: a word after the other, queries `row_stride` apart
  i64 stride, row_stride;
  bool is_finite;  // of_scores have no NaN where a query does not see a key
};

inline Block differentiate(Single, const Attention& a, const Query* queries, i64 count, i64 end, i64 row, float* scores,
                           float* gradients, float*) {
  bool is_finite = true;
  for (i64 i = 0; i < count; i++) {
    float *x_row = scores + i * row, *g_row = gradients + i * row;
    const float delta = recompute(a, queries[i], end, x_row, g_row);
    is_finite &= std::isfinite(delta);
    for (i64 j = 0; j < end; j += W) {
      Vec x = load(x_row + j);
      store(g_row + j, differentiate(a, delta, x, load(g_row + j)));
      if (a.keys) store(x_row + j, x);
    }
  }
  return {scores, gradients, gradients, row, row, is_finite};
}

#ifdef __AVX512BF16__
// Two rows of pairs take the place of two rows of floats.
inline Block differentiate(Pairs, const Attention& a, const Query* queries, i64 count, i64 end, i64 row, float* scores,
                           float* gradients, float* rows) {
  bool is_finite = true;
  for (i64 i = 0; i < count; i += 2) {
    float *x_row = scores + i * row, *g_row = gradients + i * row;
    float deltas[2] = {recompute(a, queries[i], end, x_row, g_row), 0.0f};
    if (i + 1 < count) {
      deltas[1] = recompute(a, queries[i + 1], end, x_row + row, g_row + row);
    } else {  // the buffers have room for an even number of rows
      std::fill(x_row + row, x_row + row + end, 0.0f);
      std::fill(g_row + row, g_row + row + end, 0.0f);
    }
    is_finite &= std::isfinite(deltas[0]) && std::isfinite(deltas[1]);
    for (i64 j = 0; j < end; j += W) {
      Vec x = load(x_row + j), next = load(x_row + row + j);
      const Vec g = differentiate(a, deltas[0], x, load(g_row + j));
      const __m512i both = narrow_two(g, differentiate(a, deltas[1], next, load(g_row + row + j)));
      bf16* of_row = reinterpret_cast<bf16*>(rows + i * (row / 2)) + j;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(of_row), _mm512_castsi512_si256(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(of_row + row), _mm512_extracti64x4_epi64(both, 1));
      _mm512_storeu_si512(x_row + j, pair_up(narrow_two(x, next)));
      _mm512_storeu_si512(g_row + j, pair_up(both));
    }
  }
  return {scores, gradients, rows, 2 * row, row / 2, is_finite};
}
#endif

template <class T>
struct Backward {
  const T *q, *k, *v;
  const float* log_sums;
  const T* gradient;  // strides as of y
  T *of_q, *of_k, *of_v;  // as of q; as of k and v
};

template <class Kind, class T>
void differentiate_block(const Attention& a, const Backward<T>& t, const BackwardBuffers<Kind>& b, i64 sequence,
                         i64 head, i64 start) {
  const i64 length = a.lengths[sequence], size = a.size, count = smaller(b.block, length - start);
  const i64 token = a.firsts[sequence] + start, of_q = token * a.q_token + head * a.q_head;
  const auto seen = [&](i64 m, i64 rows) { return a.visible(start + m + rows - 1, length); };
  const auto score_part = [&](i64 m, i64 rows) { return Part{seen(m, rows), 0, b.width}; };
  const i64 keys = seen(0, count);
  const T *q = t.q + of_q, *gradient = t.gradient + token * a.y_token + head * a.y_head;
  pack_rows(Kind{}, q, a.q_token, count, size, b.rows);
  multiply<Kind>(count, keys, {b.rows, b.width, 1}, {b.keys_T, kPanel * b.width, kPanel}, b.scores, b.row, false,
                 score_part);
  pack_rows(Kind{}, gradient, a.y_token, count, size, b.rows);
  multiply<Kind>(count, keys, {b.rows, b.width, 1}, {b.values_T, kPanel * b.width, kPanel}, b.of_weights, b.row, false,
                 score_part);
  Query queries[kBackwardQueries];
  for (i64 i = 0; i < count; i++)
    queries[i] = {t.log_sums[head * a.tokens + token + i], seen(i, 1), a.keep(sequence, head, token + i)};
  const Block p =
      differentiate(Kind{}, a, queries, count, round_up(keys, W), b.row, b.scores, b.of_weights, b.of_scores);
  pack_for_rows(Kind{}, q, a.q_token, count, size, b.out, b.queries);
  pack_for_rows(Kind{}, gradient, a.y_token, count, size, b.out, b.gradient);
  const i64 words = words_of(count, Kind::depth) * b.out;
  const bool apart = a.is_causal && !(p.is_finite && (Kind::depth == 1 ? all_finite(b.gradient, words)
                     : all_finite(reinterpret_cast<const bf16*>(b.gradient), words * 2)));
  const auto first = [&](i64 key) { return a.is_causal ? std::max<i64>(key - start, 0) : 0; };
  const Right of_gradient{b.gradient, kPanel, b.out}, of_queries{b.queries, kPanel, b.out};
  sum_over_queries<Kind>(apart, keys, b.out, count, {p.weights, 1, p.stride}, of_gradient, b.of_v, first);
  sum_over_queries<Kind>(apart, keys, b.out, count, {p.of_scores, 1, p.stride}, of_queries, b.of_k, first);
  sum_over_keys<Kind>(count, b.out, {p.of_score_rows, p.row_stride, 1}, {b.keys, kPanel, b.out}, b.of_q, seen);
  write_rows(b.of_q, b.out, count, size, nullptr, t.of_q + of_q, a.q_token);
}

template <class Kind, class T>
void differentiate_head(const Attention& a, const Backward<T>& t, i64 sequence, i64 head) {
  const i64 length = a.lengths[sequence], size = a.size, of_kv = a.firsts[sequence] * a.kv_token + head * a.kv_head;
  const auto b = carve<BackwardBuffers<Kind>>(length, size);
  pack_rows(Kind{}, t.k + of_kv, a.kv_token, length, size, b.rows);
  transpose_words(b.rows, length, b.width, b.keys_T);
  pack_for_rows(Kind{}, t.k + of_kv, a.kv_token, length, size, b.out, b.keys);
  pack_rows(Kind{}, t.v + of_kv, a.kv_token, length, size, b.rows);
  transpose_words(b.rows, length, b.width, b.values_T);
  std::fill(b.of_k, b.of_k + length * b.out, 0.0f);
  std::fill(b.of_v, b.of_v + length * b.out, 0.0f);
  for (i64 start = 0; start < length; start += b.block) differentiate_block<Kind>(a, t, b, sequence, head, start);
  write_rows(b.of_k, b.out, length, size, nullptr, t.of_k + of_kv, a.kv_token);
  write_rows(b.of_v, b.out, length, size, nullptr, t.of_v + of_kv, a.kv_token);
}

// Calls task(sequence, head) for all; threads take the next one when they are done.
template <class Task>
void for_heads(const Attention& a, i64 threads, Task task) {
  const i64 tasks = a.sequences * a.heads;
  std::atomic<i64> next{0};
  parallel(smaller(threads, tasks), [&](int, int) {
    for (i64 i = next++; i < tasks; i = next++)
      if (a.lengths[i / a.heads] > 0) task(i / a.heads, i % a.heads);
  });
}

Attention of(const i64* s, const float* factors, const i64* keys, const i64* firsts, const i64* lengths,
             const i64* columns) {
  return {s[0], s[1], s[2], s[3],  s[4],  s[5], s[6],   s[7],    s[8],       s[9],
          s[10], s[11], s[12], keys, firsts, lengths, columns, factors[0], factors[1]};
}

// How a dtype is multiplied.
template <class T>
struct KindOf {
  using type = Single;
};
#ifdef __AVX512BF16__
template <>
struct KindOf<bf16> {
  using type = Pairs;
};
#endif

}  // namespace

// `sizes`: the integers of Attention in its order; `factors`: its floats.
#define ATTENTION(suffix, T)                                                                                          \
  HB_EXPORT(void, attention_forward_##suffix)                                                                         \
  (const i64* sizes, const float* factors, const i64* keys, const i64* firsts, const i64* lengths,                    \
   const i64* columns, const T* q, const T* k, const T* v, T* y, float* log_sums, i64 threads) {                                                      \
    const Attention a = of(sizes, factors, keys, firsts, lengths, columns);                                                    \
    const Forward<T> t{q, k, v, y, log_sums};                                                                         \
    for_heads(a, threads, [&](i64 i, i64 head) { attend<KindOf<T>::type>(a, t, i, head); });                          \
  }                                                                                                                   \
  HB_EXPORT(void, attention_backward_##suffix)                                                                        \
  (const i64* sizes, const float* factors, const i64* keys, const i64* firsts, const i64* lengths,                    \
   const i64* columns, const T* q, const T* k, const T* v, const float* log_sums, const T* gradient, T* of_q, T* of_k, T* of_v, i64 threads) {        \
    const Attention a = of(sizes, factors, keys, firsts, lengths, columns);                                                    \
    const Backward<T> t{q, k, v, log_sums, gradient, of_q, of_k, of_v};                                               \
    for_heads(a, threads, [&](i64 i, i64 head) { differentiate_head<KindOf<T>::type>(a, t, i, head); });              \
  }
ATTENTION(f32, float)
ATTENTION(bf16, bf16)
