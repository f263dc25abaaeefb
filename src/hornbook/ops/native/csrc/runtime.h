// What all forms share and cpu.cpp finds out: functions of the OpenMP runtime, and the size of the second-level cache.
//
// The functions are libgomp's entries, which Intel's and LLVM's runtimes have too.
//
// hornbook.ops.native.kernels hands over those of the runtime that PyTorch has loaded, so that g++ and clang++ both build the
// library, a build fits every PyTorch, and a process keeps one pool of threads.
#pragma once
#include <cstdint>

struct Runtime {
  void (*parallel)(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);  // GOMP_parallel
  void (*barrier)();                                                                            // GOMP_barrier
  int (*thread)();                                                                              // omp_get_thread_num
  int (*threads)();                                                                             // omp_get_num_threads
};

extern __attribute__((visibility("hidden"))) Runtime hb_runtime;

// Bytes of a core's second-level cache, 256 KiB to 2 MiB. Only what leaves the order of sums as it is may depend on it,
// since a form gives the same bits on all machines.
extern __attribute__((visibility("hidden"))) std::int64_t hb_cache_bytes;
