// The instruction set that this object is compiled for, and the names of what it exports.
//
// Each source is compiled once per instruction set with -DHB_ISA=avx512 (or avx2, avx512bf16, amx) and the compiler's
// flags for it, so that one library holds all forms: HB_EXPORT(void, linear_product_f32) is hb_avx512_linear_product_f32.
// Everything that is not exported belongs into the anonymous namespace: of two inline functions of one name, compiled for
// two instruction sets, the linker keeps one, and an older processor would meet the newer one's instructions.
#pragma once
#include <cstdint>

#define HB_JOIN3(a, b, c) a##b##_##c
#define HB_JOIN(a, b, c) HB_JOIN3(a, b, c)
#define HB_EXPORT(result, name) extern "C" __attribute__((visibility("default"))) result HB_JOIN(hb_, HB_ISA, name)
#define HB_INLINE inline __attribute__((always_inline))

namespace {

using i64 = std::int64_t;
using bf16 = std::uint16_t;  // the upper half of a float

constexpr i64 round_up(i64 value, i64 multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }

}  // namespace
