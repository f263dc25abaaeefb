// Softmax attention over sequences of tokens, causal or in both directions, and its gradients.
//
// One task is a group of heads of one sequence, which share keys and values. A block of queries takes its scores against
// all keys that it may see, from a whole panel on, into a buffer of block x length floats, so that the softmax is exact
// and nothing of size length x length is kept: backward computes the weights again, from the logarithms of their sums.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "query_block.h"

namespace {

constexpr i64 kForwardQueries = 4 * kRows, kBackwardQueries = 8 * kRows;

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

// ---- forward

template <class Kind>
struct ForwardBuffers {
  static constexpr i64 block = kForwardQueries, depth = Kind::depth;
  i64 width, out, row;  // words of a row of q, k; floats of a row of y; floats of a row of scores
  float *rows, *keys, *values, *queries, *scores, *weights, *mixed, *line, *entered;

  ForwardBuffers(Carver& carver, i64 length, i64 size, bool enters)
      : width(words_of(size, depth)), out(round_up(size, W)), row(round_up(length, kPanel)) {
    rows = carver.take(length * width);
    keys = carver.take(row * width);
    values = carver.take(words_of(length, depth) * out);
    queries = carver.take(block * width);
    scores = carver.take(block * row);
    weights = depth == 1 ? scores : carver.take(block * row / depth);
    mixed = carver.take(block * out);
    line = carver.take(enters ? out + W : 0);
    entered = carver.take(enters ? std::max(length, block) * size : 0);
  }
};

// Replaces the scores of one query by exp(scale * (score - largest)), dropped ones by zero, as a row of A; it is zero
// for keys that the query does not see, up to `end`. Returns the sum, dropped ones included, and the largest score.
template <class Kind>
float softmax(float* scores, const Query& query, i64 end, float scale, bool drops, float* words, float& top) {
  const Vec lowest = set1(-std::numeric_limits<float>::infinity());
  Vec best = lowest, total = set1(0.0f);
  for (i64 j = 0; j < query.end; j += W) best = max(best, query.seen(j, load(scores + j), lowest));
  top = largest(best);
  const Vec by = set1(scale), shift = set1(-top * scale);
  for (i64 j = 0; j < end; j += W) {
    Vec p = query.seen(j, exp(fma(load(scores + j), by, shift)), set1(0.0f));
    total = total + p;
    if (drops) p = query.keep(p, j);
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
void attend(const Attention& a, const Forward<T>& t, const ForwardBuffers<Kind>& b, i64 sequence, i64 head, i64 start) {
  const QueryBlock<kForwardQueries> block(a, sequence, head, start);
  const i64 count = block.count, token = block.token, row = b.row / Kind::depth;
  const Rows<T> q = entering(a, b, 0, t.q + token * a.q_token + head * a.q_head, a.q_token, count, token);
  pack_left<Kind>(q.data, q.stride, count, a.size, b.queries);
  block.template multiply_keys<Kind>(b.queries, b.keys, b.width, b.scores, b.row);
  float factors[kForwardQueries];
  for (i64 i = 0; i < count; i++) {
    const Query& query = block.queries[i];
    const i64 last = smaller(i / kRows * kRows + kRows, count) - 1, end = round_up(block.queries[last].end, W);
    if (a.cap > 0.0f) cap_scores(a, query, round_up(query.end, W), b.scores + i * b.row, nullptr);
    float top;
    const float scale = a.factor_of_scores();
    const float total = softmax<Kind>(b.scores + i * b.row, query, end, scale, a.keys, b.weights + i * row, top);
    factors[i] = a.factor / total;
    t.log_sums[head * a.tokens + token + i] = top * scale + std::log(total);
  }
  const float* values = b.values + block.from / Kind::depth * b.out;
  sum_over_keys<Kind>(count, b.out, {b.weights, row, 1}, {values, kPanel, b.out}, b.mixed, block.queries);
  write_rows(b.mixed, b.out, count, a.size, factors, t.y + token * a.y_token + head * a.y_head, a.y_token);
}

template <class Kind, class T>
void attend(const Attention& a, const Forward<T>& t, i64 sequence, i64 group) {
  const i64 begin = a.firsts[sequence], length = a.lengths[sequence], of_kv = begin * a.kv_token + group * a.kv_head;
  const auto b = carve<ForwardBuffers<Kind>>(length, a.size, a.entry.changes());
  const Rows<T> k = entering(a, b, 1, t.k + of_kv, a.kv_token, length, begin);
  pack_left<Kind>(k.data, k.stride, length, a.size, b.rows);
  transpose_words(b.rows, length, b.width, b.keys);
  pack_right<Kind>(t.v + of_kv, a.kv_token, length, a.size, b.out, b.values);
  const i64 heads = a.heads / a.groups;
  for (i64 head = group * heads; head < (group + 1) * heads; head++)
    for (i64 start = 0; start < length; start += b.block) attend<Kind>(a, t, b, sequence, head, start);
}

// ---- backward

template <class Kind>
struct BackwardBuffers {
  static constexpr i64 block = kBackwardQueries, depth = Kind::depth;
  i64 width, out, row;
  float *rows, *keys_T, *values_T, *keys;                       // of the sequence
  float *queries, *gradient, *scores, *of_weights, *of_scores;  // of a block of queries
  float* slopes;                                                // of capped scores, or null
  float *of_q, *of_k, *of_v, *line, *entered;

  BackwardBuffers(Carver& carver, i64 length, i64 size, bool enters, bool is_capped)
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
    slopes = carver.take(is_capped ? block * row : 0);
    if (!is_capped) slopes = nullptr;
    of_q = carver.take(block * out);
    of_k = carver.take(length * out);
    of_v = carver.take(length * out);
    line = carver.take(enters ? out + W : 0);
    entered = carver.take(enters ? std::max(length, block) * size : 0);
  }
};

// Turns scores into weights, negative where they are dropped, and the gradients of kept weights into those of all.
// Returns their product, summed over the keys.
inline float recompute(const Attention& a, const Query& query, i64 end, float* scores, float* gradients) {
  Vec total = set1(0.0f);
  const Vec by = set1(a.factor_of_scores()), shift = set1(-query.log_sum), factor = set1(a.factor);
  for (i64 j = 0; j < end; j += W) {  // what the query does not see may never have been computed
    const Vec p = query.seen(j, exp(fma(load(scores + j), by, shift)), set1(0.0f));
    Vec g = query.seen(j, load(gradients + j), set1(0.0f));
    if (a.keys) g = query.keep(g, j) * factor;
    total = fma(p, g, total);
    store(scores + j, a.keys ? query.keep(p + p, j) - p : p);
    store(gradients + j, g);
  }
  return sum(total);
}

// Returns the gradient of scores, whose derivatives are `slope`, and `weight` as it met the values.
inline Vec differentiate(const Attention& a, float delta, Vec slope, Vec& weight, Vec gradient) {
  const Vec p = abs(weight);
  if (a.keys) weight = max(weight, set1(0.0f)) * set1(a.factor);
  return p * (gradient - set1(delta)) * slope;
}

// The weights and the gradients of the scores of a block of queries, as words for three products.
struct Block {
  const float *weights, *of_scores;  // A summed over queries: a key after the other, words `stride` apart
  const float* of_score_rows;        // A summed over keys: a word after the other, queries `row_stride` apart
  i64 stride, row_stride;
  bool is_finite;  // of_scores have no NaN where a query does not see a key
};

inline Block differentiate(FloatProduct, const Attention& a, const Query* queries, i64 count, i64 end, i64 row,
                           float* scores, float* gradients, const float* slopes, float*) {
  bool is_finite = true;
  for (i64 i = 0; i < count; i++) {
    float *x_row = scores + i * row, *g_row = gradients + i * row;
    const float delta = recompute(a, queries[i], end, x_row, g_row);
    is_finite &= std::isfinite(delta);
    for (i64 j = 0; j < end; j += W) {
      Vec x = load(x_row + j);
      const Vec slope = slopes ? load(slopes + i * row + j) : set1(a.scale);
      store(g_row + j, differentiate(a, delta, slope, x, load(g_row + j)));
      if (a.keys) store(x_row + j, x);
    }
  }
  return {scores, gradients, gradients, row, row, is_finite};
}

#ifdef HB_PAIRS
// Two rows of pairs take the place of two rows of floats.
inline Block differentiate(PairProduct, const Attention& a, const Query* queries, i64 count, i64 end, i64 row,
                           float* scores, float* gradients, const float* slopes, float* rows) {
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
      Vec slope = set1(a.scale), next_slope = slope;
      if (slopes) slope = load(slopes + i * row + j), next_slope = load(slopes + (i + 1) * row + j);
      const Vec g = differentiate(a, deltas[0], slope, x, load(g_row + j));
      const Halves both = narrow_two(g, differentiate(a, deltas[1], next_slope, next, load(g_row + row + j)));
      bf16* of_row = reinterpret_cast<bf16*>(rows + i * (row / 2)) + j;
      store_first(of_row, both), store_second(of_row + row, both);
      store(x_row + j, pair_up(narrow_two(x, next)));
      store(g_row + j, pair_up(both));
    }
  }
  return {scores, gradients, rows, 2 * row, row / 2, is_finite};
}
#endif

