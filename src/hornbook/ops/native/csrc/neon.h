// The operations of simd.h with Arm's Advanced SIMD: 8 lanes in two registers, so that blocks are as with AVX2 and a
// product's 24 registers of sums, 4 of columns and 2 of a row fit 32.
#pragma once
#include <arm_neon.h>

#include <cstring>

#include "isa.h"

namespace {

// Rounding to nearest, all exceptions masked, denormal numbers flushed to zero, as results and as operands.
constexpr std::uint64_t kFlushingMode = 1 << 24;
inline std::uint64_t floating_mode() {
  std::uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_floating_mode(std::uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }

HB_INLINE void prefetch_to_write(const void* line) { __builtin_prefetch(line, 1); }

struct Vec {
  static constexpr i64 lanes = 8;
  float32x4_t lo, hi;
};
struct Mask {
  uint32x4_t lo, hi;
};
inline Vec set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
inline Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
inline Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
inline Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
inline Vec fnma(Vec a, Vec b, Vec c) { return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)}; }
inline Vec sqrt(Vec a) { return {vsqrtq_f32(a.lo), vsqrtq_f32(a.hi)}; }
inline Vec abs(Vec a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
inline Vec round(Vec a) { return {vrndnq_f32(a.lo), vrndnq_f32(a.hi)}; }
inline Mask less(Vec a, Vec b) { return {vcltq_f32(a.lo, b.lo), vcltq_f32(a.hi, b.hi)}; }
inline Vec select(Mask mask, Vec a, Vec b) { return {vbslq_f32(mask.lo, a.lo, b.lo), vbslq_f32(mask.hi, a.hi, b.hi)}; }
// The second one if either is a NaN, as on x86.
inline Vec max(Vec a, Vec b) { return select(less(b, a), a, b); }
inline Vec min(Vec a, Vec b) { return select(less(a, b), a, b); }
inline float32x4_t times_power_of_2(float32x4_t a, int32x4_t whole) {
  const int32x4_t half = vshrq_n_s32(whole, 1), rest = vsubq_s32(whole, half), bias = vdupq_n_s32(127);
  const float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  return vmulq_f32(vmulq_f32(a, first), vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}
inline Vec times_power_of_2(Vec a, Vec n) {  // in two halves, so that results near the ends of the range come right
  n = max(min(n, set1(252.0f)), set1(-252.0f));
  return {times_power_of_2(a.lo, vcvtnq_s32_f32(n.lo)), times_power_of_2(a.hi, vcvtnq_s32_f32(n.hi))};
}
inline unsigned equal(Vec a, Vec b) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vceqq_f32(a.lo, b.lo), bits)) | vaddvq_u32(vandq_u32(vceqq_f32(a.hi, b.hi), bits)) << 4;
}
inline Vec first(i64 n, Vec a, Vec b) {
  const int32x4_t lane = {0, 1, 2, 3}, count = vdupq_n_s32(static_cast<int>(n));
  return select({vcgtq_s32(count, lane), vcgtq_s32(count, vaddq_s32(lane, vdupq_n_s32(4)))}, a, b);
}
inline float sum(Vec a) {  // in the order of AVX2
  const float32x4_t four = vaddq_f32(a.lo, a.hi);
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
inline float largest(Vec a) { return vmaxvq_f32(vmaxq_f32(a.lo, a.hi)); }

inline float32x4_t widen(uint16x4_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(x), 16)); }
inline uint16x4_t narrow(float32x4_t x) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return vreinterpret_u16_bf16(vcvt_bf16_f32(x));
#else
  const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000)), is_number = vceqq_f32(x, x);
  return vshrn_n_u32(vbslq_u32(is_number, rounded, quiet), 16);
#endif
}

inline Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Vec load(const bf16* p) { return {widen(vld1_u16(p)), widen(vld1_u16(p + 4))}; }
inline void store(float* p, Vec a) { vst1q_f32(p, a.lo), vst1q_f32(p + 4, a.hi); }
inline void store(bf16* p, Vec a) { vst1q_u16(p, vcombine_u16(narrow(a.lo), narrow(a.hi))); }
HB_INLINE void stream(float* p, Vec a) { store(p, a); }
inline void finish_streams() {}

struct Ints {
  uint32x4_t lo, hi;
};
inline Ints ints(std::uint32_t x) { return {vdupq_n_u32(x), vdupq_n_u32(x)}; }
inline Ints count_from(std::uint32_t x) {
  const uint32x4_t lane = {0, 1, 2, 3};
  return {vaddq_u32(vdupq_n_u32(x), lane), vaddq_u32(vdupq_n_u32(x + 4), lane)};
}
inline Ints operator+(Ints a, Ints b) { return {vaddq_u32(a.lo, b.lo), vaddq_u32(a.hi, b.hi)}; }
inline Ints operator*(Ints a, std::uint32_t b) { return {vmulq_n_u32(a.lo, b), vmulq_n_u32(a.hi, b)}; }
inline Ints operator&(Ints a, Ints b) { return {vandq_u32(a.lo, b.lo), vandq_u32(a.hi, b.hi)}; }
inline Ints operator^(Ints a, Ints b) { return {veorq_u32(a.lo, b.lo), veorq_u32(a.hi, b.hi)}; }
inline Ints operator>>(Ints a, unsigned bits) {
  const int32x4_t left = vdupq_n_s32(-static_cast<int>(bits));
  return {vshlq_u32(a.lo, left), vshlq_u32(a.hi, left)};
}
inline Vec where_at_least(Ints a, Ints b, Vec x) {
  return select({vcgeq_u32(a.lo, b.lo), vcgeq_u32(a.hi, b.hi)}, x, set1(0.0f));
}

