// Which elements dropout keeps: the hash of hornbook.ops.dropout.keep_mask, of a token's key, a site and a column.
#pragma once
#include "simd.h"

namespace {

inline std::uint32_t mix(std::uint32_t x) {
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
#ifdef __AVX512F__
    const __m512i columns = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(column + first_)),
                                             _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512i h = _mm512_mullo_epi32(columns, _mm512_set1_epi32(static_cast<int>(0x9E3779B1u)));
    h = _mm512_add_epi32(h, _mm512_set1_epi32(static_cast<int>(token_)));
    h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 16));
    h = _mm512_mullo_epi32(h, _mm512_set1_epi32(0x7FEB352D));
    h = _mm512_xor_si512(h, _mm512_srli_epi32(h, 15));
    h = _mm512_mullo_epi32(h, _mm512_set1_epi32(static_cast<int>(0x846CA68Bu)));
    h = _mm512_and_si512(_mm512_xor_si512(h, _mm512_srli_epi32(h, 16)), _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 kept = _mm512_cmpge_epi32_mask(h, _mm512_set1_epi32(static_cast<int>(threshold_)));
    return {_mm512_maskz_mov_ps(kept, x.v)};
#else
    const __m256i columns = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(column + first_)),
                                             _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i h = _mm256_mullo_epi32(columns, _mm256_set1_epi32(static_cast<int>(0x9E3779B1u)));
    h = _mm256_add_epi32(h, _mm256_set1_epi32(static_cast<int>(token_)));
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32(0x7FEB352D));
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 15));
    h = _mm256_mullo_epi32(h, _mm256_set1_epi32(static_cast<int>(0x846CA68Bu)));
    h = _mm256_and_si256(_mm256_xor_si256(h, _mm256_srli_epi32(h, 16)), _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i dropped = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(threshold_)), h);
    return {_mm256_andnot_ps(_mm256_castsi256_ps(dropped), x.v)};
#endif
  }

 private:
  std::uint32_t token_, threshold_, first_;
};

}  // namespace
