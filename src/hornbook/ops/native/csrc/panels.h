// Matrix products of a few rows by a panel of columns, and the panels.
//
//   panel of W columns        [steps][W][depth]      a step is the `depth` values that one instruction multiplies
//   a block of `rows` rows    element (row, step) at a + row * row_stride + step * step_stride; steps of the `row_group`
//                             rows that an instruction takes at once lie side by side, where the first one's is
//   result                    [rows][W] floats, added up over the steps in order
//
//                          depth  row_group
//   FloatProduct               1          1    floats
//   PairProduct                2          1    bf16, with AVX512-BF16 or Arm's bfdot
//   QuadProduct                4          2    bf16, with Arm's bfmmla: 2x4 values by 4x2
//   TileProduct (tiles.h)      2          1    bf16, with AMX, which reads 16 rows at any distance
//   HalfProduct (halves.h)     2          1    scaled fp16; rows and panels have factors that results are multiplied by
//
// Without any for bf16, it is converted to float when it is packed, and multiplied as float; Intel's processors take no
// longer for that, AMD's do.
#pragma once
#include <algorithm>
#include <type_traits>

#include "simd.h"
#include "threads.h"

namespace {

// What a product needs while its thread computes: nothing.
struct NoScope {};

// 6 x 4 sums, 4 vectors of a panel and a value of a row fill 29 of AVX-512's 32 registers.
struct FloatProduct {
  using Element = float;
  using Operand = Vec;
  static constexpr i64 depth = 1, rows = 6, vectors = Vec::lanes == 16 ? 4 : 2, width = vectors * Vec::lanes;
  static constexpr i64 step_multiple = 1, row_group = 1, row_multiple = 1, column_multiple = Vec::lanes;
  static constexpr bool is_scaled = false;
  using Scope = NoScope;
  static Operand load_panel(const float* p) { return load(p); }
  static Operand load_rows(const float* p) { return set1(*p); }
  static void add_products(Vec (&sums)[1], Operand a, Operand b) { sums[0] = fma(a, b, sums[0]); }
  template <class T>
  static void pack_step(const T* row, i64, i64, i64 n, float* out) {
    store(out, load(row, n));
  }
  template <class T>
  static void convert_row(const T* from, i64 n, float* to) {
    i64 k = 0;
    for (; k + Vec::lanes <= n; k += Vec::lanes) store(to + k, load(from + k));
    if (k < n) store(to + k, load(from + k, n - k), n - k);
  }
};

// bf16 pairs that follow each other along the contraction, for AVX512-BF16, Arm's bf16 and AMX.
struct PairPacking {
  using Element = bf16;
  static constexpr i64 depth = 2, row_group = 1, column_multiple = 16;
  static constexpr bool is_scaled = false;
  // A step of up to a vector of columns, of the first `rows` of `depth` rows; zero for others, and from column n on.
  static void pack_step(const bf16* row, i64 stride, i64 rows, i64 n, bf16* out) {
    store(reinterpret_cast<float*>(out), load_pairs(row, rows > 1 ? row + stride : nullptr, n));
  }
  static void convert_row(const bf16* from, i64 n, bf16* to) { std::copy(from, from + n, to); }
};

#ifdef HB_PAIRS
struct PairProduct : PairPacking {
  using Operand = Vec;
  using Scope = NoScope;
  static constexpr i64 rows = 6, vectors = FloatProduct::vectors, width = FloatProduct::width,
                       column_multiple = Vec::lanes;
  static constexpr i64 step_multiple = 1, row_multiple = 1;
  static Operand load_panel(const bf16* p) { return load(reinterpret_cast<const float*>(p)); }
  static Operand load_rows(const bf16* p) {
    float pair;
    std::memcpy(&pair, p, 4);
    return set1(pair);
  }
  static void add_products(Vec (&sums)[1], Operand a, Operand b) { sums[0] = dot_pairs(a, b, sums[0]); }
};
#endif

#ifdef HB_QUADS
struct QuadProduct : PairPacking {
  using Operand = Quads;
  using Scope = NoScope;
  static constexpr i64 depth = 4, rows = 6, vectors = FloatProduct::vectors, width = FloatProduct::width;
  static constexpr i64 step_multiple = 1, row_group = 2, row_multiple = row_group, column_multiple = Vec::lanes;
  static Operand load_panel(const bf16* p) { return load_quads(p); }
  static QuadRows load_rows(const bf16* p) { return load_quad_rows(p); }
  static void add_products(Vec (&sums)[2], QuadRows a, const Operand& b) { multiply_quads(a, b, sums); }
  static void pack_step(const bf16* row, i64 stride, i64 rows, i64 n, bf16* out) {
    Vec lower = load_pairs(row, rows > 1 ? row + stride : nullptr, n), upper = set1(0.0f);
    if (rows > 2) upper = load_pairs(row + 2 * stride, rows > 3 ? row + 3 * stride : nullptr, n);
    zip(lower, upper);
    store(reinterpret_cast<float*>(out), lower);
    store(reinterpret_cast<float*>(out) + Vec::lanes, upper);
  }
  // Leaves room for the steps of the group's other row.
  static void convert_row(const bf16* from, i64 n, bf16* to) {
    for (i64 k = 0; k < n; k += depth, to += row_group * depth) std::copy(from + k, from + smaller(k + depth, n), to);
  }
};
#endif

// Turns rows of sums into what instructions add to, and back: 2x2 tiles where rows are in groups of two.
HB_INLINE void exchange(Vec (&)[1]) {}
HB_INLINE void exchange(Vec (&sums)[2]) {
  const Vec first = sums[0];
  sums[0] = low_pairs(first, sums[1]), sums[1] = high_pairs(first, sums[1]);
}

// Lines of memory that are needed after a product, which fetches them one after the other while it computes: all at
// once, they take the buffers that its operands arrive in.
struct Ahead {
  static constexpr i64 most = 256;  // more are left out
  const void* lines[most];
  i64 count = 0;
  template <class T>
  void add(const T* block, i64 stride, i64 rows, i64 columns) {
    for (i64 row = 0; row < rows; row++)
      for (i64 column = 0; column < columns && count < most; column += 64 / i64(sizeof(T)))
        lines[count++] = block + row * stride + column;
  }
};
constexpr Ahead kNothingAhead{};

// The block of a product that lies in registers. `panel_step` and `out_stride` are the distances of a panel's steps and of
// the rows of `out`, to which products are added if `adds`.
template <class P, int num_rows, int num_vectors>
void multiply_block(const typename P::Element* a, i64 row_stride, i64 step_stride, const typename P::Element* panel,
                    i64 panel_step, i64 steps, float* out, i64 out_stride, bool adds, const Ahead& ahead) {
  constexpr int group = P::row_group, groups = num_rows / group;
  static_assert(num_rows % group == 0, "whole groups");
  Vec sums[groups][num_vectors][group];
  // unrolled, so that the sums are registers from the first pass of the compiler on
#pragma GCC unroll 8
  for (int g = 0; g < groups; g++)
#pragma GCC unroll 8
    for (int v = 0; v < num_vectors; v++) {
#pragma GCC unroll 8
      for (int i = 0; i < group; i++)
        sums[g][v][i] = adds ? load(out + (g * group + i) * out_stride + v * Vec::lanes) : set1(0.0f);
      if (adds) exchange(sums[g][v]);
    }
  const i64 between = steps / (ahead.count + 1);
  for (i64 line = 0; line <= ahead.count; line++) {
    for (i64 step = line < ahead.count ? between : steps - between * ahead.count; step > 0; step--) {
      // The side that takes fewer registers is loaded as a whole: otherwise some sums leave them.
      if constexpr (group == 1) {
        typename P::Operand columns[num_vectors];
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; v++) columns[v] = P::load_panel(panel + v * Vec::lanes * P::depth);
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; r++) {
          const typename P::Operand value = P::load_rows(a + r * row_stride);
#pragma GCC unroll 8
          for (int v = 0; v < num_vectors; v++) P::add_products(sums[r][v], value, columns[v]);
        }
      } else {
        decltype(P::load_rows(a)) values[groups];
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) values[g] = P::load_rows(a + g * group * row_stride);
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; v++) {
          const typename P::Operand columns = P::load_panel(panel + v * Vec::lanes * P::depth);
#pragma GCC unroll 8
          for (int g = 0; g < groups; g++) P::add_products(sums[g][v], values[g], columns);
        }
      }
      panel += panel_step;
      a += step_stride;
    }
    if (line < ahead.count) __builtin_prefetch(ahead.lines[line], 1);
  }
