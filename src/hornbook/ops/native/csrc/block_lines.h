// A block-sparse matrix line by line, as its products read it.
#pragma once
#include "isa.h"

namespace {

constexpr i64 kStreamBytes = 2 << 20;  // of results that are too many for the second-level cache
constexpr i64 kCacheLine = 64;

// Lines are rows or columns of blocks: line l has those that are numbers starts[l] to starts[l + 1] of the list, which
// `order` gives; null: that of `values` [n][b][b]. A block is at others[block] along its line.
struct Lines {
  const i64 *starts, *others, *order;
  i64 count;
  i64 block(i64 i) const { return order ? order[i] : i; }
  i64 num_blocks() const { return starts[count]; }
};

// Whether results [rows][columns] can and should be written past the caches, a line of them at once.
template <class T>
bool should_stream(const T* results, i64 rows, i64 columns) {
  const i64 row_bytes = columns * i64(sizeof(T));
  const bool is_aligned = (reinterpret_cast<std::uintptr_t>(results) | static_cast<std::uintptr_t>(row_bytes)) % kCacheLine == 0;
  return is_aligned && rows * row_bytes > kStreamBytes;
}

}  // namespace
