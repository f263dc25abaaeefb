// How queries and keys enter attention.
#pragma once
#include <cmath>

#include "simd.h"

namespace {

// The norm and the rotation of queries and keys before their product (rotary positions, Su et al. 2021, by halves).
struct Entry {
  const float *cosines, *sines;  // [tokens][half], or null for no rotation
  const float* gains[2];         // of the norms of queries and keys, [size], or null
  i64 half;                      // of the columns that rotate
  float epsilon;                 // of the RMS norm of each head; negative for no norm

  bool changes() const { return cosines || epsilon >= 0.0f; }

  template <class T>
  Vec inverse_rms(const T* x, i64 size) const {
    if (epsilon < 0.0f) return set1(1.0f);
    Vec squares = set1(0.0f);
    for (i64 j = 0; j < size; j += Vec::lanes) {
      const Vec value = load(x + j, smaller(Vec::lanes, size - j));
      squares = fma(value, value, squares);
    }
    return set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon));
  }

  // Rotates a token's columns, backward for direction -1.
  void rotate(float* x, i64 token, float direction) const {
    if (!cosines) return;
    for (i64 j = 0; j < half; j += Vec::lanes) {
      const i64 n = smaller(Vec::lanes, half - j);
      const Vec c = load(cosines + token * half + j, n), s = load(sines + token * half + j, n) * set1(direction);
      const Vec a = load(x + j, n), b = load(x + half + j, n);
      store(x + j, fnma(b, s, a * c), n);
      store(x + half + j, fma(a, s, b * c), n);
    }
  }

  // Writes a row as it enters to `line`, in whole vectors.
  template <class T>
  void enter(const float* gain, const T* x, Vec scale, i64 size, i64 token, float* line) const {
    for (i64 j = 0; j < size; j += Vec::lanes) {
      const i64 n = smaller(Vec::lanes, size - j);
      const Vec normed = load(x + j, n) * scale;
      store(line + j, gain ? normed * load(gain + j, n) : normed);
    }
    rotate(line, token, 1.0f);
  }

  // Writes rows of queries (kind 0) or keys (1) as they enter; `line` has room for a row in whole vectors.
  template <class T>
  void enter(int kind, const T* x, i64 stride, i64 rows, i64 size, i64 token, float* line, T* out) const {
    for (i64 i = 0; i < rows; i++, x += stride, out += size) {
      enter(gains[kind], x, inverse_rms(x, size), size, token + i, line);
      for (i64 j = 0; j < size; j += Vec::lanes) store(out + j, load(line + j), smaller(Vec::lanes, size - j));
    }
  }

  // Writes the gradients of rows of x, given those of the rows that entered, which it overwrites; adds to the gain's.
  template <class T>
  void leave(int kind, float* gradient, i64 width, const T* x, i64 stride, i64 rows, i64 size, i64 token, T* out,
             float* of_gain) const {
    for (i64 i = 0; i < rows; i++, gradient += width, x += stride, out += stride) {
      rotate(gradient, token + i, -1.0f);
      const Vec scale = inverse_rms(x, size);
      Vec total = set1(0.0f);
      for (i64 j = 0; epsilon >= 0.0f && j < size; j += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, size - j);
        const Vec normed = load(x + j, n) * scale;
        Vec g = load(gradient + j, n);
        if (gains[kind]) {
          store(of_gain + j, fma(g, normed, load(of_gain + j, n)), n);
          g = g * load(gains[kind] + j, n);
          store(gradient + j, g, n);
        }
        total = fma(g, normed, total);
      }
      const Vec mean = set1(sum(total) / static_cast<float>(size));
      for (i64 j = 0; j < size; j += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, size - j);
        Vec g = load(gradient + j, n);
        if (epsilon >= 0.0f) g = fnma(load(x + j, n) * scale, mean, g) * scale;
        store(out + j, g, n);
      }
    }
  }
};

}  // namespace