#pragma GCC unroll 8
  for (int g = 0; g < groups; g++)
#pragma GCC unroll 8
    for (int v = 0; v < num_vectors; v++) {
      exchange(sums[g][v]);
#pragma GCC unroll 8
      for (int i = 0; i < group; i++) store(out + (g * group + i) * out_stride + v * Vec::lanes, sums[g][v][i]);
    }
}

template <class P, int num_rows>
__attribute__((noinline)) void multiply_rows(const typename P::Element* a, i64 row_stride, i64 step_stride,
                                             const typename P::Element* panel, i64 num_vectors, i64 steps, float* out,
                                             const Ahead& ahead) {
  const auto block = [&](auto vectors) {
    constexpr int whole_groups = round_up(num_rows, P::row_group);
    if constexpr (P::is_scaled)
      P::template multiply_block<num_rows, vectors>(a, row_stride, step_stride, panel, steps, out, ahead);
    else
      multiply_block<P, whole_groups, vectors>(a, row_stride, step_stride, panel, vectors * Vec::lanes * P::depth,
                                               steps, out, P::width, false, ahead);
  };
  if (num_vectors == P::vectors)
    block(std::integral_constant<int, P::vectors>());
  else if (num_vectors == 1)
    block(std::integral_constant<int, 1>());
  else if (num_vectors == 2)
    block(std::integral_constant<int, 2>());
  else if constexpr (P::vectors > 3)
    block(std::integral_constant<int, 3>());
}

