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
  // Whether these are lines of `length` blocks in a list of n, so that no product reads or writes beside its operands.
  bool fit(i64 n, i64 length) const {
    using u64 = std::uint64_t;
    bool all = starts[0] == 0 && starts[count] == n;
    for (i64 line = 0; line < count; ++line) all &= starts[line] <= starts[line + 1];
    for (i64 i = 0; i < n; ++i) all &= u64(others[i]) < u64(length);
    for (i64 i = 0; order && i < n; ++i) all &= u64(order[i]) < u64(n);
    return all;
  }
};

// Whether results [rows][columns] can and should be written past the caches, a line of them at once.
template <class T>
bool should_stream(const T* results, i64 rows, i64 columns) {
  const i64 row_bytes = columns * i64(sizeof(T));
  const bool is_aligned =
      (reinterpret_cast<std::uintptr_t>(results) | static_cast<std::uintptr_t>(row_bytes)) % kCacheLine == 0;
  return is_aligned && rows * row_bytes > kStreamBytes;
}

}  // namespace
