// Products of small matrices that lie in the cache, for attention.
//
// Operands are 32-bit words: a float, or two bf16 that follow each other along the sum, as the product P of panels.h takes
// them. In contrast to linear.cpp, products may be added to their results, and each group of rows may take part in fewer
// columns and words, which halves causal attention.
//
//   C[m][n] (+)= sum over words w of A(m, w) * B(w, n)
//
// A may lie in any two strides, since its words are broadcast; B lies in rows of whole vectors.
#pragma once
#include <algorithm>

#include "panels.h"
#include "transpose.h"

namespace {

constexpr i64 W = Vec::lanes;
constexpr i64 kRows = FloatProduct::rows, kPanel = FloatProduct::width;  // of all products of floats and pairs

inline i64 words_of(i64 size, int depth) { return (size + depth - 1) / depth; }

struct Left {
  const float* words;
  i64 row, word;  // strides
};

struct Right {
  const float* words;
  i64 panel, word;  // strides of kPanel columns and of a word
};

// Columns and words that a group of rows takes part in; the others of A are zero, or their products are not wanted.
struct Part {
  i64 columns, begin, end;
};

template <class P>
using Tile = void (*)(const typename P::Element*, i64, i64, const typename P::Element*, i64, i64, float*, i64, bool,
                      const Ahead&);

template <class P, int vectors>
Tile<P> tile_of(i64 rows) {
  constexpr Tile<P> tiles[kRows] = {multiply_block<P, 1, vectors>, multiply_block<P, 2, vectors>,
                                    multiply_block<P, 3, vectors>, multiply_block<P, 4, vectors>,
                                    multiply_block<P, 5, vectors>, multiply_block<P, 6, vectors>};
  return tiles[rows - 1];
}

template <class P>
Tile<P> tile_of(i64 rows, i64 vectors) {
  if (vectors == 1) return tile_of<P, 1>(rows);
  if (vectors == 2) return tile_of<P, 2>(rows);
  if constexpr (P::vectors == 4) return vectors == 3 ? tile_of<P, 3>(rows) : tile_of<P, 4>(rows);
  __builtin_unreachable();
}

// c (+)= the products of `rows` rows of words of A by whole vectors of columns of B.
template <class P>
void multiply_words(i64 rows, i64 vectors, const float* a, i64 row, i64 word, const float* b, i64 b_word, i64 count,
                    float* c, i64 stride, bool adds) {
  using Element = typename P::Element;
  tile_of<P>(rows, vectors)(reinterpret_cast<const Element*>(a), row * P::depth, word * P::depth,
                            reinterpret_cast<const Element*>(b), b_word * P::depth, count, c, stride, adds,
                            kNothingAhead);
}

// c[rows][...] = or += a b, where `part(first row, rows)` bounds each group of up to kRows rows. Columns are whole vectors.
template <class P, class Parts>
void multiply_parts(i64 rows, i64 columns, Left a, Right b, float* c, i64 stride, bool add, Parts part) {
  for (i64 n = 0; n < columns; n += kPanel)
    for (i64 m = 0; m < rows; m += kRows) {
      const i64 count = smaller(kRows, rows - m);
      const Part bounds = part(m, count);
      if (n >= bounds.columns) continue;
      multiply_words<P>(count, (smaller(kPanel, bounds.columns - n) + W - 1) / W,
                        a.words + m * a.row + bounds.begin * a.word, a.row, a.word,
                        b.words + n / kPanel * b.panel + bounds.begin * b.word, b.word, bounds.end - bounds.begin,
                        c + m * stride + n, stride, add);
    }
}

// Terms of a sum that a row takes part in: a word has P::depth of them.
struct Span {
  i64 begin, end;
};

inline float masked(float word, std::uint32_t mask) {
  std::uint32_t bits;
  std::memcpy(&bits, &word, 4);
  bits &= mask;
  std::memcpy(&word, &bits, 4);
  return word;
}

// As `multiply_parts` with the same bits, but row m takes only the terms `span(m)` of its sum: infinities and NaNs in others,
// of A or of B, do not matter, where `multiply_parts` makes NaNs of 0 * NaN. Slower, for the rare case that there are any.
template <class P, class Spans>
void multiply_spans(i64 rows, i64 columns, Left a, Right b, float* c, i64 stride, bool add, Spans span) {
  for (i64 n = 0; n < columns; n += kPanel) {
    const i64 width = smaller(kPanel, round_up(columns - n, W));
    const float* panel = b.words + n / kPanel * b.panel;
    for (i64 m = 0; m < rows; m++) {
      const Span own = span(m);
      if (add && own.begin >= own.end) continue;
      const float* row = a.words + m * a.row;
      bool any = add;
      const auto add_words = [&](const float* left, const float* right, i64 count) {
        multiply_words<P>(1, width / W, left, 0, a.word, right, b.word, count, c + m * stride + n, 0, any);
        any = true;
      };
      const auto add_half = [&](i64 w, std::uint32_t mask) {
        const float left = masked(row[w * a.word], mask);
        float right[kPanel];
        for (i64 i = 0; i < width; i++) right[i] = masked(panel[w * b.word + i], mask);
        add_words(&left, right, 1);
      };
      i64 w = own.begin / P::depth;
      const i64 last = own.end / P::depth;
      if (own.begin % P::depth) add_half(w++, 0xFFFF0000u);
      add_words(row + w * a.word, panel + w * b.word, last - w);
      if (own.end % P::depth) add_half(last, 0x0000FFFFu);
    }
  }
}

// Whether numbers hold no infinity and no NaN.
template <class T>
bool all_finite(const T* x, i64 size) {
  constexpr i64 apart = 4;  // sums, so that one need not wait for the other
  Vec sums[apart] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  i64 i = 0;
  for (; i + apart * W <= size; i += apart * W)
#pragma GCC unroll 4
    for (i64 k = 0; k < apart; k++) sums[k] = fma(load(x + i + k * W), set1(0.0f), sums[k]);
  for (; i < size; i += W) sums[0] = fma(load(x + i, smaller(W, size - i)), set1(0.0f), sums[0]);
  return sum(sums[0] + sums[1] + (sums[2] + sums[3])) == 0.0f;
}

// Write rows as words, [rows][words of a row]: an A summed over columns.
template <class P, class T>
void pack_left(const T* x, i64 stride, i64 rows, i64 size, float* words) {
  const i64 width = words_of(size, P::depth);
  for (i64 i = 0; i < rows; i++, words += width) {
    if (size % P::depth) words[width - 1] = 0.0f;
    P::convert_row(x + i * stride, size, reinterpret_cast<typename P::Element*>(words));
  }
}

// Write rows as words, [words of a column][width], the columns beyond `size` zero: a B summed over rows.
template <class P, class T>
void pack_right(const T* x, i64 stride, i64 rows, i64 size, i64 width, float* words) {
  for (i64 i = 0; i < rows; i += P::depth, words += width)
    for (i64 j = 0; j < width; j += W) {
      const T* row = x + i * stride + j;
      P::pack_step(row, stride, rows - i, smaller(W, size - j), reinterpret_cast<typename P::Element*>(words + j));
    }
}

// Write the words of rows[count][width] as panels [count / kPanel][width][kPanel], zero beyond `count`: a B summed over
// columns.
inline void transpose_words(const float* rows, i64 count, i64 width, float* panels) {
  for (i64 first = 0; first < count; first += W) {
    float* to = panels + first / kPanel * kPanel * width + first % kPanel;
    const i64 some = smaller(W, count - first);
    i64 j = 0;
    for (; j + W <= width && some == W; j += W) {
      Vec block[W];
      for (int i = 0; i < W; i++) block[i] = load(rows + (first + i) * width + j);
      transpose(block);
      for (int i = 0; i < W; i++) store(to + (j + i) * kPanel, block[i]);
    }
    for (; j < width; j++) {
      for (i64 i = 0; i < some; i++) std::memcpy(to + j * kPanel + i, rows + (first + i) * width + j, 4);
      for (i64 i = some; i < W; i++) to[j * kPanel + i] = 0.0f;
    }
  }
}

}  // namespace
