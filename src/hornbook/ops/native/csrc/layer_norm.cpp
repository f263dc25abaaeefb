// Layer norm of rows, and its gradients: that of the input with a residual's added, gain and bias summed in fp32.
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

template <class T>
void normalize(const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* bias, float epsilon, T* y,
               float* means, float* inverse_stds, i64 threads) {
  parallel(smaller(threads, rows), [&](int thread, int count) {
    const Range own = share(rows, 1, thread, count);
    for (i64 i = own.begin; i < own.end; i++) {
      const T* row = x + i * stride;
      T* out = y + i * size;
      Vec total = set1(0.0f), squares = set1(0.0f);
      for_vectors(size, [&](i64 j, i64 n) { total = total + load(row + j, n); });
      const Vec mean = set1(sum(total) / static_cast<float>(size));
      for_vectors(size, [&](i64 j, i64 n) {
        Vec d = load(row + j, n) - mean;
        if (n < W) d = first(n, d, set1(0.0f));
        squares = fma(d, d, squares);
      });
      const float inverse_std = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon);
      for_vectors(size, [&](i64 j, i64 n) {
        const Vec normed = (load(row + j, n) - mean) * set1(inverse_std);
        store(out + j, fma(normed, load(gain + j, n), load(bias + j, n)), n);
      });
      means[i] = sum(total) / static_cast<float>(size);
      inverse_stds[i] = inverse_std;
    }
  });
}

template <class T>
struct Backward {
  const T *gradient, *x, *residual;
  i64 size, stride;
  const float *gain, *means, *inverse_stds;
  T* of_x;

  // Computes row i and adds its part to the sums of gain and bias.
  void compute(i64 i, float* of_gain, float* of_bias) const {
    const T *row = x + i * stride, *g = gradient + i * size, *r = residual ? residual + i * size : nullptr;
    const Vec mean = set1(means[i]), scale = set1(inverse_stds[i]);
    Vec sum_g = set1(0.0f), sum_gn = set1(0.0f);
    for_vectors(size, [&](i64 j, i64 n) {
      const Vec dy = load(g + j, n), normed = (load(row + j, n) - mean) * scale, scaled = dy * load(gain + j, n);
      store(of_gain + j, fma(dy, normed, load(of_gain + j, n)), n);
      store(of_bias + j, dy + load(of_bias + j, n), n);
      sum_g = sum_g + scaled;
      sum_gn = fma(scaled, normed, sum_gn);
    });
    const Vec mean_g = set1(sum(sum_g) / static_cast<float>(size));
    const Vec mean_gn = set1(sum(sum_gn) / static_cast<float>(size));
    for_vectors(size, [&](i64 j, i64 n) {
      const Vec normed = (load(row + j, n) - mean) * scale, scaled = load(g + j, n) * load(gain + j, n);
      Vec d = fnma(normed, mean_gn, scaled - mean_g) * scale;
      if (r) d = d + load(r + j, n);
      store(of_x + i * size + j, d, n);
    });
  }
};

// Rows are summed in blocks, and the blocks in order, so that the sums do not depend on the threads.
template <class T>
void differentiate(const Backward<T>& backward, i64 rows, float* of_gain, float* of_bias, i64 threads) {
  const i64 size = backward.size, blocks = smaller(kBlocks, rows);
  const std::unique_ptr<float[]> sums(new float[static_cast<std::size_t>(2 * size * blocks)]());
  parallel(smaller(threads, blocks), [&](int thread, int count) {
    const Range own = share(blocks, 1, thread, count);
    for (i64 block = own.begin; block < own.end; block++) {
      float* own_sums = sums.get() + 2 * size * block;
      for (i64 i = rows * block / blocks; i < rows * (block + 1) / blocks; i++)
        backward.compute(i, own_sums, own_sums + size);
    }
  });
  std::fill(of_gain, of_gain + size, 0.0f);
  std::fill(of_bias, of_bias + size, 0.0f);
  for (i64 block = 0; block < blocks; block++) {
    const float* part = sums.get() + 2 * size * block;
    for (i64 j = 0; j < size; j++) of_gain[j] += part[j];
    for (i64 j = 0; j < size; j++) of_bias[j] += part[size + j];
  }
}

}  // namespace

// forward: y[rows][size] = (x - mean) / sqrt(variance + epsilon) * gain + bias; the rows of x are `stride` apart.
// backward: of_x[rows][size] is the gradient of x plus `residual`, which is [rows][size] or null.
#define LAYER_NORM(suffix, T)                                                                                          \
  HB_EXPORT(void, layer_norm_forward_##suffix)                                                                         \
  (const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* bias, const float* epsilon, T* y,       \
   float* means, float* inverse_stds, i64 threads) {                                                                   \
    normalize(x, rows, size, stride, gain, bias, *epsilon, y, means, inverse_stds, threads);                           \
  }                                                                                                                    \
  HB_EXPORT(void, layer_norm_backward_##suffix)                                                                        \
  (const T* gradient, const T* x, i64 rows, i64 size, i64 stride, const float* gain, const float* means,               \
   const float* inverse_stds, const T* residual, T* of_x, float* of_gain, float* of_bias, i64 threads) {               \
    const Backward<T> backward{gradient, x, residual, size, stride, gain, means, inverse_stds, of_x};                  \
    differentiate(backward, rows, of_gain, of_bias, threads);                                                          \
  }
LAYER_NORM(f32, float)
LAYER_NORM(bf16, bf16)
