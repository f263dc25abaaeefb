// What all tasks of an attention share: sizes, which keys a query sees, and how queries and keys enter.
#pragma once
#include <cmath>

#include "dropout.h"
#include "simd.h"
#include "threads.h"

namespace {

// The norm and the rotation of queries and keys before their product (rotary positions, Su et al. 2021, by halves).
struct Entry {
  const float *cosines, *sines;  // [tokens][half], or null for no rotation
  const float* gains[2];         // of the norms of queries and keys, [size], or null
  i64 half;                      // of the columns that rotate
  float epsilon;                 // of the RMS norm of each head; negative for no norm

  bool changes() const { return cosines || epsilon >= 0.0f; }

  template <class T>
  Vec inverse_rms(const T* x, i64 size) const {
    if (epsilon < 0.0f) return set1(1.0f);
    Vec squares = set1(0.0f);
    for (i64 j = 0; j < size; j += Vec::lanes) {
      const Vec value = load(x + j, smaller(Vec::lanes, size - j));
      squares = fma(value, value, squares);
    }
    return set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon));
  }

  // Rotates a token's columns, backward for direction -1.
  void rotate(float* x, i64 token, float direction) const {
    if (!cosines) return;
    for (i64 j = 0; j < half; j += Vec::lanes) {
      const i64 n = smaller(Vec::lanes, half - j);
      const Vec c = load(cosines + token * half + j, n), s = load(sines + token * half + j, n) * set1(direction);
      const Vec a = load(x + j, n), b = load(x + half + j, n);
      store(x + j, fnma(b, s, a * c), n);
      store(x + half + j, fma(a, s, b * c), n);
    }
  }

  // Writes rows of queries (kind 0) or keys (1) as they enter; `line` has room for a row in whole vectors.
  template <class T>
  void enter(int kind, const T* x, i64 stride, i64 rows, i64 size, i64 token, float* line, T* out) const {
    for (i64 i = 0; i < rows; i++, x += stride, out += size) {
      const Vec scale = inverse_rms(x, size);
      for (i64 j = 0; j < size; j += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, size - j);
        const Vec normed = load(x + j, n) * scale;
        store(line + j, gains[kind] ? normed * load(gains[kind] + j, n) : normed);
      }
      rotate(line, token + i, 1.0f);
      for (i64 j = 0; j < size; j += Vec::lanes)
        store(out + j, load(line + j), smaller(Vec::lanes, size - j));
    }
  }

  // Writes the gradients of rows of x, given those of the rows that entered, which it overwrites; adds to the gain's.
  template <class T>
  void leave(int kind, float* gradient, i64 width, const T* x, i64 stride, i64 rows, i64 size, i64 token, T* out,
             float* of_gain) const {
    for (i64 i = 0; i < rows; i++, gradient += width, x += stride, out += stride) {
      rotate(gradient, token + i, -1.0f);
      const Vec scale = inverse_rms(x, size);
      Vec total = set1(0.0f);
      for (i64 j = 0; epsilon >= 0.0f && j < size; j += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, size - j);
        const Vec normed = load(x + j, n) * scale;
        Vec g = load(gradient + j, n);
        if (gains[kind]) {
          store(of_gain + j, fma(g, normed, load(of_gain + j, n)), n);
          g = g * load(gains[kind] + j, n);
          store(gradient + j, g, n);
        }
        total = fma(g, normed, total);
      }
      const Vec mean = set1(sum(total) / static_cast<float>(size));
      for (i64 j = 0; j < size; j += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, size - j);
        Vec g = load(gradient + j, n);
        if (epsilon >= 0.0f) g = fnma(load(x + j, n) * scale, mean, g) * scale;
        store(out + j, g, n);
      }
    }
  }
};

// Strides are in elements. A group of heads / groups heads shares keys and values.
struct Attention {
  i64 sequences, heads, groups, size, tokens, is_causal;
  i64 window;  // a query sees keys that are less than this away; 0 for all
  i64 q_token, q_head, kv_token, kv_head, y_token, y_head;
  i64 site, threshold;          // of dropout
  const i64* keys;              // of dropout, [heads][tokens], or null for none
  const i64 *firsts, *lengths;  // of each sequence, in tokens
  const i64* columns;           // of dropout, of each sequence's first token, or null for 0
  float scale, factor;          // of scores; 1 / (1 - probability)
  float cap;                    // scores become cap tanh(scale score / cap); 0 for none
  Entry entry;

  // Of the keys that a query sees, and of the queries that see a key.
  i64 begin(i64 query) const { return window ? larger(0, query - window + 1) : 0; }
  i64 end(i64 query, i64 length) const {
    return is_causal ? query + 1 : window ? smaller(length, query + window) : length;
  }
  i64 begin_of_key(i64 key) const { return is_causal ? key : begin(key); }
  i64 end_of_key(i64 key, i64 length) const { return window ? smaller(length, key + window) : length; }

  bool sees_all() const { return !is_causal && !window; }
  float factor_of_scores() const { return cap > 0.0f ? 1.0f : scale; }
  Keep keep(i64 sequence, i64 head, i64 token, i64 first_key) const {
    if (!keys) return Keep();
    return Keep(keys[head * tokens + token], site, threshold, (columns ? columns[sequence] : 0) + first_key);
  }
};

// Of one query, with the keys counted from the first one that its block multiplies.
struct Query {
  i64 begin, end;  // of the keys that it sees
  Keep keep;
  float log_sum;  // of the weights, for the backward pass

  // The lanes of a from key j on that the query sees; the others of b.
  Vec seen(i64 j, Vec a, Vec b) const {
    if (j + Vec::lanes > end) a = first(end - j, a, b);
    if (j < begin) a = first(begin - j, b, a);
    return a;
  }
};

// Replaces scores by cap tanh(scale score / cap), and writes its derivative, 0 where the query sees no key, to `slopes`
// unless it is null.
inline void cap_scores(const Attention& a, const Query& query, i64 end, float* scores, float* slopes) {
  const Vec by = set1(a.scale / a.cap), cap = set1(a.cap), scale = set1(a.scale);
  for (i64 j = 0; j < end; j += Vec::lanes) {
    const Vec t = tanh(load(scores + j) * by);
    store(scores + j, t * cap);
    if (slopes) store(slopes + j, query.seen(j, fnma(t, t, set1(1.0f)) * scale, set1(0.0f)));
  }
}

}  // namespace
