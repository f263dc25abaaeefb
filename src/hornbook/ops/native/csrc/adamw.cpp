// Adam and AdamW, with the factor that clips the gradient, in one pass over memory.
#include "simd.h"
#include "threads.h"

namespace {

// The numbers of an update, in the order in which hornbook.ops.native.optimizers gives them.
struct Settings {
  float clip;   // factor of the gradient
  float keep;   // factor of the weight: 1 - rate * decay, 1 for Adam
  float decay;  // added to the gradient times the weight; 0 for AdamW
  float beta1, beta2;
  float fresh;     // 1 - beta2, which floats do not give
  float step;      // rate / (1 - beta1^t)
  float unbiased;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

inline void update(float* weight, const float* gradient, float* mean, float* square, const Settings& s, i64 at, i64 n) {
  const Vec w = load(weight + at, n);
  const Vec g = fma(w, set1(s.decay), load(gradient + at, n) * set1(s.clip));
  const Vec old = load(mean + at, n), m = fma(set1(s.beta1), old - g, g);
  const Vec v = fma(g * g, set1(s.fresh), load(square + at, n) * set1(s.beta2));
  store(mean + at, m, n);
  store(square + at, v, n);
  store(weight + at, fnma(set1(s.step), m / fma(sqrt(v), set1(s.unbiased), set1(s.epsilon)), w * set1(s.keep)), n);
}

}  // namespace

HB_EXPORT(void, adamw)(float* weight, const float* gradient, float* mean, float* square, i64 count,
                       const float* settings, i64 threads) {
  const Settings s{settings[0], settings[1], settings[2], settings[3], settings[4],
                   settings[5], settings[6], settings[7], settings[8]};
  parallel(smaller(threads, 1 + count / 16384), [=](int thread, int num_threads) {
    const Range own = share(count, 1024, thread, num_threads);
    for (i64 at = own.begin; at < own.end; at += Vec::lanes)
      update(weight, gradient, mean, square, s, at, smaller(Vec::lanes, own.end - at));
  });
}
