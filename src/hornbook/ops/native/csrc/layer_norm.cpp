// Layer and RMS norm of rows, and their gradients: that of the input with a residual's added, gain and bias summed in
// fp32. RMS norm subtracts no mean and has no `means`; gain and bias may be null.
#include <algorithm>
#include <cmath>
#include <memory>

#include "simd.h"
#include "threads.h"

namespace {

constexpr i64 W = Vec::lanes, kBlocks = 32;

// Calls body(j, n) for each vector of a row; n is W but for the last.
template <class Body>
inline void for_vectors(i64 size, Body body) {
  i64 j = 0;
  for (; j + W <= size; j += W) body(j, W);
  if (j < size) body(j, size - j);
}

template <bool is_rms, class T>
void normalize(const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* bias, float epsilon, T* y,
               float* means, float* inverse_stds, i64 threads) {
  parallel(smaller(threads, rows), [&](int thread, int count) {
    const Range own = share(rows, 1, thread, count);
    for (i64 i = own.begin; i < own.end; i++) {
      const T* row = x + i * stride;
      T* out = y + i * size;
      Vec mean = set1(0.0f), squares = set1(0.0f);
      if constexpr (!is_rms) {
        Vec total = set1(0.0f);
        for_vectors(size, [&](i64 j, i64 n) { total = total + load(row + j, n); });
        means[i] = sum(total) / static_cast<float>(size);
        mean = set1(means[i]);
      }
      for_vectors(size, [&](i64 j, i64 n) {
        Vec d = load(row + j, n);
        if constexpr (!is_rms) d = n < W ? first(n, d - mean, set1(0.0f)) : d - mean;
        squares = fma(d, d, squares);
      });
      inverse_stds[i] = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon);
      const Vec scale = set1(inverse_stds[i]);
      for_vectors(size, [&](i64 j, i64 n) {
        Vec normed = is_rms ? load(row + j, n) * scale : (load(row + j, n) - mean) * scale;
        if (bias)
          normed = fma(normed, gain ? load(gain + j, n) : set1(1.0f), load(bias + j, n));
        else if (gain)
          normed = normed * load(gain + j, n);
        store(out + j, normed, n);
      });
    }
  });
}

template <bool is_rms, class T>
struct Backward {
  const T *gradient, *x, *residual;
  i64 size, stride;
  const float *gain, *means, *inverse_stds;
  T* of_x;

  // Computes row i and adds its part to the sums of gain and bias, where they are not null.
  void compute(i64 i, float* of_gain, float* of_bias) const {
    const T *row = x + i * stride, *g = gradient + i * size, *r = residual ? residual + i * size : nullptr;
    const Vec mean = set1(is_rms ? 0.0f : means[i]), scale = set1(inverse_stds[i]);
    const auto normed_at = [&](i64 j, i64 n) {
      return is_rms ? load(row + j, n) * scale : (load(row + j, n) - mean) * scale;
    };
    const auto times_gain = [&](Vec dy, i64 j, i64 n) { return gain ? dy * load(gain + j, n) : dy; };
    Vec sum_g = set1(0.0f), sum_gn = set1(0.0f);
    for_vectors(size, [&](i64 j, i64 n) {
      const Vec dy = load(g + j, n), normed = normed_at(j, n), scaled = times_gain(dy, j, n);
      if (of_gain) store(of_gain + j, fma(dy, normed, load(of_gain + j, n)), n);
      if (of_bias) store(of_bias + j, dy + load(of_bias + j, n), n);
      if constexpr (!is_rms) sum_g = sum_g + scaled;
      sum_gn = fma(scaled, normed, sum_gn);
    });
    const Vec mean_g = set1(sum(sum_g) / static_cast<float>(size));
    const Vec mean_gn = set1(sum(sum_gn) / static_cast<float>(size));
    for_vectors(size, [&](i64 j, i64 n) {
      Vec scaled = times_gain(load(g + j, n), j, n);
      if constexpr (!is_rms) scaled = scaled - mean_g;
      Vec d = fnma(normed_at(j, n), mean_gn, scaled) * scale;
      if (r) d = d + load(r + j, n);
      store(of_x + i * size + j, d, n);
    });
  }
};

// Rows are summed in blocks, and the blocks in order, so that the sums do not depend on the threads.
template <class Backward>
void differentiate(const Backward& backward, i64 rows, float* of_gain, float* of_bias, i64 threads) {
  const i64 size = backward.size, blocks = smaller(kBlocks, rows);
  const std::unique_ptr<float[]> sums(new float[static_cast<std::size_t>(2 * size * blocks)]());
  parallel(smaller(threads, blocks), [&](int thread, int count) {
    const Range own = share(blocks, 1, thread, count);
    for (i64 block = own.begin; block < own.end; block++) {
      float* own_sums = sums.get() + 2 * size * block;
      for (i64 i = rows * block / blocks; i < rows * (block + 1) / blocks; i++)
        backward.compute(i, of_gain ? own_sums : nullptr, of_bias ? own_sums + size : nullptr);
    }
  });
  const auto add_up = [&](float* total, const float* part) {
    if (total) std::fill(total, total + size, 0.0f);
    for (i64 block = 0; total && block < blocks; block++)
      for (i64 j = 0; j < size; j++) total[j] += part[2 * size * block + j];
  };
  add_up(of_gain, sums.get());
  add_up(of_bias, sums.get() + size);
}

}  // namespace

// forward: y[rows][size] = (x - mean) / sqrt(variance + epsilon) * gain + bias; the rows of x are `stride` apart. RMS norm
// takes 0 for the mean, also in the variance.
// backward: of_x[rows][size] is the gradient of x plus `residual`, which is [rows][size] or null.
#define NORM(name, suffix, is_rms, T)                                                                            \
  HB_EXPORT(void, name##_norm_forward_##suffix)                                                                  \
  (const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* bias, const float* epsilon, T* y, \
   float* means, float* inverse_stds, i64 threads) {                                                             \
    normalize<is_rms>(x, rows, size, stride, gain, bias, *epsilon, y, means, inverse_stds, threads);             \
  }                                                                                                              \
  HB_EXPORT(void, name##_norm_backward_##suffix)                                                                 \
  (const T* gradient, const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* means,         \
   const float* inverse_stds, const T* residual, T* of_x, float* of_gain, float* of_bias, i64 threads) {         \
    const Backward<is_rms, T> backward{gradient, x, residual, size, stride, gain, means, inverse_stds, of_x};    \
    differentiate(backward, rows, of_gain, of_bias, threads);                                                    \
  }
NORM(layer, f32, false, float)
NORM(layer, bf16, false, bf16)
NORM(rms, f32, true, float)
NORM(rms, bf16, true, bf16)
