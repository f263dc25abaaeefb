// Which instruction sets this processor has and this process may use, its second-level cache, and the OpenMP runtime;
// compiled for any processor of its architecture.
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "runtime.h"

Runtime hb_runtime;

// Takes the functions of the OpenMP runtime that the process has loaded, before any other function computes.
extern "C" __attribute__((visibility("default"))) void hb_use_runtime(const Runtime* runtime) { hb_runtime = *runtime; }

namespace {

// Bytes of the second-level cache of the first core; 0 if the system does not say.
std::int64_t reported_cache_bytes() {
  std::int64_t bytes = 0;
#ifdef __APPLE__
  std::size_t size = sizeof(bytes);
  if (sysctlbyname("hw.perflevel0.l2cachesize", &bytes, &size, nullptr, 0) != 0)  // of the fast cores
    sysctlbyname("hw.l2cachesize", &bytes, &size, nullptr, 0);
#else
#ifdef _SC_LEVEL2_CACHE_SIZE
  bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  if (bytes <= 0) {  // as glibc says on Arm
    long long kib = 0;
    if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index2/size", "r")) {
      if (std::fscanf(file, "%lldK", &kib) != 1) kib = 0;
      std::fclose(file);
    }
    bytes = kib * 1024;
  }
#endif
  return bytes;
}

// Where it is unknown, half a MiB: too small a block costs less than one that does not fit. Caches of more than 2 MiB are
// shared by several cores, or not much faster than the next level.
std::int64_t usable_cache_bytes() {
  const std::int64_t reported = reported_cache_bytes();
  return std::clamp<std::int64_t>(reported > 0 ? reported : 512 << 10, 256 << 10, 2 << 20);
}

}  // namespace

std::int64_t hb_cache_bytes = usable_cache_bytes();

// Returns the size that blocks are cut for; a test replaces it by `forced`, which is 0 otherwise.
extern "C" __attribute__((visibility("default"))) std::int64_t hb_second_level_cache(std::int64_t forced) {
  if (forced > 0) hb_cache_bytes = forced;
  return hb_cache_bytes;
}

#ifdef __x86_64__

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

// Asks the kernel for the state of tiles, which processes have only on request; it says no where a thread's stack for
// signals is too small for it.
bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

// Bits: 1 AVX2 with FMA, 2 AVX-512 (F, BW, DQ, VL), 4 AVX512-BF16, 8 AVX512-FP16, 16 AMX-BF16.
extern "C" __attribute__((visibility("default"))) int hb_instruction_sets() {
  const Registers first = cpuid(1, 0), seventh = cpuid(7, 0), more = cpuid(7, 1);
  if (!has(first.c, 27)) return 0;  // the system saves no vector registers
  const std::uint64_t state = enabled_state();
  int found = 0;
  if ((state & 0x6) == 0x6 && has(first.c, 28) && has(first.c, 12) && has(seventh.b, 5)) found |= 1;
  const bool wide = has(seventh.b, 16) && has(seventh.b, 17) && has(seventh.b, 30) && has(seventh.b, 31);
  if ((found & 1) && (state & 0xE6) == 0xE6 && wide) found |= 2;
  if ((found & 2) && has(more.a, 5)) found |= 4;
  if ((found & 4) && has(seventh.d, 23)) found |= 8;
  const bool has_tiles = has(seventh.d, 24) && has(seventh.d, 22) && (state & 0x60000) == 0x60000;
  if ((found & 4) && has_tiles && may_use_tiles()) found |= 16;
  return found;
}

#else  // Arm with 64 bits, which always has NEON

namespace {

bool has_bf16() {
#ifdef __APPLE__
  int found = 0;
  std::size_t size = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &found, &size, nullptr, 0) == 0 && found;
#else
  constexpr unsigned long bf16 = 1ul << 14;  // HWCAP2_BF16, which old headers do not name
  return getauxval(AT_HWCAP2) & bf16;
#endif
}

}  // namespace

// Bits: 1 NEON, 2 with products of bf16.
extern "C" __attribute__((visibility("default"))) int hb_instruction_sets() { return has_bf16() ? 3 : 1; }

#endif
