// Which elements dropout keeps: the hash of hornbook.ops.dropout.keep_mask, of a token's key, a site and a column.
#pragma once
#include "simd.h"

namespace {

// Of a number, or of each of a vector.
template <class T>
T mix(T x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// The elements of one token; probability 0 keeps all.
class Keep {
 public:
  Keep() : token_(0), threshold_(0), first_(0) {}
  // `threshold` is probability * 2^31, rounded down; columns are counted from `first` on.
  Keep(i64 key, i64 site, i64 threshold, i64 first = 0)
      : token_(mix(static_cast<std::uint32_t>(key) ^ mix(static_cast<std::uint32_t>(site + 1)))),
        threshold_(static_cast<std::uint32_t>(threshold)),
        first_(static_cast<std::uint32_t>(first)) {}

  // Returns x, the elements from `column` on, with zeros for those that are dropped.
  Vec operator()(Vec x, i64 column) const {
    const Ints hash = mix(count_from(static_cast<std::uint32_t>(column) + first_) * 0x9E3779B1u + ints(token_));
    return where_at_least(hash & ints(0x7FFFFFFF), ints(threshold_), x);
  }

 private:
  std::uint32_t token_, threshold_, first_;
};

}  // namespace