template <class T>
struct Backward {
  const T *q, *k, *v;
  const float* log_sums;
  const T* gradient;      // strides as of y
  T *of_q, *of_k, *of_v;  // as of q; as of k and v
  float* of_gains;        // [sequences][groups][2][size]: the sums of each task, or null
};

template <class Kind, class T>
void differentiate_block(const Attention& a, const Backward<T>& t, const BackwardBuffers<Kind>& b, i64 sequence,
                         i64 head, i64 start, float* of_gain) {
  QueryBlock<kBackwardQueries> block(a, sequence, head, start);
  const i64 length = a.lengths[sequence], size = a.size, count = block.count, token = block.token, keys = block.keys;
  const i64 of_q = token * a.q_token + head * a.q_head, end = round_up(keys, W), depth = Kind::depth;
  const T* gradient = t.gradient + token * a.y_token + head * a.y_head;
  const Rows<T> q = entering(a, b, 0, t.q + of_q, a.q_token, count, token);
  pack_left<Kind>(q.data, q.stride, count, size, b.rows);
  block.template multiply_keys<Kind>(b.rows, b.keys_T, b.width, b.scores, b.row);
  pack_left<Kind>(gradient, a.y_token, count, size, b.rows);
  block.template multiply_keys<Kind>(b.rows, b.values_T, b.width, b.of_weights, b.row);
  for (i64 i = 0; i < count; i++) {
    block.queries[i].log_sum = t.log_sums[head * a.tokens + token + i];
    if (b.slopes) cap_scores(a, block.queries[i], end, b.scores + i * b.row, b.slopes + i * b.row);
  }
  const Block p =
      differentiate(Kind{}, a, block.queries, count, end, b.row, b.scores, b.of_weights, b.slopes, b.of_scores);
  pack_right<Kind>(q.data, q.stride, count, size, b.out, b.queries);
  pack_right<Kind>(gradient, a.y_token, count, size, b.out, b.gradient);
  const i64 words = words_of(count, depth) * b.out;
  const bool apart = !a.sees_all() &&
                     !(p.is_finite && (depth == 1 ? all_finite(b.gradient, words)
                                                  : all_finite(reinterpret_cast<const bf16*>(b.gradient), words * 2)));
  const auto span = [&](i64 m) {
    const i64 key = block.from + m;
    return Span{larger(a.begin_of_key(key) - start, 0), larger(smaller(count, a.end_of_key(key, length) - start), 0)};
  };
  const Right of_gradient{b.gradient, kPanel, b.out}, of_queries{b.queries, kPanel, b.out};
  const i64 from = block.from * b.out;
  sum_over_queries<Kind>(apart, keys, b.out, {p.weights, 1, p.stride}, of_gradient, b.of_v + from, span);
  sum_over_queries<Kind>(apart, keys, b.out, {p.of_scores, 1, p.stride}, of_queries, b.of_k + from, span);
  sum_over_keys<Kind>(count, b.out, {p.of_score_rows, p.row_stride, 1}, {b.keys + from / depth, kPanel, b.out}, b.of_q,
                      block.queries);
  if (a.entry.changes())
    a.entry.leave(0, b.of_q, b.out, t.q + of_q, a.q_token, count, size, token, t.of_q + of_q, of_gain);
  else
    write_rows(b.of_q, b.out, count, size, nullptr, t.of_q + of_q, a.q_token);
}

