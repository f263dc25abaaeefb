// The products of a linear layer: output, gradient of the input, gradients of weight and bias; fp32 and bf16.
//
// Weights are fp32 [num_out][num_in] and packed once for all products with them. Each element of a result is added up
// over the contraction in one order, whatever the number of rows or threads: the same call gives the same bits.
#include "epilogue.h"
#include "halves.h"
#include "panels.h"
#include "transpose.h"
#ifdef HB_AMX
#include "tiles.h"
#endif

namespace {

#if defined(HB_AMX)
using Bf16Product = TileProduct;
#elif defined(__AVX512FP16__)
using Bf16Product = HalfProduct;
#elif defined(HB_QUADS)
using Bf16Product = QuadProduct;
#elif defined(HB_PAIRS)
using Bf16Product = PairProduct;
#else
using Bf16Product = FloatProduct;
#endif
// Gradients of weights, which are fp32, are added up in floats.
using Bf16GradientProduct = std::conditional_t<Bf16Product::is_scaled, FloatProduct, Bf16Product>;

// How products are cut. The two chunks decide the order of sums, so they are the same on all machines. The others do not;
// they are for a second-level cache of 2 MiB, but smaller ones are no faster where it has 512 KiB (LOG.md, 2026-11-27): what
// does not fit is read in order, which the processor foresees, and more parts are packed more often.
constexpr i64 depth_chunk = 1024;  // values of a contraction for which rows and panels stay in the cache
constexpr i64 token_chunk = 256;   // tokens whose operands of a weight gradient are packed at once
template <class P>
constexpr i64 row_block = (48 + P::rows - 1) / P::rows * P::rows;  // rows that meet a panel while it lies in the cache
constexpr i64 long_row_block = 192;     // the same where the contraction is cut, so that panels are read less often
constexpr i64 group_bytes = 768 << 10;  // of panels that stay in the second-level cache
template <class P>
constexpr i64 gradient_width = row_block<P>;  // rows of a weight gradient that are packed side by side

// The factors of panels lie behind them.
template <class P, class E>
auto panel_factors(E* packed, i64 columns, i64 depth) {
  return reinterpret_cast<std::conditional_t<std::is_const_v<E>, const float*, float*>>(packed +
                                                                                        packed_size<P>(columns, depth));
}
template <class P>
i64 packed_bytes(i64 columns, i64 depth) {
  const i64 factors = P::is_scaled ? (columns + P::width - 1) / P::width : 0;
  return packed_size<P>(columns, depth) * i64(sizeof(typename P::Element)) + factors * i64(sizeof(float));
}

// The row of a gated weight, [2][columns / 2][...], in a packed column: a panel has some gates, then as many values that
// these multiply, so that a block of results has both.
template <class P>
i64 gated_row(i64 column, i64 columns) {
  const i64 first = column / P::width * P::width, half = smaller(P::width, columns - first) / 2, at = column - first;
  return first / 2 + (at < half ? at : columns / 2 + at - half);
}

// Packs columns of a weight, rounded to T, by squares of a vector of steps and of columns.
template <class P, class T>
void pack_columns(const float* weight, i64 stride, bool for_gradient, bool is_gated, Range own, i64 columns, i64 depth,
                  typename P::Element* packed) {
  const i64 steps = num_steps<P>(depth);
  for (i64 first = own.begin; first < own.end; first += P::width) {
    const i64 end = smaller(first + P::width, own.end), padded = round_up(end - first, P::column_multiple);
    for (i64 k = 0; k < steps * P::depth; k += Vec::lanes)
      for (i64 column = first; column < end; column += Vec::lanes) {
        const i64 values = larger(0, smaller(Vec::lanes, depth - k)), there = smaller(Vec::lanes, end - column);
        Vec square[Vec::lanes];
        for (i64 i = 0; i < Vec::lanes; i++)
          if (i >= (for_gradient ? values : there))
            square[i] = set1(0.0f);
          else if (for_gradient)
            square[i] = load(weight + (k + i) * stride + column, there);
          else
            square[i] = load(weight + (is_gated ? gated_row<P>(column + i, columns) : column + i) * stride + k, values);
        if (!for_gradient) transpose(square);
        T rows[Vec::lanes][Vec::lanes];
        for (i64 i = 0; i < Vec::lanes; i++) store(rows[i], square[i]);
        for (i64 i = 0; i < Vec::lanes && k + i < steps * P::depth; i += P::depth)
          P::pack_step(rows[i], Vec::lanes, P::depth, Vec::lanes,
                       packed + first * steps * P::depth + (k + i) * padded + (column - first) * P::depth);
      }
  }
}

// T is the dtype of the activations: weights are rounded to it, also where the product takes floats. `is_gated` is only
// for the product with the rows of the weight.
template <class P, class T>
void pack_weight(const float* weight, i64 stride, i64 num_out, i64 num_in, bool for_gradient, bool is_gated,
                 typename P::Element* packed, i64 threads) {
  const i64 columns = for_gradient ? num_in : num_out, depth = for_gradient ? num_out : num_in;
  parallel(threads, [=](int thread, int count) {
    const Range own = share(columns, P::width, thread, count);
    if constexpr (P::is_scaled) {
      float* factors = panel_factors<P>(packed, columns, depth);
      for (i64 first = own.begin; first < own.end; first += P::width) {
        const i64 width = smaller(P::width, own.end - first);
        auto* panel = packed + first * num_steps<P>(depth) * P::depth;
        auto* rows = static_cast<float*>(scratch(0, is_gated ? width * depth * i64(sizeof(float)) : 0));
        for (i64 i = 0; is_gated && i < width; i++) {
          const float* row = weight + gated_row<P>(first + i, columns) * stride;
          std::copy(row, row + depth, rows + i * depth);
        }
        factors[first / P::width] = is_gated ? P::pack_panel(rows, depth, false, 0, width, depth, panel)
                                             : P::pack_panel(weight, stride, for_gradient, first, width, depth, panel);
      }
    } else {
      pack_columns<P, T>(weight, stride, for_gradient, is_gated, own, columns, depth, packed);
    }
  });
}

// Rows of the left operand as the product takes them: as they lie, or converted, in groups, and filled up with zeros; and
// their factors, where it scales them.
template <class P, class T>
const typename P::Element* operand_rows(const T* x, i64 stride, i64 rows, i64 depth, i64* new_stride,
                                        [[maybe_unused]] float* factors) {
  using Element = typename P::Element;
  const i64 padded = num_steps<P>(depth) * P::depth;
  if constexpr (sizeof(T) == sizeof(Element) && !P::is_scaled && P::row_group == 1) {
    if (depth == padded && rows % P::row_multiple == 0) {
      *new_stride = stride;
      return reinterpret_cast<const Element*>(x);
    }
  }
  const i64 step = depth == 0 ? 0 : stride;  // the address of an empty operand may be null
  auto* copy = static_cast<Element*>(scratch(0, long_row_block * padded * i64(sizeof(Element))));
  for (i64 row = 0; row < round_up(rows, P::row_multiple); row++) {
    const i64 in_group = row % P::row_group, real = row < rows ? depth : 0;
    Element* to = copy + (row - in_group) * padded + in_group * P::depth;
    if constexpr (P::is_scaled)
      factors[row] = P::convert_row(x + row * step, real, to);
    else
      P::convert_row(x + row * step, real, to);
    for (i64 k = real; k < padded; k++) to[k + k / P::depth * P::depth * (P::row_group - 1)] = 0;
  }
  *new_stride = padded;
  return copy;
}

inline void scale_rows(float* block, i64 width, i64 rows, const float* row_factors, float factor) {
  for (i64 row = 0; row < rows; row++)
    for (i64 column = 0; column < width; column += Vec::lanes, block += Vec::lanes)
      store(block, load(block) * set1(row_factors[row] * factor));
}

// A product of a range of rows by a range of columns. A long contraction is cut into chunks, whose sums are added up.
template <class P, class T>
void multiply_range(const T* x, i64 stride, const typename P::Element* packed, [[maybe_unused]] const float* factors,
                    Range rows, Range columns, i64 depth, StoreBlock<T> store, const Epilogue<T>& epilogue) {
  const i64 padded = num_steps<P>(depth) * P::depth, chunk = smaller(depth_chunk, padded);
  const bool is_whole = chunk == padded;
  const i64 panel_bytes = chunk * P::width * i64(sizeof(typename P::Element));
  const i64 group = (group_bytes / (panel_bytes + 1) + 1) * P::width, height = is_whole ? row_block<P> : long_row_block;
  [[maybe_unused]] const typename P::Scope scope;
  alignas(64) float block[P::rows * P::width];
  [[maybe_unused]] float row_factors[P::is_scaled ? long_row_block : 1];
  auto* sums = static_cast<float*>(scratch(1, is_whole ? 0 : height * group * i64(sizeof(float))));
  for (i64 begin = columns.begin; begin < columns.end; begin += group) {
    const i64 end = smaller(begin + group, columns.end);
    for (i64 first = rows.begin; first < rows.end; first += height) {
      const i64 last = smaller(first + height, rows.end);
      i64 k = 0;
      do {  // once where the contraction has no values
        const i64 length = smaller(chunk, depth - k), steps = num_steps<P>(length);
        i64 row_stride;
        const auto* a = operand_rows<P>(x + first * stride + k, stride, last - first, length, &row_stride, row_factors);
        for (i64 column = begin; column < end; column += P::width) {
          const i64 width = smaller(P::width, end - column);
          const auto* panel = packed + column * padded + k * round_up(width, P::column_multiple);
          for (i64 row = first; row < last; row += P::rows) {
            const i64 count = smaller(P::rows, last - row);
            Ahead ahead;
            if (k + chunk >= padded) epilogue.announce(row, count, column, width, ahead);
            if (is_whole && row + height < rows.end) {  // of the rows that come next, each panel fetches a part
              const i64 panels = (end - begin + P::width - 1) / P::width, line = 64 / i64(sizeof(T));
              const Range part = share(depth, line, int((column - begin) / P::width), int(panels));
              const T* next = x + (row + height) * stride + part.begin;
              ahead.add(next, stride, smaller(P::rows, rows.end - row - height), part.end - part.begin);
            }
            multiply<P>(a + (row - first) * row_stride, count, row_stride, P::depth * P::row_group, panel, width, steps,
                        block, ahead);
            if constexpr (P::is_scaled)
              scale_rows(block, P::width, count, row_factors + row - first, factors[column / P::width]);
            float* sum = sums + (row - first) * group + column - begin;
            if (!is_whole) add_block(block, P::width, sum, group, count, width, k == 0);
            if (k + chunk >= padded)
              (epilogue.*store)(is_whole ? block : sum, is_whole ? P::width : group, row, count, column, width);
          }
        }
        k += chunk;
      } while (k < padded);
    }
  }
}

template <class P, class T>
void product(const T* x, i64 stride, const typename P::Element* packed, i64 rows, i64 columns, i64 depth,
             Activation activation, const Epilogue<T>& epilogue, i64 threads) {
  const bool by_rows = rows >= threads * P::rows;
  const StoreBlock<T> store = store_function(activation, epilogue);
  const float* factors = panel_factors<P>(packed, columns, depth);
  parallel(threads, [&](int thread, int count) {
    const Range own = by_rows ? share(rows, P::rows, thread, count) : share(columns, P::width, thread, count);
    multiply_range<P, T>(x, stride, packed, factors, by_rows ? own : Range{0, rows}, by_rows ? Range{0, columns} : own,
                         depth, store, epilogue);
  });
}

// The left operand of a product.
template <class P>
struct Left {
  const typename P::Element* values;
  i64 row_stride, step_stride;
};

// Of rows that are packed as a panel [step][row]: as they lie, or as tiles take them.
template <class P>
Left<P> left_operand(const typename P::Element* panel, i64 rows, [[maybe_unused]] i64 steps) {
#ifdef HB_AMX
  if constexpr (std::is_same_v<P, TileProduct>) {
    auto* turned = static_cast<bf16*>(scratch(2, rows * steps * P::depth * i64(sizeof(bf16))));
    turn_pairs(panel, rows, steps, rows, turned, steps);
    return {turned, steps * P::depth, P::depth};
  }
#endif
  return {panel, P::depth, rows * P::depth};
}

// dW[out][in] (+)= Σ_tokens gᵀ x and db (+)= Σ_tokens g, for a range of outputs and one of inputs.
template <class P, class T>
void add_weight_gradient(const T* g, i64 g_stride, const T* x, i64 x_stride, i64 tokens, Range outputs, Range inputs,
                         float* weight_gradient, i64 stride, float* bias_gradient, bool accumulate) {
  using Element = typename P::Element;
  const i64 num_inputs = inputs.end - inputs.begin, most = num_steps<P>(token_chunk) * P::depth;
  auto* right =
      static_cast<Element*>(scratch(0, round_up(num_inputs, P::column_multiple) * most * i64(sizeof(Element))));
  auto* left = static_cast<Element*>(scratch(1, gradient_width<P> * most * i64(sizeof(Element))));
  [[maybe_unused]] const typename P::Scope scope;
  alignas(64) float block[P::rows * P::width];
  for (i64 token = 0; token == 0 || token < tokens; token += token_chunk) {
    const i64 count = smaller(token_chunk, tokens - token), steps = num_steps<P>(count);
    const bool is_first = token == 0 && !accumulate;
    pack_rows<P>(x + token * x_stride + inputs.begin, x_stride, count, num_inputs, P::width, right, nullptr);
    for (i64 output = outputs.begin; output < outputs.end; output += gradient_width<P>) {
      const i64 rows = smaller(gradient_width<P>, outputs.end - output);
      pack_rows<P>(g + token * g_stride + output, g_stride, count, rows, gradient_width<P>, left,
                   bias_gradient ? bias_gradient + output : nullptr);
      const Left<P> operand = left_operand<P>(left, round_up(rows, P::column_multiple), steps);
      // Of the part of g that is packed next, each product fetches some tokens.
      const bool is_last = output + rows == outputs.end;
      const i64 next = is_last ? outputs.begin : output + rows, next_token = is_last ? token + count : token;
      const i64 next_rows = smaller(gradient_width<P>, outputs.end - next);
      const i64 products = (num_inputs + P::width - 1) / P::width * ((rows + P::rows - 1) / P::rows);
      int number = 0;
      for (i64 column = 0; column < num_inputs; column += P::width) {
        const i64 width = smaller(P::width, num_inputs - column);
        for (i64 row = 0; row < rows; row += P::rows, number++) {
          const i64 height = smaller(P::rows, rows - row);
          float* to = weight_gradient + (output + row) * stride + inputs.begin + column;
          const Range part = share(smaller(token_chunk, tokens - next_token), 1, number, int(products));
          Ahead ahead;
          ahead.add(to, stride, height, width);
          ahead.add(g + (next_token + part.begin) * g_stride + next, g_stride, part.end - part.begin, next_rows);
          multiply<P>(operand.values + row * operand.row_stride, height, operand.row_stride, operand.step_stride,
                      right + column * steps * P::depth, width, steps, block, ahead);
          add_block(block, P::width, to, stride, height, width, is_first);
        }
      }
    }
  }
}

template <class P, class T>
void weight_gradient(const T* g, i64 g_stride, const T* x, i64 x_stride, i64 tokens, i64 num_out, i64 num_in,
                     float* of_weight, float* of_bias, bool accumulate, i64 threads) {
  if (of_bias && !accumulate) std::memset(of_bias, 0, static_cast<std::size_t>(num_out) * sizeof(float));
  // The wider side is shared out, and each thread packs the other for itself: lines that another core has written
  // cost more than packing them twice.
  const bool by_outputs = num_out >= num_in;
  constexpr i64 most = group_bytes / (token_chunk * i64(sizeof(typename P::Element))) / P::width * P::width;
  parallel(threads, [=](int thread, int count) {
    const Range own =
        by_outputs ? share(num_out, gradient_width<P>, thread, count) : share(num_in, P::width, thread, count);
    const Range outputs = by_outputs ? own : Range{0, num_out}, inputs = by_outputs ? Range{0, num_in} : own;
    float* sums = by_outputs || thread == 0 ? of_bias : nullptr;
    if (own.begin == own.end && !sums) return;
    i64 input = inputs.begin;
    do {
      const Range part{input, smaller(input + most, inputs.end)};
      add_weight_gradient<P>(g, g_stride, x, x_stride, tokens, outputs, part, of_weight, num_in,
                             input == inputs.begin ? sums : nullptr, accumulate);
      input = part.end;
    } while (input < inputs.end);
  });
}

// The gradient of u, [rows][size], for that of f(u), where no product computes it; of a gated layer, of u [rows][2][size].
template <class T>
void activation_gradient(const T* gradient, const T* u, i64 rows, i64 size, bool is_gated, Activation activation,
                         T* out, i64 threads) {
  const i64 row = is_gated ? size : rows * size, rows_of_u = is_gated ? rows : 1;
  with_activation(activation, [=](auto fixed) {
    parallel(threads, [=](int thread, int num_threads) {
      const Range own = share(row, Vec::lanes, thread, num_threads);
      for (i64 r = 0; r < rows_of_u; r++)
        for (i64 i = own.begin; i < own.end; i += Vec::lanes) {
          const i64 n = smaller(Vec::lanes, own.end - i);
          const Vec g = load(gradient + r * row + i, n);
          const T* at = u + (is_gated ? 2 : 1) * r * row + i;
          if (is_gated)
            gated_gradient<decltype(fixed)::value>(g, at, at + size, n, out + 2 * r * row + i, size);
          else
            store(out + i, g * activation_derivative<decltype(fixed)::value>(load(at, n)), n);
        }
    });
  });
}

}  // namespace

