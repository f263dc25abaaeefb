// Which instruction sets this processor has and this process may use; compiled for any x86-64.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

struct Registers {
  unsigned a, b, c, d;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r{0, 0, 0, 0};
  if (__get_cpuid_max(leaf & 0x80000000u, nullptr) >= leaf) __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
  return r;
}

std::uint64_t enabled_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool has(unsigned bits, int bit) { return bits >> bit & 1u; }

// Linux gives tiles to a process that asks (arch_prctl, ARCH_REQ_XCOMP_PERM, feature 18: tile data).
bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

}  // namespace

// Bits: 1 AVX2 with FMA, 2 AVX-512 (F, BW, DQ, VL), 4 AVX512-BF16, 8 AMX-BF16.
extern "C" __attribute__((visibility("default"))) int hb_instruction_sets() {
  const Registers first = cpuid(1, 0), seventh = cpuid(7, 0), more = cpuid(7, 1);
  if (!has(first.c, 27)) return 0;  // the system saves no vector registers
  const std::uint64_t state = enabled_state();
  int found = 0;
  if ((state & 0x6) == 0x6 && has(first.c, 28) && has(first.c, 12) && has(seventh.b, 5)) found |= 1;
  const bool wide = has(seventh.b, 16) && has(seventh.b, 17) && has(seventh.b, 30) && has(seventh.b, 31);
  if ((found & 1) && (state & 0xE6) == 0xE6 && wide) found |= 2;
  if ((found & 2) && has(more.a, 5)) found |= 4;
  const bool tiles = has(seventh.d, 24) && has(seventh.d, 22) && (state & 0x60000) == 0x60000;
  if ((found & 4) && tiles && ask_for_tiles()) found |= 8;
  return found;
}

// Whether vdpbf16ps does twice the work of a multiplication of floats in the same time, as AMD's processors from Zen 4 on
// do. Intel's take it at a third of that rate (measured on a Xeon of family 6, model 207), so floats are faster there.
extern "C" __attribute__((visibility("default"))) int hb_pairs_are_fast() {
  const Registers vendor = cpuid(0, 0);
  return vendor.b == 0x68747541u && vendor.d == 0x69746E65u && vendor.c == 0x444D4163u;  // "AuthenticAMD"
}
