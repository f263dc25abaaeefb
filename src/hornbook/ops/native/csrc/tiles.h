// Products of bf16 pairs by AMX tiles. A tile is 16 rows of 64 bytes; one instruction multiplies 16 rows of 32 values by a
// panel's 16 steps of 16 columns:
//
//   tile_load<t>(address, bytes from row to row)      tile_zero<t>()
//   tile_dot<sums, left, right>()                     tile_store<t>(address, bytes from row to row)
//
// Panels are those of PairPacking, which the instruction reads as they lie. Tests compile with HORNBOOK_EMULATED_TILES: the
// same operations in plain C++, for processors without AMX.
#pragma once
#include "panels.h"
#include "transpose.h"

namespace {

constexpr i64 tile_rows = 16, tile_bytes = 64;

#ifdef HORNBOOK_EMULATED_TILES

struct EmulatedTiles {
  alignas(64) unsigned char rows[8][tile_rows][tile_bytes];
  bool are_configured;
};
thread_local EmulatedTiles emulated;

// The tiles while they are configured, as they must be when an instruction uses them.
inline EmulatedTiles& configured() {
  if (!emulated.are_configured) __builtin_trap();
  return emulated;
}

class Tiles {
 public:
  Tiles() {
    std::memset(&emulated, 0xFF, sizeof emulated);  // NaN: what was not loaded shows
    emulated.are_configured = true;
  }
  ~Tiles() { emulated.are_configured = false; }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int t>
void tile_zero() {
  std::memset(configured().rows[t], 0, sizeof emulated.rows[t]);
}
template <int t>
void tile_load(const void* from, i64 stride) {
  for (i64 row = 0; row < tile_rows; ++row)
    std::memcpy(configured().rows[t][row], static_cast<const char*>(from) + row * stride, tile_bytes);
}
template <int t>
void tile_store(void* to, i64 stride) {
  for (i64 row = 0; row < tile_rows; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, configured().rows[t][row], tile_bytes);
}

// As Intel describes tdpbf16ps: the products of even and of odd values are added up apart, by fused multiply-adds, and then
// to the sums. The instruction flushes denormals whatever MXCSR says; here, FlushDenormals around every entry does.
template <int sums, int left, int right>
void tile_dot() {
  float total[tile_rows];
  bf16 a[2 * tile_rows], b[2 * tile_rows];
  for (i64 row = 0; row < tile_rows; ++row) {
    float even[tile_rows] = {}, odd[tile_rows] = {};
    std::memcpy(a, configured().rows[left][row], tile_bytes);
    for (i64 k = 0; k < tile_rows; ++k) {
      std::memcpy(b, emulated.rows[right][k], tile_bytes);
      for (i64 n = 0; n < tile_rows; ++n) {
        even[n] = __builtin_fmaf(to_float(a[2 * k]), to_float(b[2 * n]), even[n]);
        odd[n] = __builtin_fmaf(to_float(a[2 * k + 1]), to_float(b[2 * n + 1]), odd[n]);
      }
    }
    std::memcpy(total, emulated.rows[sums][row], tile_bytes);
    for (i64 n = 0; n < tile_rows; ++n) total[n] += even[n] + odd[n];
    std::memcpy(emulated.rows[sums][row], total, tile_bytes);
  }
}

#else

// Configures all eight tiles of this thread, and releases them: a tile in use burdens every switch between threads.
class Tiles {
 public:
  Tiles() {
    struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t bytes[16] = {};
      std::uint8_t rows[16] = {};
    } shape;
    static_assert(sizeof shape == 64, "the layout that ldtilecfg reads");
    for (int t = 0; t < 8; ++t) shape.bytes[t] = tile_bytes, shape.rows[t] = tile_rows;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int t>
HB_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(t));
}
template <int t>
HB_INLINE void tile_load(const void* from, i64 stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t>
HB_INLINE void tile_store(void* to, i64 stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(t) : "memory");
}
template <int sums, int left, int right>
HB_INLINE void tile_dot() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
}

#endif

// Two by two tiles of sums (0 to 3), two of rows (4, 5) and two of columns (6, 7): each tile that is loaded is used twice.
struct TileProduct : PairPacking {
  using Scope = Tiles;
  static constexpr i64 rows = 2 * tile_rows, width = 2 * tile_rows;
  static constexpr i64 step_multiple = tile_rows, row_multiple = tile_rows;
};

template <int row_tiles, int column_tiles>
void multiply_tiles(const bf16* a, i64 row_stride, const bf16* panel, i64 steps, float* out) {
  constexpr bool has_lower = row_tiles == 2, has_right = column_tiles == 2;
  constexpr i64 step = column_tiles * tile_bytes, out_row = TileProduct::width * i64(sizeof(float));
  const i64 row = row_stride * i64(sizeof(bf16));
  tile_zero<0>();
  if (has_right) tile_zero<1>();
  if (has_lower) tile_zero<2>();
  if (has_lower && has_right) tile_zero<3>();
  for (i64 s = 0; s < steps; s += tile_rows, a += 2 * tile_rows, panel += tile_rows * column_tiles * tile_bytes / 2) {
    tile_load<4>(a, row);
    tile_load<6>(panel, step);
    tile_dot<0, 4, 6>();
    if (has_right) tile_load<7>(panel + tile_bytes / 2, step);
    if (has_right) tile_dot<1, 4, 7>();
    if (has_lower) tile_load<5>(a + tile_rows * row_stride, row);
    if (has_lower) tile_dot<2, 5, 6>();
    if (has_lower && has_right) tile_dot<3, 5, 7>();
  }
  float* lower = out + tile_rows * TileProduct::width;
  tile_store<0>(out, out_row);
  if (has_right) tile_store<1>(out + tile_rows, out_row);
  if (has_lower) tile_store<2>(lower, out_row);
  if (has_lower && has_right) tile_store<3>(lower + tile_rows, out_row);
}

// Reads whole tiles: rows up to a multiple of row_multiple have to be there. Pairs of a row lie side by side.
template <>
inline void multiply<TileProduct>(const bf16* a, i64 num_rows, i64 row_stride, i64, const bf16* panel, i64 columns,
                                  i64 steps, float* out, const Ahead&) {
  const bool has_right = columns > tile_rows;
  if (num_rows > tile_rows)
    (has_right ? multiply_tiles<2, 2> : multiply_tiles<2, 1>)(a, row_stride, panel, steps, out);
  else
    (has_right ? multiply_tiles<1, 2> : multiply_tiles<1, 1>)(a, row_stride, panel, steps, out);
}

// rows[column][step] of the pairs of a panel [step][column], both multiples of a tile.
inline void turn_panel(const bf16* panel, i64 columns, i64 steps, bf16* rows) {
  const auto* from = reinterpret_cast<const float*>(panel);
  auto* to = reinterpret_cast<float*>(rows);
  for (i64 column = 0; column < columns; column += Vec::lanes)
    for (i64 step = 0; step < steps; step += Vec::lanes) {
      Vec square[Vec::lanes];
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i) square[i] = load(from + (step + i) * columns + column);
      transpose(square);
#pragma GCC unroll 16
      for (i64 i = 0; i < Vec::lanes; ++i) store(to + (column + i) * steps + step, square[i]);
    }
}

}  // namespace
