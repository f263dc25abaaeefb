// Products of bf16 by AVX512-FP16, whose instructions multiply and add twice as many values as those for floats.
//
// A value of bf16 has fewer digits than one of fp16 but a wider range. So rows and panels are scaled by powers of two, which
// brings their largest values to [8, 16): values below 2^-17 of the largest become zero, all others stay exact. Up to
// `longest` steps are added up in fp16; those sums are below 2^14, and are added up in floats. The rounding of fp16, 2^-11,
// is below that of the bf16 values that are multiplied.
#pragma once
#include <algorithm>

#include "panels.h"
#include "transpose.h"

#ifdef __AVX512FP16__

namespace {

// What scales values to fp16: their exponents are lowered by `drop`, and the products' results multiplied by `factor`.
struct Scaling {
  static constexpr int top = 18;  // the exponent's bits of the largest value: 2^3
  int drop;
  float factor;  // NaN where a value is infinite or NaN, so that results are

  // `largest`: the bits of the largest magnitude, of bf16.
  explicit Scaling(int largest) : drop(std::max((largest >> 7) - top, 0)) {
    const std::uint32_t bits = largest >= 0x7F80 ? 0x7FC00000u : static_cast<std::uint32_t>(drop + 15) << 23;
    std::memcpy(&factor, &bits, 4);
  }

  // Of 32 values of bf16: fp16.
  __m512i operator()(__m512i values) const {
    const __m512i magnitudes = _mm512_and_si512(values, _mm512_set1_epi16(0x7FFF));
    const __mmask32 is_normal =
        _mm512_cmpge_epu16_mask(magnitudes, _mm512_set1_epi16(static_cast<short>((drop + 1) << 7)));
    const __m512i scaled = _mm512_sub_epi16(magnitudes, _mm512_set1_epi16(static_cast<short>(drop << 7)));
    const __m512i signs = _mm512_and_si512(values, _mm512_set1_epi16(static_cast<short>(0x8000)));
    return _mm512_maskz_mov_epi16(is_normal, _mm512_or_si512(_mm512_slli_epi16(scaled, 3), signs));
  }
};

inline __mmask32 first_halves(i64 n) { return n >= 32 ? ~__mmask32(0) : (__mmask32(1) << n) - 1; }
inline __m512i load_halves(const bf16* p, i64 n) { return _mm512_maskz_loadu_epi16(first_halves(n), p); }
inline __m512i load_halves(const float* p, i64 n) {
  const __m256i lower = narrow(load(p, n).v), upper = narrow(n > 16 ? load(p + 16, n - 16).v : _mm512_setzero_ps());
  return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
}

// The bits of the largest magnitude of a matrix, rounded to bf16.
template <class T>
int largest_bits(const T* x, i64 stride, i64 rows, i64 columns) {
  __m512i most = _mm512_setzero_si512();
  for (i64 row = 0; row < rows; row++, x += stride)
    for (i64 k = 0; k < columns; k += 32)
      most = _mm512_max_epu16(
          most, _mm512_and_si512(load_halves(x + k, smaller(32, columns - k)), _mm512_set1_epi16(0x7FFF)));
  const __m512i lower = _mm512_and_si512(most, _mm512_set1_epi32(0xFFFF)), upper = _mm512_srli_epi32(most, 16);
  return static_cast<int>(_mm512_reduce_max_epu32(_mm512_max_epu32(lower, upper)));
}

struct HalfProduct : PairPacking {
  using Scope = NoScope;
  static constexpr bool is_scaled = true;
  static constexpr i64 rows = 6, vectors = 4, width = 64, step_multiple = 1, row_multiple = 1;
  static constexpr i64 longest = 32;  // steps that are added up in fp16

  // Returns the factor of what is multiplied by the row.
  static float convert_row(const bf16* from, i64 n, bf16* to) {
    const Scaling scaling(largest_bits(from, n, 1, n));
    for (i64 k = 0; k < n; k += 32) {
      const i64 count = smaller(32, n - k);
      _mm512_mask_storeu_epi16(to + k, first_halves(count), scaling(load_halves(from + k, count)));
    }
    return scaling.factor;
  }