template <class Kind, class T>
void differentiate_group(const Attention& a, const Backward<T>& t, i64 sequence, i64 group) {
  const i64 begin = a.firsts[sequence], length = a.lengths[sequence], size = a.size, heads = a.heads / a.groups;
  const i64 of_kv = begin * a.kv_token + group * a.kv_head;
  float* of_gains = t.of_gains ? t.of_gains + (sequence * a.groups + group) * 2 * size : nullptr;
  const auto b = carve<BackwardBuffers<Kind>>(length, size, a.entry.changes(), a.cap > 0.0f);
  const Rows<T> k = entering(a, b, 1, t.k + of_kv, a.kv_token, length, begin);
  pack_left<Kind>(k.data, k.stride, length, size, b.rows);
  transpose_words(b.rows, length, b.width, b.keys_T);
  pack_right<Kind>(k.data, k.stride, length, size, b.out, b.keys);
  pack_left<Kind>(t.v + of_kv, a.kv_token, length, size, b.rows);
  transpose_words(b.rows, length, b.width, b.values_T);
  std::fill(b.of_k, b.of_k + length * b.out, 0.0f);
  std::fill(b.of_v, b.of_v + length * b.out, 0.0f);
  for (i64 head = group * heads; head < (group + 1) * heads; head++)
    for (i64 start = 0; start < length; start += b.block)
      differentiate_block<Kind>(a, t, b, sequence, head, start, of_gains);
  if (a.entry.changes())
    a.entry.leave(1, b.of_k, b.out, t.k + of_kv, a.kv_token, length, size, begin, t.of_k + of_kv, of_gains + size);
  else
    write_rows(b.of_k, b.out, length, size, nullptr, t.of_k + of_kv, a.kv_token);
  write_rows(b.of_v, b.out, length, size, nullptr, t.of_v + of_kv, a.kv_token);
}

