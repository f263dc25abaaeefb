// Softmax cross-entropy of rows of logits, with the gradient in their place; logits may be capped, and the squared
// logarithm of the softmax's sum added (z-loss).
#include <cmath>
#include <limits>
#include <memory>

#include "simd.h"
#include "threads.h"

namespace {

constexpr i64 W = Vec::lanes, kBlocks = 16;

// Writes logits plus bias to `scores`, capped to cap tanh(score / cap) unless `cap` is 0, and the derivatives of capped
// ones to `slopes`. Returns the largest.
template <class T>
float read_scores(const T* logits, const float* bias, i64 size, float cap, float* scores, float* slopes) {
  const Vec by = set1(1.0f / cap);
  const Vec lowest = set1(-std::numeric_limits<float>::infinity());
  Vec best = lowest;
  for (i64 j = 0; j < size; j += W) {
    const i64 n = smaller(W, size - j);
    Vec x = n == W ? load(logits + j) : load(logits + j, n);
    if (bias) x = x + load(bias + j, n);
    if (cap > 0.0f) {
      const Vec t = tanh(x * by);
      x = t * set1(cap);
      store(slopes + j, fnma(t, t, set1(1.0f)), n);
    }
    n == W ? store(scores + j, x) : store(scores + j, x, n);
    best = max(best, n == W ? x : first(n, x, lowest));
  }
  return largest(best);
}

// Replaces scores by exp(score - shift) and returns their sum.
inline float exponentials(float* scores, i64 size, float shift) {
  Vec total = set1(0.0f);
  const Vec by = set1(shift);
  for (i64 j = 0; j < size; j += W) {
    const i64 n = smaller(W, size - j);
    if (n == W) {
      const Vec x = exp(load(scores + j) - by);
      store(scores + j, x);
      total = total + x;
    } else {
      const Vec x = first(n, exp(load(scores + j, n) - by), set1(0.0f));
      store(scores + j, x, n);
      total = total + x;
    }
  }
  return sum(total);
}

// Returns where the scores first equal `value`, -1 for nowhere.
inline i64 first_equal(const float* scores, i64 size, float value) {
  i64 j = 0;
  for (; j + W <= size; j += W)
    if (const unsigned lanes = equal(load(scores + j), set1(value))) return j + __builtin_ctz(lanes);
  for (; j < size; j++)
    if (scores[j] == value) return j;
  return -1;
}

// Writes `factor` times the exponentials, minus the target's one, times the slopes, if any; adds them to `sums`, if any,
// before they are rounded.
template <class T>
void write_gradient(const float* exps, const float* slopes, i64 size, float factor, i64 target, T* row, float* sums) {
  const Vec by = set1(factor);
  for (i64 j = 0; j < size; j += W) {
    const i64 n = smaller(W, size - j);
    Vec p = (n == W ? load(exps + j) : load(exps + j, n)) * by;
    if (slopes) p = p * load(slopes + j, n);
    n == W ? store(row + j, p) : store(row + j, p, n);
    if (sums) store(sums + j, load(sums + j, n) + p, n);
  }
  const float slope = slopes ? slopes[target] : 1.0f;
  store(row + target, set1((exps[target] * factor - 1.0f) * slope), 1);
  if (sums) sums[target] -= slope;
}

template <class T>
struct Rows {
  T* logits;
  i64 count, columns, stride, real;
  const i64* targets;
  const float* bias;
  float* losses;
  i64* predictions;
  float* log_sums;
  bool with_gradient;
  float cap, z_weight;

  void compute(i64 i, float* scores, float* slopes, float* sums) const {
    T* row = logits + i * stride;
    const i64 target = targets[i];
    const bool is_scored = target >= 0 && target < real;
    losses[i] = 0.0f;
    if (log_sums) log_sums[i] = 0.0f;
    if (predictions) predictions[i] = -1;
    if (is_scored) {
      const float best = read_scores(row, bias, real, cap, scores, slopes), of_target = scores[target];
      if (predictions) predictions[i] = first_equal(scores, real, best);
      const float total = exponentials(scores, real, best);
      losses[i] = std::log(total) + (best - of_target);
      const float log_sum = std::log(total) + best, factor = (1.0f + 2.0f * z_weight * log_sum) / total;
      if (log_sums) log_sums[i] = log_sum;
      if (with_gradient) write_gradient(scores, cap > 0.0f ? slopes : nullptr, real, factor, target, row, sums);
    }
    const i64 zeros_from = is_scored ? real : 0;
    if (with_gradient) std::memset(row + zeros_from, 0, static_cast<std::size_t>(columns - zeros_from) * sizeof(T));
  }
};

// Rows are shared out in blocks whose number does not depend on the threads, and so do the sums of the bias.
template <class T>
void cross_entropy(const Rows<T>& rows, float* bias_gradient, i64 threads) {
  const i64 blocks = bias_gradient ? kBlocks : rows.count, real = rows.real;
  const std::unique_ptr<float[]> sums(bias_gradient ? new float[static_cast<std::size_t>(real * blocks)]() : nullptr);
  parallel(smaller(threads, blocks), [&](int thread, int count) {
    auto* scores = static_cast<float*>(scratch(0, real * i64(sizeof(float))));
    auto* slopes = static_cast<float*>(scratch(1, rows.cap > 0.0f ? real * i64(sizeof(float)) : 0));
    const Range own = share(blocks, 1, thread, count);
    for (i64 block = own.begin; block < own.end; block++)
      for (i64 i = rows.count * block / blocks; i < rows.count * (block + 1) / blocks; i++)
        rows.compute(i, scores, slopes, sums ? sums.get() + real * block : nullptr);
  });
  for (i64 block = 0; sums && block < blocks; block++)
    for (i64 j = 0; j < real; j++) bias_gradient[j] += sums[static_cast<std::size_t>(real * block + j)];
}

}  // namespace

// logits[count][columns], `stride` apart: the gradient takes their place if `with_gradient`. Rows whose target lies
// outside 0 to real-1 have no loss and a gradient of zero; columns from `real` on are padding. `predictions`, the first of
// the largest, and `log_sums` are [count] or null; `bias` and `bias_gradient`, which is added to, are [real] or null.
// `factors`: the cap of the logits, 0 for none; the weight of the squared log_sums, of which gradients are.
#define CROSS_ENTROPY(suffix, T)                                                                                    \
  HB_EXPORT(void, cross_entropy_##suffix)                                                                           \
  (T* logits, i64 count, i64 columns, i64 stride, i64 real, const i64* targets, const float* bias,                  \
   const float* factors, float* losses, i64* predictions, float* log_sums, float* bias_gradient, i64 with_gradient, \
   i64 threads) {                                                                                                   \
    const Rows<T> rows{logits,                                                                                      \
                       count,                                                                                       \
                       columns,                                                                                     \
                       stride,                                                                                      \
                       real,                                                                                        \
                       targets,                                                                                     \
                       bias,                                                                                        \
                       losses,                                                                                      \
                       predictions,                                                                                 \
                       log_sums,                                                                                    \
                       with_gradient != 0,                                                                          \
                       factors[0],                                                                                  \
                       factors[1]};                                                                                 \
    cross_entropy(rows, bias_gradient, threads);                                                                    \
  }
CROSS_ENTROPY(f32, float)
CROSS_ENTROPY(bf16, bf16)
