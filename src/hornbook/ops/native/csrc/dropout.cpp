// Dropout of the elements of tokens, with what a residual connection adds: residual + drop(x), or drop(x).
#include "dropout.h"
#include "threads.h"

namespace {

// x, residual (or null) and out are [tokens][columns]; `factor` is 1 / (1 - probability).
template <class T>
void drop(const T* x, const T* residual, const i64* keys, i64 tokens, i64 columns, i64 site, i64 threshold,
          const float* factor, T* out, i64 threads) {
  parallel(threads, [=](int thread, int count) {
    const Range own = share(tokens, 1, thread, count);
    const Vec scale = set1(*factor);
    for (i64 token = own.begin; token < own.end; token++) {
      const Keep keep(keys[token], site, threshold);
      for (i64 column = 0; column < columns; column += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, columns - column), at = token * columns + column;
        Vec y = keep(load(x + at, n), column) * scale;
        if (residual) y = y + load(residual + at, n);
        store(out + at, y, n);
      }
    }
  });
}

}  // namespace

#define HB_DROPOUT(name, T)                                                                                          \
  HB_EXPORT(void, dropout_##name)(const T* x, const T* residual, const i64* keys, i64 tokens, i64 columns, i64 site, \
                                  i64 threshold, const float* factor, T* out, i64 threads) {                         \
    drop(x, residual, keys, tokens, columns, site, threshold, factor, out, threads);                                 \
  }

HB_DROPOUT(f32, float)
HB_DROPOUT(bf16, bf16)
