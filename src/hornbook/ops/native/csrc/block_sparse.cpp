// Products of tokens with a block-sparse matrix, in fp32; activations are fp32 or bf16.
//
// Tokens [token][feature] are packed as panels [feature][token], a slice of tokens at a time, so that a weight is one
// broadcast for whole vectors of tokens: this layout, not the size of the blocks, decides the speed. A thread keeps its
// panels in the second-level cache. Activations are read once a product, and results are written once, past the caches
// if they would not stay there. The gradient of blocks needs no such panels; see
// block_gradient.h.
//
// The matrix is a list of lines of blocks, rows or columns; see block_lines.h. With `across`, lines are columns: outputs and
// inputs of a block change their roles.
//
// The form for AMX multiplies bf16 by tiles where blocks are as large as these; see block_sparse_tiles.h.
#include "block_gradient.h"
#include "block_sparse_tiles.h"
#include "threads.h"
#include "transpose.h"

namespace {

constexpr i64 kGroup = 64;  // outputs that are computed, or features that are packed, at once

// Whether tiles compute for blocks of b and tokens of T.
template <i64 b, class T>
constexpr bool kByTiles = kHasTiles && b >= tile_rows && std::is_same_v<T, bf16>;

// panels[feature][token] of tokens [token][feature]: `width` tokens, a multiple of a vector, zero where there are none.
template <class T>
void pack(const T* tokens, i64 stride, i64 num_tokens, i64 num_features, float* panels, i64 width) {
  Vec square[Vec::lanes];
  for (i64 token = 0; token < width; token += Vec::lanes)
    for (i64 feature = 0; feature < num_features; feature += Vec::lanes) {
      const i64 real = num_tokens - token, features = smaller(Vec::lanes, num_features - feature);
      const T* from = tokens + token * stride + feature;
      float* to = panels + feature * width + token;
      if (real >= Vec::lanes && features == Vec::lanes) {
#pragma GCC unroll 16
        for (i64 i = 0; i < Vec::lanes; ++i) square[i] = load(from + i * stride);
      } else {
        for (i64 i = 0; i < Vec::lanes; ++i) square[i] = i < real ? load(from + i * stride, features) : set1(0.0f);
      }
      transpose(square);
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i)
        if (i < features) store(to + i * width, square[i]);
    }
}

// Whether a vector of T is a line of the cache, so that it can be written without reading what was there.
template <class T>
constexpr bool kIsLine = Vec::lanes * i64(sizeof(T)) == kCacheLine;

// Writes a vector; with `streams`, past the caches: `to` is then at the beginning of a line.
template <bool streams, class T>
HB_INLINE void write(T* to, Vec vector) {
  if constexpr (streams)
    stream(to, vector);
  else
    store(to, vector);
}

// tokens[token][feature] of panels [feature][width], plus a bias of each feature unless it is null. The sum is of rounded
// values, as if another operator computed it.
template <i64 width, bool streams, class T>
void unpack(const float* panels, const float* bias, i64 num_tokens, i64 num_features, T* tokens, i64 stride) {
  Vec square[Vec::lanes];
  for (i64 token = 0; token < num_tokens; token += Vec::lanes)
    for (i64 feature = 0; feature < num_features; feature += Vec::lanes) {
      const i64 real = num_tokens - token, features = smaller(Vec::lanes, num_features - feature);
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i) square[i] = load(panels + (feature + i) * width + token);
      transpose(square);
      if (bias) {
        const Vec added = rounded<T>(load(bias + feature, features));
#pragma GCC unroll 16
        for (i64 i = 0; i < Vec::lanes; ++i) square[i] = rounded<T>(square[i]) + added;
      }
      T* to = tokens + token * stride + feature;
      if (real >= Vec::lanes && features == Vec::lanes) {
#pragma GCC unroll 16
        for (i64 i = 0; i < Vec::lanes; ++i) write<streams>(to + i * stride, square[i]);
      } else {
        for (i64 i = 0; i < smaller(real, Vec::lanes); ++i) store(to + i * stride, square[i], features);
      }
    }
}