  // Packs columns [first, first + columns) of the matrix whose columns are the rows of `weight`, or its columns for
  // `is_across`, as a panel; returns its factor.
  static float pack_panel(const float* weight, i64 stride, bool is_across, i64 first, i64 columns, i64 length,
                          bf16* panel) {
    const float* from = weight + first * (is_across ? 1 : stride);
    const Scaling scaling(is_across ? largest_bits(from, stride, length, columns)
                                    : largest_bits(from, stride, columns, length));
    const i64 padded = round_up(columns, column_multiple);
    for (i64 column = 0; column < padded; column += Vec::lanes) {
      const i64 there = columns - column;
      bf16* to = panel + column * depth;
      if (is_across) {
        for (i64 k = 0; k < length; k += depth, to += padded * depth) {
          const float* row = from + k * stride + column;
          const __m256i even = narrow(load(row, there).v);
          const __m256i odd = narrow(k + 1 < length ? load(row + stride, there).v : _mm512_setzero_ps());
          const __m512i both = scaling(_mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1));
          const __m512i lower = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
          const __m512i upper = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
          _mm512_storeu_si512(to, _mm512_or_si512(lower, _mm512_slli_epi32(upper, 16)));
        }
      } else {
        for (i64 k = 0; k < length; k += 2 * Vec::lanes, to += Vec::lanes * padded * depth) {
          Vec pairs[Vec::lanes];
          const i64 steps = smaller(Vec::lanes, (length - k + 1) / depth);
          for (i64 i = 0; i < Vec::lanes; i++) {
            const __m512i none = _mm512_setzero_si512();
            const float* row = from + (column + i) * stride + k;
            pairs[i] = {_mm512_castsi512_ps(i < there ? scaling(load_halves(row, smaller(32, length - k))) : none)};
          }
          transpose(pairs);
          for (i64 i = 0; i < steps; i++) store(reinterpret_cast<float*>(to + i * padded * depth), pairs[i]);
        }
      }
    }
    return scaling.factor;
  }

  // sum + the sums of even and of odd values, which lie side by side; subnormal ones of fp16 count as zero.
  static Vec plus(Vec sum, __m512h pairs) {
    const __m512h turned = _mm512_castsi512_ph(_mm512_rol_epi32(_mm512_castph_si512(pairs), 16));
    const __m512i both = _mm512_srai_epi32(_mm512_castph_si512(_mm512_add_ph(pairs, turned)), 3);
    const __m512i bits = _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0x8FFFE000)));
    return fma(Vec{_mm512_castsi512_ps(bits)}, set1(0x1p112f), sum);  // the exponents' biases differ
  }

  template <int num_rows, int num_vectors>
  static void multiply_block(const bf16* a, i64 row_stride, i64 step_stride, const bf16* panel, i64 steps, float* out,
                             const Ahead& ahead) {
    i64 line = 0, due = 0;
    for (i64 begin = 0; begin == 0 || begin < steps; begin += longest) {
      __m512h sums[num_rows][num_vectors];
#pragma GCC unroll 8
      for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; v++) sums[r][v] = _mm512_setzero_ph();
      for (i64 step = smaller(longest, steps - begin); step > 0; step--) {
        __m512h columns[num_vectors];
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; v++) columns[v] = _mm512_loadu_ph(panel + v * Vec::lanes * depth);
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; r++) {
          int pair;
          std::memcpy(&pair, a + r * row_stride, 4);
          const __m512h value = _mm512_castsi512_ph(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
          for (int v = 0; v < num_vectors; v++) sums[r][v] = _mm512_fmadd_ph(value, columns[v], sums[r][v]);
        }
        panel += num_vectors * Vec::lanes * depth;
        a += step_stride;
        if ((due += ahead.count) >= steps && line < ahead.count) {
          due -= steps;
          __builtin_prefetch(ahead.lines[line++], 1);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; v++) {
          float* to = out + r * width + v * Vec::lanes;
          store(to, plus(begin == 0 ? set1(0.0f) : load(to), sums[r][v]));
        }
    }
  }
};

}  // namespace

#endif
