// A block of queries of a head: its products with the keys and values that it sees.
#pragma once
#include "attention.h"
#include "cache_product.h"

namespace {

// c = the sum over the keys that each query sees. Words of several queries meet all that any of them sees, with zeros:
// if a key that others do not see holds an infinity or a NaN, that shows in the result, which is then computed again.
template <class Kind>
void sum_over_keys(i64 queries, i64 columns, Left a, Right b, float* c, const Query* query) {
  multiply_parts<Kind>(queries, columns, a, b, c, columns, false, [&](i64 m, i64 rows) {
    return Part{columns, query[m].begin / Kind::depth, words_of(query[m + rows - 1].end, Kind::depth)};
  });
  if (!all_finite(c, queries * columns))
    multiply_spans<Kind>(queries, columns, a, b, c, columns, false,
                         [&](i64 m) { return Span{query[m].begin, query[m].end}; });
}

// c += the sum over those queries that see each key, `span(key)`; `apart` if others may hold infinities or NaNs.
template <class Kind, class Spans>
void sum_over_queries(bool apart, i64 keys, i64 columns, Left a, Right b, float* c, Spans span) {
  if (apart)
    multiply_spans<Kind>(keys, columns, a, b, c, columns, true, span);
  else
    multiply_parts<Kind>(keys, columns, a, b, c, columns, true, [&](i64 m, i64 rows) {
      return Part{columns, span(m).begin / Kind::depth, words_of(span(m + rows - 1).end, Kind::depth)};
    });
}

// A block of queries of a head.
template <int most>
struct QueryBlock {
  i64 start, count, token;  // in the sequence; of queries; in all tokens
  i64 from, keys;           // the first key that it multiplies, and how many
  Query queries[most];

  QueryBlock(const Attention& a, i64 sequence, i64 head, i64 first_query)
      : start(first_query),
        count(smaller(most, a.lengths[sequence] - start)),
        token(a.firsts[sequence] + start),
        from(a.begin(start) / kPanel * kPanel),
        keys(a.end(start + count - 1, a.lengths[sequence]) - from) {
    for (i64 i = 0; i < count; i++)
      queries[i] = {larger(a.begin(start + i) - from, 0), a.end(start + i, a.lengths[sequence]) - from,
                    a.keep(sequence, head, token + i, from), 0.0f};
  }

  // scores = rows of queries, or of their gradients, times panels of keys, or of values.
  template <class Kind>
  void multiply_keys(const float* rows, const float* panels, i64 width, float* scores, i64 row) const {
    multiply_parts<Kind>(count, keys, {rows, width, 1}, {panels + from * width, kPanel * width, kPanel}, scores, row,
                         false, [&](i64 m, i64 some) { return Part{queries[m + some - 1].end, 0, width}; });
  }
};

// Rows of queries or keys as they are multiplied.
template <class T>
struct Rows {
  const T* data;
  i64 stride;
};
template <class T, class Buffers>
Rows<T> entering(const Attention& a, const Buffers& b, int kind, const T* x, i64 stride, i64 rows, i64 token) {
  if (!a.entry.changes()) return {x, stride};
  a.entry.enter(kind, x, stride, rows, a.size, token, b.line, reinterpret_cast<T*>(b.entered));
  return {reinterpret_cast<T*>(b.entered), a.size};
}

}  // namespace