// Multiplies up to P::rows rows by a panel of `columns` columns; `out` is [P::rows][P::width]. Rows up to a multiple of
// P::row_multiple have to be there.
template <class P>
void multiply(const typename P::Element* a, i64 num_rows, i64 row_stride, i64 step_stride,
              const typename P::Element* panel, i64 columns, i64 steps, float* out, const Ahead& ahead) {
  const i64 vectors = (columns + Vec::lanes - 1) / Vec::lanes;
  switch (num_rows) {
    case 1: return multiply_rows<P, 1>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
    case 2: return multiply_rows<P, 2>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
    case 3: return multiply_rows<P, 3>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
    case 4: return multiply_rows<P, 4>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
    case 5: return multiply_rows<P, 5>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
    default: return multiply_rows<P, 6>(a, row_stride, step_stride, panel, vectors, steps, out, ahead);
  }
}

template <class P>
i64 num_steps(i64 depth) {
  return round_up((depth + P::depth - 1) / P::depth, P::step_multiple);
}

// Values of a packed matrix of `columns` columns; the last panel has whole vectors or tiles, filled up with zeros.
template <class P>
i64 packed_size(i64 columns, i64 depth) {
  return round_up(columns, P::column_multiple) * num_steps<P>(depth) * P::depth;
}

// Packs rows x columns of `source` with the rows as the contraction, in panels of `width` columns; adds the columns'
// sums to `sums` unless it is null.
template <class P, class T>
void pack_rows(const T* source, i64 stride, i64 rows, i64 columns, i64 width, typename P::Element* packed,
               float* sums) {
  constexpr i64 abreast = 3;  // vectors that are summed at once, so that one addition need not wait for another
  const i64 steps = num_steps<P>(rows), there = (rows + P::depth - 1) / P::depth;
  for (i64 first = 0; first < columns; first += width) {
    const i64 real = smaller(width, columns - first), padded = round_up(real, P::column_multiple);
    typename P::Element* to = packed + first * steps * P::depth;
    for (i64 step = 0; step < there; step++) {
      const T* row = source + first + step * P::depth * stride;
      const i64 real_rows = smaller(P::depth, rows - step * P::depth);
      for (i64 column = 0; column < padded; column += Vec::lanes, to += Vec::lanes * P::depth)
        P::pack_step(row + column, stride, real_rows, smaller(Vec::lanes, real - column), to);
    }
    std::fill(to, to + (steps - there) * padded * P::depth, typename P::Element(0));
    for (i64 column = 0; sums && column < real; column += abreast * Vec::lanes) {
      Vec totals[abreast] = {set1(0.0f), set1(0.0f), set1(0.0f)};
      for (i64 row = 0; row < rows; row++)
#pragma GCC unroll 3
        for (i64 v = 0; v < abreast; v++) {
          const i64 at = column + v * Vec::lanes;
          totals[v] = totals[v] + load(source + row * stride + first + at, larger(0, smaller(Vec::lanes, real - at)));
        }
      for (i64 v = 0; v < abreast; v++) {
        const i64 at = column + v * Vec::lanes, n = larger(0, smaller(Vec::lanes, real - at));
        float* sum = sums + first + at;
        store(sum, load(sum, n) + totals[v], n);
      }
    }
  }
}

// Adds (or stores, if `is_first`) a block of floats, rows of `width`, to rows of `stride`.
inline void add_block(const float* block, i64 width, float* to, i64 stride, i64 rows, i64 columns, bool is_first) {
  for (i64 r = 0; r < rows; r++, block += width, to += stride)
    for (i64 c = 0; c < columns; c += Vec::lanes) {
      const i64 n = smaller(Vec::lanes, columns - c);
      const Vec sum = load(block + c);
      store(to + c, is_first ? sum : load(to + c, n) + sum, n);
    }
}

}  // namespace
