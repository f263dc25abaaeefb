// Work on several threads of the OpenMP pool that PyTorch has loaded, with denormal numbers flushed to zero.
//
// The library is not linked with an OpenMP runtime: it calls the one that PyTorch has loaded, see runtime.h; without one,
// all work is done on the calling thread.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "runtime.h"
#include "simd.h"

namespace {

// Sets flush-to-zero and denormals-are-zero, with rounding to nearest and all exceptions masked, for its scope.
class FlushDenormals {
 public:
  FlushDenormals() : before_(floating_mode()) { set_floating_mode(kFlushingMode); }
  ~FlushDenormals() { set_floating_mode(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  decltype(floating_mode()) before_;
};

template <class Function>
void parallel_entry(void* data) {
  FlushDenormals flush;
  (*static_cast<Function*>(data))(hb_runtime.thread(), hb_runtime.threads());
}

// Calls function(thread, threads) on each of `threads` threads, or of fewer if the pool gives fewer.
template <class Function>
void parallel(i64 threads, Function function) {
  if (threads <= 1 || !hb_runtime.parallel) {
    FlushDenormals flush;
    function(0, 1);
  } else {
    hb_runtime.parallel(parallel_entry<Function>, &function, static_cast<unsigned>(threads), 0);
  }
}

struct Range {
  i64 begin, end;
};

// The share of `count` items that belongs to a thread, in whole multiples of `unit`.
inline Range share(i64 count, i64 unit, int thread, int threads) {
  const i64 units = (count + unit - 1) / unit;
  const i64 begin = units * thread / threads * unit, end = units * (thread + 1) / threads * unit;
  return {smaller(begin, count), smaller(end, count)};
}

// Memory of one thread that is kept between calls; `slot` tells buffers apart that are in use at once.
inline void* scratch(int slot, i64 bytes) {
  struct Buffer {
    void* data = nullptr;
    i64 size = 0;
    ~Buffer() { std::free(data); }
  };
  static thread_local Buffer buffers[4];
  Buffer& buffer = buffers[slot];
  if (buffer.size < bytes) {
    std::free(buffer.data);
    buffer.size = round_up(bytes, 4096);
    buffer.data = std::aligned_alloc(64, static_cast<std::size_t>(buffer.size));
    if (!buffer.data) {  // on a thread of the pool, from which no exception reaches Python
      std::fprintf(stderr,
                   "hornbook: a native operator needs %lld more bytes of memory; make the micro-batch smaller\n",
                   static_cast<long long>(buffer.size));
      std::abort();
    }
  }
  return buffer.data;
}

}  // namespace
