// What all forms for x86 share.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "isa.h"

namespace {

// Rounding to nearest, all exceptions masked, denormal numbers flushed to zero, as results and as operands.
constexpr unsigned kFlushingMode = 0x9FC0;
inline unsigned floating_mode() { return _mm_getcsr(); }
inline void set_floating_mode(unsigned mode) { _mm_setcsr(mode); }

// Not __builtin_prefetch: without -mprfchw, the compiler would fetch the line to be read.
HB_INLINE void prefetch_to_write(const void* line) {
  __asm__ volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}
inline void finish_streams() { _mm_sfence(); }

}  // namespace
