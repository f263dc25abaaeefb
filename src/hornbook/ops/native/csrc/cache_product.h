// Products of small matrices that lie in the cache, for attention.
//
// Operands are 32-bit words: a float, or two bf16 that follow each other along the sum. `Kind` says which, and how words
// are multiplied; layouts and loops are the same for both. In contrast to panels.h, products are added to their results,
// and each group of rows may take part in fewer columns and words, which halves causal attention.
//
//   C[m][n] (+)= sum over words w of A(m, w) * B(w, n)
//
// A may lie in any two strides, since its words are broadcast; B lies in rows of whole vectors.
#pragma once
#include <algorithm>

#include "simd.h"
#include "transpose.h"

namespace {

constexpr i64 W = Vec::lanes;

struct Single {
  static constexpr int depth = 1;
  static Vec multiply_add(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

#ifdef HB_PAIRS
struct Pairs {
  static constexpr int depth = 2;
  static Vec multiply_add(Vec a, Vec b, Vec c) { return dot_pairs(a, b, c); }
};
#endif

constexpr int kVectors = W == 16 ? 4 : 2;  // 6 x 4 sums, 4 vectors of B and a word of A fill 29 of 32 registers
constexpr int kRows = 6;
constexpr int kPanel = kVectors * W;

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

template <class Kind, int M, int N>
void tile(const float* a, i64 row, i64 word, const float* b, i64 b_word, i64 count, float* c, i64 stride, bool add) {
  Vec sums[M][N];
  // unrolled, so that the sums are registers from the first pass of the compiler on
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[m][n] = add ? load(c + m * stride + n * W) : set1(0.0f);
  for (i64 w = 0; w < count; ++w, a += word, b += b_word) {
    Vec columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) columns[n] = load(b + n * W);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Vec one = set1(a[m * row]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[m][n] = Kind::multiply_add(one, columns[n], sums[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + m * stride + n * W, sums[m][n]);
}

using Tile = void (*)(const float* , i64, i64, const float* , i64, i64, float *, i64, bool);

template <class Kind, int N> Tile tile_of(int rows) {
  constexpr Tile tiles[kRows] = {tile<Kind, 1, N>, tile<Kind, 2, N>, tile<Kind, 3, N>,
                   tile<Kind, 4, N>, tile<Kind, 5, N>, tile<Kind, 6, N>};
  return tiles[rows - 1];
}

template <class Kind> Tile tile_of(int rows, int vectors) {
  if (vectors == 1) return tile_of<Kind, 1>(rows);
  if (vectors == 2) return tile_of<Kind, 2>(rows);
  if constexpr (kVectors == 4) return vectors == 3 ? tile_of<Kind, 3>(rows) : tile_of<Kind, 4>(rows);
  __builtin_unreachable();
}

// c[rows][...] = or += a b, where `part(first row, rows)` bounds each group of up to kRows rows. Columns are whole vectors.
template <class Kind, class Parts>
void multiply(i64 rows, i64 columns, Left a, Right b, float* c, i64 stride, bool add, Parts part) {
  for (i64 n = 0; n < columns; n += kPanel)
    for (i64 m = 0; m < rows; m += kRows) {
      const int count = int(smaller(kRows, rows - m));
      const Part bounds = part(m, count);
      if (n >= bounds.columns) continue;
      const int vectors = int((smaller(kPanel, bounds.columns - n) + W - 1) / W);
      tile_of<Kind>(count, vectors)(a.words + m * a.row + bounds.begin * a.word, a.row, a.word,
                      b.words + n / kPanel * b.panel + bounds.begin * b.word, b.word,
                      bounds.end - bounds.begin, c + m * stride + n, stride, add);
    }
}

// Terms of a sum that a row takes part in: a word has Kind::depth of them.
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

// As `multiply` with the same bits, but row m takes only the terms `span(m)` of its sum: infinities and NaNs in others,
// of A or of B, do not matter, where `multiply` makes NaNs of 0 * NaN. Slower, for the rare case that there are any.
template <class Kind, class Spans>
void multiply_rows(i64 rows, i64 columns, Left a, Right b, float* c, i64 stride, bool add, Spans span) {
  for (i64 n = 0; n < columns; n += kPanel) {
    const i64 width = smaller(kPanel, round_up(columns - n, W));
    const Tile tile = tile_of<Kind>(1, int(width / W));
    const float* panel = b.words + n / kPanel * b.panel;
    for (i64 m = 0; m < rows; m++) {
      const Span own = span(m);
      if (add && own.begin >= own.end) continue;
      const float* row = a.words + m * a.row;
      bool any = add;
      const auto add_words = [&](const float* left, const float* right, i64 count) {
        tile(left, 0, a.word, right, b.word, count, c + m * stride + n, 0, any);
        any = true;
      };
      const auto add_half = [&](i64 w, std::uint32_t mask) {
        const float left = masked(row[w * a.word], mask);
        float right[kPanel];
        for (i64 i = 0; i < width; i++) right[i] = masked(panel[w * b.word + i], mask);
        add_words(&left, right, 1);
      };
      i64 w = own.begin / Kind::depth;
      const i64 last = own.end / Kind::depth;
      if (own.begin % Kind::depth) add_half(w++, 0xFFFF0000u);
      add_words(row + w * a.word, panel + w * b.word, last - w);
      if (own.end % Kind::depth) add_half(last, 0x0000FFFFu);
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
inline void pack_rows(Single, const float* x, i64 stride, i64 rows, i64 size, float* words) {
  for (i64 i = 0; i < rows; i++) std::memcpy(words + i * size, x + i * stride, sizeof(float) * static_cast<std::size_t>(size));
}
inline void pack_rows(Single, const bf16* x, i64 stride, i64 rows, i64 size, float* words) {
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < size; j += W) {
      const i64 lanes = smaller(W, size - j);
      store(words + i * size + j, load(x + i * stride + j, lanes), lanes);
    }
}

// Write rows as words, [rows][width], the columns beyond `size` zero: a B summed over rows.
template <class T> void pack_for_rows(Single, const T* x, i64 stride, i64 rows, i64 size, i64 width, float* words) {
  for (i64 i = 0; i < rows; i++)
    for (i64 j = 0; j < width; j += W) {
      const i64 lanes = smaller(W, size - j);
      store(words + i * width + j, load(x + i * stride + j, lanes));
    }
}

#ifdef HB_PAIRS
inline void pack_rows(Pairs, const bf16* x, i64 stride, i64 rows, i64 size, float* words) {
  const i64 width = (size + 1) / 2;
  for (i64 i = 0; i < rows; i++) {
    if (size % 2) words[i * width + width - 1] = 0.0f;
    std::memcpy(words + i * width, x + i * stride, sizeof(bf16) * static_cast<std::size_t>(size));
  }
}

inline void pack_for_rows(Pairs, const bf16* x, i64 stride, i64 rows, i64 size, i64 width, float* words) {
  for (i64 i = 0; i < rows; i += 2, words += width)
    for (i64 j = 0; j < width; j += W) {
      const bf16* row = x + i * stride + j;
      store(words + j, load_pairs(row, i + 1 < rows ? row + stride : nullptr, size - j));
    }
}
#endif

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