HB_INLINE float32x4_t low_pairs(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
HB_INLINE float32x4_t high_pairs(float32x4_t a, float32x4_t b) {
  return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}
HB_INLINE Vec low(Vec a, Vec b) { return {vzip1q_f32(a.lo, b.lo), vzip1q_f32(a.hi, b.hi)}; }
HB_INLINE Vec high(Vec a, Vec b) { return {vzip2q_f32(a.lo, b.lo), vzip2q_f32(a.hi, b.hi)}; }
HB_INLINE Vec low_pairs(Vec a, Vec b) { return {low_pairs(a.lo, b.lo), low_pairs(a.hi, b.hi)}; }
HB_INLINE Vec high_pairs(Vec a, Vec b) { return {high_pairs(a.lo, b.lo), high_pairs(a.hi, b.hi)}; }
HB_INLINE Vec even(Vec a, Vec b) { return {a.lo, b.lo}; }
HB_INLINE Vec odd(Vec a, Vec b) { return {a.hi, b.hi}; }
HB_INLINE Vec sums_of_pairs(Vec a, Vec b) { return {vpaddq_f32(a.lo, a.hi), vpaddq_f32(b.lo, b.hi)}; }
template <i64 group>
HB_INLINE Vec repeat(const float* from) {
  if constexpr (group == 1) return set1(*from);
  const float32x2_t two = vld1_f32(from);
  return {vcombine_f32(two, two), vcombine_f32(two, two)};
}

// Two vectors of bf16.
struct Halves {
  uint16x8_t first, second;
};
HB_INLINE void store_first(bf16* p, Halves a) { vst1q_u16(p, a.first); }
HB_INLINE void store_second(bf16* p, Halves a) { vst1q_u16(p, a.second); }
HB_INLINE Vec pair_up(Halves a) {
  return {vreinterpretq_f32_u16(vzip1q_u16(a.first, a.second)), vreinterpretq_f32_u16(vzip2q_u16(a.first, a.second))};
}
HB_INLINE Vec load_pairs(const bf16* first, const bf16* second, i64 n) {
  bf16 rows[2][8] = {};
  if (n >= 8) return pair_up({vld1q_u16(first), vld1q_u16(second ? second : rows[1])});
  std::memcpy(rows[0], first, static_cast<std::size_t>(larger(n, 0)) * sizeof(bf16));
  if (second) std::memcpy(rows[1], second, static_cast<std::size_t>(larger(n, 0)) * sizeof(bf16));
  return pair_up({vld1q_u16(rows[0]), vld1q_u16(rows[1])});
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HB_PAIRS
HB_INLINE Vec dot_pairs(Vec a, Vec b, Vec sum) {
  return {vbfdotq_f32(sum.lo, vreinterpretq_bf16_f32(a.lo), vreinterpretq_bf16_f32(b.lo)),
          vbfdotq_f32(sum.hi, vreinterpretq_bf16_f32(a.hi), vreinterpretq_bf16_f32(b.hi))};
}
HB_INLINE Halves narrow_two(Vec first, Vec second) {
  return {vcombine_u16(narrow(first.lo), narrow(first.hi)), vcombine_u16(narrow(second.lo), narrow(second.hi))};
}

#define HB_QUADS  // products of quads of bf16
// Four values of each column of a vector, two columns in a register; and of two rows.
struct Quads {
  bfloat16x8_t columns[Vec::lanes / 2];
};
using QuadRows = bfloat16x8_t;
HB_INLINE bfloat16x8_t load_quad_rows(const bf16* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
HB_INLINE Quads load_quads(const bf16* p) {
  return {load_quad_rows(p), load_quad_rows(p + 8), load_quad_rows(p + 16), load_quad_rows(p + 24)};
}
// Adds to 2x2 tiles [row][column]: those of even pairs of columns in the first vector, of odd ones in the second.
HB_INLINE void multiply_quads(QuadRows rows, const Quads& quads, Vec (&tiles)[2]) {
  tiles[0].lo = vbfmmlaq_f32(tiles[0].lo, rows, quads.columns[0]);
  tiles[1].lo = vbfmmlaq_f32(tiles[1].lo, rows, quads.columns[1]);
  tiles[0].hi = vbfmmlaq_f32(tiles[0].hi, rows, quads.columns[2]);
  tiles[1].hi = vbfmmlaq_f32(tiles[1].hi, rows, quads.columns[3]);
}
#endif

}  // namespace