// Brings kGroup features of some tokens into the cache while others are computed; rows that do not exist do no harm. Without
// it, a product that writes 12 MB waits for these rows for half of its time.
template <bool writes, class T>
HB_INLINE void fetch(const T* tokens, i64 stride, i64 count) {
  for (i64 token = 0; token < count; ++token)
    for (i64 at = 0; at < kGroup; at += kCacheLine / i64(sizeof(T))) {
      const T& line = tokens[token * stride + at];
      if constexpr (writes)
        prefetch_to_write(&line);
      else
        __builtin_prefetch(&line);
    }
}

// How the product with blocks of b is cut: `outputs` of a line by `vectors` of tokens stay in registers.
template <i64 b>
struct Cut {
  static constexpr bool is_wide = Vec::lanes == 16;
  static constexpr i64 outputs = is_wide && b > 4 ? 8 : 4, vectors = !is_wide ? 3 : b == 4 ? 4 : 2;
  static constexpr i64 width = vectors * Vec::lanes;  // tokens of a slice
};

// Outputs [first, first + Cut::outputs) of a line of blocks, which lie in its order, for a slice of tokens, panels
// [input][width].
template <i64 b, bool across>
HB_INLINE void multiply(const float* panels, const float* values, const Lines& lines, i64 line, i64 first, float* out) {
  constexpr i64 N = Cut<b>::outputs, V = Cut<b>::vectors, width = Cut<b>::width;
  constexpr i64 of_output = across ? 1 : b, of_input = across ? b : 1;  // steps in a block
  Vec totals[N][V];
#pragma GCC unroll 8
  for (i64 n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (i64 v = 0; v < V; ++v) totals[n][v] = set1(0.0f);
  const i64 last = lines.num_blocks() - 1;
  for (i64 i = lines.starts[line]; i < lines.starts[line + 1]; ++i) {
    const float* weights = values + i * b * b + first * of_output;
    const float* x = panels + lines.others[i] * b * width;
    // The second-level cache gives these lines too late: a small block multiplies each of them only b times.
    const float* next = panels + lines.others[smaller(i + 2, last)] * b * width;
#pragma GCC unroll 4
    for (i64 k = 0; k < b; ++k) {
      Vec tokens[V];
#pragma GCC unroll 4
      for (i64 v = 0; v < V; ++v) {
        tokens[v] = load(x + k * width + v * Vec::lanes);
        if (b <= 8) __builtin_prefetch(next + k * width + v * Vec::lanes);
      }
#pragma GCC unroll 8
      for (i64 n = 0; n < N; ++n) {
        const Vec weight = set1(weights[n * of_output + k * of_input]);
#pragma GCC unroll 4
        for (i64 v = 0; v < V; ++v) totals[n][v] = fma(weight, tokens[v], totals[n][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (i64 n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (i64 v = 0; v < V; ++v) store(out + n * width + v * Vec::lanes, totals[n][v]);
}

// The blocks and their places, copied in the order of lines, by all threads together: a product reads blocks many times.
// Floats that lie in this order are read where they are.
template <class T>
class Sorted {
 public:
  Sorted(const T* values, const Lines& lines, i64 b) : lines_(lines), values_(values), size_(b * b) {
    if (kIsFloat && lines.order == nullptr) return;
    copies_ = static_cast<float*>(scratch(2, lines.num_blocks() * (size_ * i64(sizeof(float)) + i64(sizeof(i64)))));
    places_ = reinterpret_cast<i64*>(copies_ + lines.num_blocks() * size_);
  }
  void copy(int thread, int running) const {
    if (copies_ == nullptr) return;
    const Range own = share(lines_.num_blocks(), 1, thread, running);
    for (i64 i = own.begin; i < own.end; ++i) {
      const T* block = values_ + lines_.block(i) * size_;
      places_[i] = lines_.others[lines_.block(i)];
      for (i64 at = 0; at < size_; at += Vec::lanes) store(copies_ + i * size_ + at, load(block + at));
    }
    if (running > 1) hb_runtime.barrier();
  }
  const float* values() const {
    if constexpr (kIsFloat) return copies_ ? copies_ : values_;
    return copies_;
  }
  Lines lines() const { return {lines_.starts, copies_ ? places_ : lines_.others, nullptr, lines_.count}; }

 private:
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  Lines lines_;
  const T* values_;
  i64 size_;
  float* copies_ = nullptr;
  i64* places_ = nullptr;
};

// y [m][lines b] of x [m][num_in], plus the bias. The panels of some slices meet each line, so that weights are read once
// for them. They are read in any order, so they take a fifth of the second-level cache, beside blocks and rows of tokens.
template <i64 b, bool across, bool streams, class T>
void product(const T* x, i64 stride, i64 m, i64 num_in, const Sorted<T>& blocks, const float* bias, T* y, i64 threads) {
  constexpr i64 width = Cut<b>::width;
  const Lines lines = blocks.lines();
  const i64 num_out = lines.count * b, slice_size = num_in * width;
  const i64 most = larger(hb_cache_bytes / 5 / (slice_size * i64(sizeof(float))), 1);
  parallel(threads, [&](int thread, int running) {
    blocks.copy(thread, running);
    const Range own = share(m, width, thread, running);
    auto* panels = static_cast<float*>(scratch(0, most * slice_size * i64(sizeof(float))));
    alignas(64) float out[(kGroup + Vec::lanes) * width];
    for (i64 token = own.begin; token < own.end; token += most * width) {
      const i64 end = smaller(token + most * width, own.end);
      for (i64 at = token; at < end; at += width)
        pack(x + at * stride, stride, m - at, num_in, panels + (at - token) * num_in, width);
      for (i64 first = 0; first < num_out; first += kGroup) {
        const i64 outputs = smaller(kGroup, num_out - first);
        for (i64 at = token; at < end; at += width) {
          T* target = y + at * num_out + first;
          for (i64 n = 0; n < outputs; n += Cut<b>::outputs) {
            constexpr i64 rows = round_up(width * Cut<b>::outputs, kGroup) / kGroup;
            if (!streams) fetch<true>(target + n / Cut<b>::outputs * rows * num_out, num_out, rows);
            multiply<b, across>(panels + (at - token) * num_in, blocks.values(), lines, (first + n) / b,
                                (first + n) % b, out + n * width);
          }
          unpack<width, streams>(out, bias ? bias + first : nullptr, smaller(width, end - at), outputs, target,
                                 num_out);
        }
      }
    }
    if (streams) finish_streams();
  });
}

// The same for results that stay in the caches and for those that do not.
template <i64 b, bool across, class T>
void product(const T* x, i64 stride, i64 m, i64 num_in, const T* values, const Lines& lines, const float* bias, T* y,
             i64 threads) {
  const Sorted<T> blocks(values, lines, b);
  if (kIsLine<T> && should_stream(y, m, lines.count * b))
    product<b, across, kIsLine<T>>(x, stride, m, num_in, blocks, bias, y, threads);
  else
    product<b, across, false>(x, stride, m, num_in, blocks, bias, y, threads);
}

// The blocks of alongᵀ others, of tokens `along` [m][lines b] and `others` [m][num_others]. `others` is packed for all
// lines, some tokens at a time, so it should be the narrower one; `along` for the lines whose turn it is.
template <i64 b, bool across, class T>
void weight_gradient(const T* along, i64 stride, const T* others, i64 others_stride, i64 m, i64 num_others,
                     const Lines& lines, float* of_values, i64 threads) {
  using Own = Operands<b>;
  constexpr i64 kStep = kGroup / b;  // lines
  const i64 most = larger(Own::chunk / (num_others * i64(sizeof(float))) / 64, 1) * 64;
  const i64 room = round_up(smaller(most, m), Own::group) + Own::group;  // blocks begin in different sets of the caches
  auto* packed = static_cast<float*>(scratch(1, room * num_others * i64(sizeof(float))));
  parallel(threads, [&](int thread, int running) {
    const Range own = share(lines.count, 1, thread, running), packs = share(num_others, Own::unit, thread, running);
    auto* of_lines = static_cast<float*>(scratch(0, room * kGroup * i64(sizeof(float))));
    for (i64 i = lines.starts[own.begin]; i < lines.starts[own.end]; ++i)
      std::memset(of_values + lines.block(i) * b * b, 0, b * b * sizeof(float));
    for (i64 token = 0; token < m; token += most) {
      const i64 real = smaller(most, m - token), fetched = (real + kStep - 1) / kStep;
      const bool is_last = token + most >= m;
      Own::pack(others + token * others_stride + packs.begin, others_stride, real, packs.end - packs.begin,
                packed + packs.begin * room, room);
      if (running > 1) hb_runtime.barrier();
      for (i64 first = own.begin; first < own.end; first += kStep) {
        const i64 last = smaller(first + kStep, own.end);
        const T* tokens = along + token * stride;
        Own::pack(tokens + first * b, stride, real, (last - first) * b, of_lines, room);
        for (i64 line = first; line < last; ++line) {
          if (last < own.end) fetch<false>(tokens + (line - first) * fetched * stride + last * b, stride, fetched);
          multiply_line<b, across>(of_lines + (line - first) * b * room, packed, lines, line, real, room, is_last,
                                   of_values);
        }
      }
      if (running > 1) hb_runtime.barrier();
    }
  });
}

template <i64 b, class Function>
void with_direction(bool across, Function function) {
  if (across)
    function(std::integral_constant<i64, b>(), std::true_type());
  else
    function(std::integral_constant<i64, b>(), std::false_type());
}

// Calls function(b, across) with both known when it is compiled.
template <class Function>
void with_block_size(i64 b, bool across, Function function) {
  switch (b) {
    case 4: return with_direction<4>(across, function);
    case 8: return with_direction<8>(across, function);
    case 16: return with_direction<16>(across, function);
    case 32: return with_direction<32>(across, function);
    default: return with_direction<64>(across, function);
  }
}

}  // namespace

// y [m][count b] = x Wᵀ, or x W with `across`, plus a bias [count b] unless it is null, of x [m][num_in], rows `stride`
// apart; b is 4, 8, 16, 32 or 64. Returns 0, or 1 if the n blocks do not fit the matrix; y is then unchanged.
#define HB_PRODUCT(name, T)                                                                                    \
  HB_EXPORT(i64, name)                                                                                         \
  (const T* x, i64 stride, i64 m, i64 num_in, const T* values, i64 n, const i64* starts, const i64* others,    \
   const i64* order, i64 count, i64 b, i64 across, const float* bias, T* y, i64 threads) {                     \
    const Lines lines{starts, others, order, count};                                                           \
    if (!lines.fit(n, num_in / b)) return 1;                                                                   \
    with_block_size(b, across, [&](auto size, auto is_across) {                                                \
      if constexpr (kByTiles<size.value, T>)                                                                   \
        multiply_by_tiles<size.value, is_across.value>(x, stride, m, num_in, values, lines, bias, y, threads); \
      else                                                                                                     \
        product<size.value, is_across.value>(x, stride, m, num_in, values, lines, bias, y, threads);           \
    });                                                                                                        \
    return 0;                                                                                                  \
  }
HB_PRODUCT(block_sparse_product_f32, float)
HB_PRODUCT(block_sparse_product_bf16, bf16)

// of_values [n][b][b] = (dyᵀ x) at the blocks: `along` is dy and `others` x, or the other way round with `across`. The
// order of sums does not depend on the number of threads. Returns 0, or 1 if the blocks do not fit.
#define HB_WEIGHT_GRADIENT(name, T)                                                                                 \
  HB_EXPORT(i64, name)                                                                                              \
  (const T* along, i64 stride, const T* others, i64 others_stride, i64 m, i64 num_others, i64 n, const i64* starts, \
   const i64* at, const i64* order, i64 count, i64 b, i64 across, float* of_values, i64 threads) {                  \
    const Lines lines{starts, at, order, count};                                                                    \
    if (!lines.fit(n, num_others / b)) return 1;                                                                    \
    with_block_size(b, across, [&](auto size, auto is_across) {                                                     \
      if constexpr (kByTiles<size.value, T>)                                                                        \
        weight_gradient_by_tiles<size.value, is_across.value>(along, stride, others, others_stride, m, num_others,  \
                                                              lines, of_values, threads);                           \
      else                                                                                                          \
        weight_gradient<size.value, is_across.value>(along, stride, others, others_stride, m, num_others, lines,    \
                                                     of_values, threads);                                           \
    });                                                                                                             \
    return 0;                                                                                                       \
  }
HB_WEIGHT_GRADIENT(block_sparse_weight_gradient_f32, float)
HB_WEIGHT_GRADIENT(block_sparse_weight_gradient_bf16, bf16)