// Calls task(sequence, group) for all; threads take the next one when they are done.
template <class Task>
void for_groups(const Attention& a, i64 threads, Task task) {
  const i64 tasks = a.sequences * a.groups;
  std::atomic<i64> next{0};
  parallel(smaller(threads, tasks), [&](int, int) {
    for (i64 i = next++; i < tasks; i = next++)
      if (a.lengths[i / a.groups] > 0) task(i / a.groups, i % a.groups);
  });
}

template <class Kind, class T>
void differentiate(const Attention& a, Backward<T> t, float* of_q_gain, float* of_k_gain, i64 threads) {
  const i64 tasks = a.sequences * a.groups;
  std::vector<float> sums(of_q_gain || of_k_gain ? static_cast<std::size_t>(tasks * 2 * a.size) : 0);
  if (!sums.empty()) t.of_gains = sums.data();
  for_groups(a, threads, [&](i64 i, i64 group) { differentiate_group<Kind>(a, t, i, group); });
  for (i64 task = 0; task < tasks; task++)
    for (i64 j = 0; j < a.size; j++) {
      if (of_q_gain) of_q_gain[j] += sums[static_cast<std::size_t>(task * 2 * a.size + j)];
      if (of_k_gain) of_k_gain[j] += sums[static_cast<std::size_t>((task * 2 + 1) * a.size + j)];
    }
}

Attention of(const i64* s, const float* f, const i64* keys, const i64* firsts, const i64* lengths, const i64* columns,
             const float* cosines, const float* sines, const float* q_gain, const float* k_gain) {
  const Entry entry{cosines, sines, {q_gain, k_gain}, s[15], f[3]};
  return {s[0],  s[1],  s[2],  s[3], s[4],   s[5],    s[6],    s[7], s[8], s[9], s[10], s[11],
          s[12], s[13], s[14], keys, firsts, lengths, columns, f[0], f[1], f[2], entry};
}

// How a dtype is multiplied.
template <class T>
struct KindOf {
  using type = FloatProduct;
};
#ifdef HB_PAIRS
template <>
struct KindOf<bf16> {
  using type = PairProduct;
};
#endif

}  // namespace

// `sizes`: the integers of Attention and of Entry in their order; `factors`: their floats. The gradients of gains are added
// to `of_q_gain` and `of_k_gain`, which are null without gains.
#define ATTENTION(suffix, T)                                                                                           \
  HB_EXPORT(void, attention_forward_##suffix)                                                                          \
  (const i64* sizes, const float* factors, const i64* keys, const i64* firsts, const i64* lengths, const i64* columns, \
   const float* cosines, const float* sines, const float* q_gain, const float* k_gain, const T* q, const T* k,         \
   const T* v, T* y, float* log_sums, i64 threads) {                                                                   \
    const Attention a = of(sizes, factors, keys, firsts, lengths, columns, cosines, sines, q_gain, k_gain);            \
    const Forward<T> t{q, k, v, y, log_sums};                                                                          \
    for_groups(a, threads, [&](i64 i, i64 group) { attend<KindOf<T>::type>(a, t, i, group); });                        \
  }                                                                                                                    \
  HB_EXPORT(void, attention_backward_##suffix)                                                                         \
  (const i64* sizes, const float* factors, const i64* keys, const i64* firsts, const i64* lengths, const i64* columns, \
   const float* cosines, const float* sines, const float* q_gain, const float* k_gain, const T* q, const T* k,         \
   const T* v, const float* log_sums, const T* gradient, T* of_q, T* of_k, T* of_v, float* of_q_gain,                  \
   float* of_k_gain, i64 threads) {                                                                                    \
    const Attention a = of(sizes, factors, keys, firsts, lengths, columns, cosines, sines, q_gain, k_gain);            \
    const Backward<T> t{q, k, v, log_sums, gradient, of_q, of_k, of_v, nullptr};                                       \
    differentiate<KindOf<T>::type>(a, t, of_q_gain, of_k_gain, threads);                                               \
  }
ATTENTION(f32, float)
ATTENTION(bf16, bf16)
