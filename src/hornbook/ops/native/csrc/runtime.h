// The functions of the OpenMP runtime that the library calls: libgomp's entries, which Intel's and LLVM's runtimes have too.
//
// hornbook.ops.native.library hands over those of the runtime that PyTorch has loaded, so that g++ and clang++ both build the
// library, a build fits every PyTorch, and a process keeps one pool of threads.
#pragma once

struct Runtime {
  void (*parallel)(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);  // GOMP_parallel
  void (*barrier)();                                                                            // GOMP_barrier
  int (*thread)();                                                                              // omp_get_thread_num
  int (*threads)();                                                                             // omp_get_num_threads
};

extern __attribute__((visibility("hidden"))) Runtime hb_runtime;
