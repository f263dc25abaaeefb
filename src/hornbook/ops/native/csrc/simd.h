// Vectors of floats: 16 lanes with AVX-512, 8 with AVX2 and on Arm; bf16 is converted when it is loaded and rounded when
// stored. All intrinsics of more than one kernel are here; kernels for fp16 (halves.h) and tiles (tiles.h) have their own.
#pragma once
#if defined(__AVX512F__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#else
#include "neon.h"
#endif

namespace {

inline float to_float(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
inline float to_float(float value) { return value; }

// Rounded to nearest, ties to even; a NaN stays one.
inline bf16 to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<bf16>((bits | 0x400000u) >> 16);
  return static_cast<bf16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#if !defined(__AVX512F__) || defined(__SANITIZE_ADDRESS__)  // which does not see what masked instructions touch
template <class T>
inline Vec load(const T* p, i64 n) {
  if (n >= Vec::lanes) return load(p);
  T part[Vec::lanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(part);
}
template <class T>
inline void store(T* p, Vec a, i64 n) {
  if (n >= Vec::lanes) return store(p, a);
  T part[Vec::lanes];
  store(part, a);
  std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}
#endif

#ifndef __AVX512F__
inline void sums_of(const Vec* v, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = sum(v[i]);
}
HB_INLINE void zip(Vec& a, Vec& b) {
  const Vec lower = low(a, b), upper = high(a, b);
  a = even(lower, upper), b = odd(lower, upper);
}
#endif

// Values as a T holds them.
template <class T>
HB_INLINE Vec rounded(Vec a) {
  if constexpr (sizeof(T) == sizeof(float)) return a;
  T part[Vec::lanes];
  store(part, a);
  return load(part);
}

// e^x, relative error below 2e-7 where the result is a normal number; 0 below that range, infinity above, NaN of NaN.
inline Vec exp(Vec x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));  // of a NaN, both return the second
  const Vec n = round(x * set1(1.44269504f));
  const Vec r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), x));
  Vec p = set1(1.9875691500e-4f);  // Cephes' expf
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  return times_power_of_2(fma(p, r * r, r) + set1(1.0f), n);
}

// tanh(x), relative error below 3e-7.
inline Vec tanh(Vec x) {
  const Vec z = x * x, e = exp(abs(x) * set1(-2.0f));
  const Vec far = (set1(1.0f) - e) / (set1(1.0f) + e);
  Vec p = set1(-5.70498872745e-3f);  // Cephes' tanhf
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x), signed_far = select(less(x, set1(0.0f)), set1(0.0f) - far, far);
  return select(less(abs(x), set1(0.625f)), near, signed_far);
}

}  // namespace
