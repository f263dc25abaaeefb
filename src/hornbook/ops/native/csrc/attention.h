// What all tasks of an attention share: sizes, and which keys a query sees.
#pragma once
#include "dropout.h"
#include "entry.h"
#include "threads.h"

namespace {

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