#define HB_LINEAR(name, T, P, G)                                                                                       \
  HB_EXPORT(i64, linear_packed_bytes_##name)(i64 columns, i64 depth) { return packed_bytes<P>(columns, depth); }       \
  HB_EXPORT(void, linear_pack_##name)(const float* weight, i64 stride, i64 num_out, i64 num_in, i64 for_gradient,      \
                                      i64 is_gated, void* packed, i64 threads) {                                       \
    pack_weight<P, T>(weight, stride, num_out, num_in, for_gradient != 0, is_gated != 0,                               \
                      static_cast<P::Element*>(packed), threads);                                                      \
  }                                                                                                                    \
  HB_EXPORT(void, linear_product_##name)(const T* x, i64 stride, const void* packed, i64 rows, i64 columns, i64 depth, \
                                         i64 activation, const float* bias, T* before, const T* derivative,            \
                                         i64 derivative_stride, T* out, i64 out_stride, i64 gated, i64 threads) {      \
    const Epilogue<T> epilogue{bias, before, derivative, derivative_stride, out, out_stride, gated};                   \
    product<P>(x, stride, static_cast<const P::Element*>(packed), rows, columns, depth,                                \
               static_cast<Activation>(activation), epilogue, threads);                                                \
  }                                                                                                                    \
  HB_EXPORT(void, linear_weight_gradient_##name)(const T* g, i64 g_stride, const T* x, i64 x_stride, i64 tokens,       \
                                                 i64 num_out, i64 num_in, float* of_weight, float* of_bias,            \
                                                 i64 accumulate, i64 threads) {                                        \
    weight_gradient<G>(g, g_stride, x, x_stride, tokens, num_out, num_in, of_weight, of_bias, accumulate != 0,         \
                       threads);                                                                                       \
  }                                                                                                                    \
  HB_EXPORT(void, activation_gradient_##name)(const T* gradient, const T* u, i64 rows, i64 size, i64 is_gated,         \
                                              i64 activation, T* out, i64 threads) {                                   \
    activation_gradient(gradient, u, rows, size, is_gated != 0, static_cast<Activation>(activation), out, threads);    \
  }

HB_LINEAR(f32, float, FloatProduct, FloatProduct)
HB_LINEAR(bf16, bf16, Bf16Product, Bf16GradientProduct)
