// The gradient of the blocks of a line; see block_lines.h.
#pragma once
#include <type_traits>

#include "block_lines.h"
#include "threads.h"
#include "transpose.h"

namespace {

// How the gradient of blocks of b reads tokens: block by block, [block][token / group][b][group]. The features of a block
// fill vectors, if need be those of a group of tokens together.
template <i64 b>
struct Operands {
  static constexpr i64 group = b < Vec::lanes ? Vec::lanes / b : 1;
  static constexpr i64 unit = larger(b, Vec::lanes);                   // features that one thread packs
  static constexpr i64 most = Vec::lanes == 16 && b == 4 ? 6 : group;  // blocks whose sums stay in registers
  // Bytes of tokens that are read in any order: the same on all machines, since they decide the order of sums.
  static constexpr i64 chunk = (group > 2 ? 400 : 200) << 10;

  // `num_tokens` are packed, with zeros up to whole groups; blocks have room for `width`.
  template <class T>
  static void pack(const T* tokens, i64 stride, i64 num_tokens, i64 num_features, float* to, i64 width) {
    constexpr i64 kTokens = 8 * group;  // that go to a block one after the other
    for (i64 first = 0; first < num_tokens; first += kTokens) {
      const i64 end = smaller(first + kTokens, num_tokens);
      if constexpr (group == 1) {
        for (i64 feature = 0; feature < num_features; feature += b)
          for (i64 token = first; token < end; ++token)
#pragma GCC unroll 8
            for (i64 at = 0; at < b; at += Vec::lanes)
              store(to + feature * width + token * b + at, load(tokens + token * stride + feature + at));
      } else {
        for (i64 feature = 0; feature < num_features; feature += Vec::lanes)
          for (i64 token = first; token < end; token += group) {
            const i64 features = smaller(Vec::lanes, num_features - feature);
            Vec rows[group];
#pragma GCC unroll 4
            for (i64 i = 0; i < group; ++i)
              rows[i] = token + i >= num_tokens ? set1(0.0f) : load(tokens + (token + i) * stride + feature, features);
            interleave(rows);
#pragma GCC unroll 4
            for (i64 i = 0; i < group; ++i)
              if (i * b < features) store(to + (feature / b + i) * b * width + token * b + feature % b, rows[i]);
          }
      }
    }
  }
};

// Adds alongᵀ others of tokens to `count` blocks of at most a vector; with `across`, the transposed, for which blocks are
// transposed after the last tokens (`is_last`). Each vector that is loaded serves b or `count` sums. (Inlined, g++ would not
// keep all sums in registers.)
template <i64 b, bool across, i64 count>
__attribute__((noinline)) void multiply_groups(const float* along, const float* const* others, i64 num_tokens,
                                               bool is_last, float* const* blocks) {
  constexpr i64 group = Operands<b>::group;
  Vec totals[count][b];
#pragma GCC unroll 6
  for (i64 i = 0; i < count; ++i)
#pragma GCC unroll 16
    for (i64 n = 0; n < b; ++n) totals[i][n] = set1(0.0f);
  for (i64 at = 0; at < num_tokens * b; at += Vec::lanes) {
    Vec features[b];
#pragma GCC unroll 16
    for (i64 n = 0; n < b; ++n) features[n] = repeat<group>(along + at + n * group);
#pragma GCC unroll 6
    for (i64 i = 0; i < count; ++i) {
      const Vec other = load(others[i] + at);
#pragma GCC unroll 16
      for (i64 n = 0; n < b; ++n) totals[i][n] = fma(features[n], other, totals[i][n]);
    }
  }
#pragma GCC unroll 6
  for (i64 i = 0; i < count; ++i) {
    Vec found[b / group];
#pragma GCC unroll 16
    for (i64 n = 0; n < b / group; ++n)
      found[n] = load(blocks[i] + n * Vec::lanes) + sums_of_groups<group>(totals[i] + n * group);
    if constexpr (across)
      if (is_last) transpose(found);
#pragma GCC unroll 16
    for (i64 n = 0; n < b / group; ++n) store(blocks[i] + n * Vec::lanes, found[n]);
  }
}

// Adds gradientᵀ x of tokens [token][b] to a block of several vectors.
template <i64 b>
HB_INLINE void multiply_tokens(const float* gradient, const float* x, i64 num_tokens, float* block) {
  constexpr i64 V = 2, N = Vec::lanes / V;
  for (i64 row = 0; row < b; row += N)
    for (i64 column = 0; column < b; column += V * Vec::lanes) {
      float* part = block + row * b + column;
      Vec totals[N][V];
#pragma GCC unroll 8
      for (i64 n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (i64 v = 0; v < V; ++v) totals[n][v] = load(part + n * b + v * Vec::lanes);
      for (i64 token = 0; token < num_tokens; ++token) {
        Vec inputs[V];
#pragma GCC unroll 2
        for (i64 v = 0; v < V; ++v) inputs[v] = load(x + token * b + column + v * Vec::lanes);
#pragma GCC unroll 8
        for (i64 n = 0; n < N; ++n) {
          const Vec output = set1(gradient[token * b + row + n]);
#pragma GCC unroll 2
          for (i64 v = 0; v < V; ++v) totals[n][v] = fma(output, inputs[v], totals[n][v]);
        }
      }
#pragma GCC unroll 8
      for (i64 n = 0; n < N; ++n)
#pragma GCC unroll 2
        for (i64 v = 0; v < V; ++v) store(part + n * b + v * Vec::lanes, totals[n][v]);
    }
}

// Calls function(count) with a count of at most `most` that is known when it is compiled.
template <i64 most, class Function>
HB_INLINE void with_count(i64 count, Function function) {
  if constexpr (most == 1)
    function(std::integral_constant<i64, 1>());
  else if (count == most)
    function(std::integral_constant<i64, most>());
  else
    with_count<most - 1>(count, function);
}

// Adds the products of a line with the others to its blocks; small blocks take several others at once.
template <i64 b, bool across>
void multiply_line(const float* along, const float* others, const Lines& lines, i64 line, i64 num_tokens, i64 width,
                   bool is_last, float* of_values) {
  constexpr i64 most = Operands<b>::most;
  const i64 begin = lines.starts[line], num_blocks = lines.starts[line + 1] - begin;
  const int parts = static_cast<int>((num_blocks + most - 1) / most);
  for (int part = 0; part < parts; ++part) {
    const Range own = share(num_blocks, 1, part, parts);
    const float* operands[most];
    float* blocks[most];
    for (i64 i = own.begin; i < own.end; ++i) {
      const i64 block = lines.block(begin + i);
      operands[i - own.begin] = others + lines.others[block] * b * width;
      blocks[i - own.begin] = of_values + block * b * b;
    }
    if constexpr (b <= Vec::lanes)
      with_count<most>(own.end - own.begin, [&](auto count) {
        multiply_groups<b, across, count.value>(along, operands, num_tokens, is_last, blocks);
      });
    else
      multiply_tokens<b>(across ? operands[0] : along, across ? along : operands[0], num_tokens, blocks[0]);
  }
}

}  // namespace
