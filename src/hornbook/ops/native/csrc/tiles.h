// Products of bf16 pairs by AMX tiles. A tile is 16 rows of 64 bytes; one instruction multiplies 16 rows of 32 values by a
// panel's 16 steps of 16 columns:
//
//   tile_load<t>(address, bytes from row to row)      tile_zero<t>()
//   tile_dot<sums, left, right>()                     tile_store<t>(address, bytes from row to row)
//
// Of the eight tiles, 0 to 3 hold sums, 4 and 5 rows, 6 and 7 columns. Panels are those of PairPacking, which the instruction reads as they lie. Tests compile with HORNBOOK_EMULATED_TILES: the
// same operations in plain C++, for processors without AMX.
#pragma once
#include <utility>

#include "panels.h"
#include "transpose.h"

namespace {

constexpr i64 tile_rows = 16, tile_bytes = 64;

// The shapes of all tiles, as ldtilecfg reads them. Tiles of rows hold `pairs` pairs of each row, and tiles of columns as
// many steps; tiles of sums are always whole.
struct TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};

  explicit TileShapes(i64 pairs) {
    for (int t = 0; t < 8; ++t) {
      bytes[t] = static_cast<std::uint16_t>(t == 4 || t == 5 ? 4 * pairs : tile_bytes);
      rows[t] = static_cast<std::uint8_t>(t >= 6 ? pairs : tile_rows);
    }
  }
};
static_assert(sizeof(TileShapes) == 64, "the layout that ldtilecfg reads");

#ifdef HORNBOOK_EMULATED_TILES

struct EmulatedTiles {
  alignas(64) unsigned char rows[8][tile_rows][tile_bytes];
  TileShapes shapes{tile_rows};
  bool are_configured = false;
};
thread_local EmulatedTiles emulated;

// The tiles while they are configured, as they must be when an instruction uses them.
inline EmulatedTiles& configured() {
  if (!emulated.are_configured) __builtin_trap();
  return emulated;
}

class Tiles {
 public:
  explicit Tiles(i64 pairs = tile_rows) {
    std::memset(emulated.rows, 0xFF, sizeof emulated.rows);  // NaN: what was not loaded shows
    emulated.shapes = TileShapes(pairs);
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
  for (i64 row = 0; row < configured().shapes.rows[t]; ++row)
    std::memcpy(emulated.rows[t][row], static_cast<const char*>(from) + row * stride, emulated.shapes.bytes[t]);
}
template <int t>
void tile_store(void* to, i64 stride) {
  for (i64 row = 0; row < configured().shapes.rows[t]; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, emulated.rows[t][row], emulated.shapes.bytes[t]);
}

// As Intel describes tdpbf16ps: the products of even and of odd values are added up apart, by fused multiply-adds, and then
// to the sums. The instruction flushes denormals whatever MXCSR says; here, FlushDenormals around every entry does.
template <int sums, int left, int right>
void tile_dot() {
  const i64 pairs = configured().shapes.rows[right];
  if (emulated.shapes.bytes[left] != 4 * pairs) __builtin_trap();
  float total[tile_rows];
  bf16 a[2 * tile_rows], b[2 * tile_rows];
  for (i64 row = 0; row < tile_rows; ++row) {
    float even[tile_rows] = {}, odd[tile_rows] = {};
    std::memcpy(a, emulated.rows[left][row], tile_bytes);
    for (i64 k = 0; k < pairs; ++k) {
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
  explicit Tiles(i64 pairs = tile_rows) {
    const TileShapes shapes(pairs);
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
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

// Calls function(i) with i = 0 … count - 1, each known when it is compiled.
template <class Function, int... i>
HB_INLINE void repeat(std::integer_sequence<int, i...>, Function function) {
  (function(std::integral_constant<int, i>()), ...);
}
template <int count, class Function>
HB_INLINE void repeat(Function function) {
  repeat(std::make_integer_sequence<int, count>(), function);
}

template <int count>
HB_INLINE void zero_sums() {
  repeat<count>([](auto t) { tile_zero<t.value>(); });
}

// Adds to row_tiles x column_tiles sums the products of tiles of rows, `row_bytes` from row to row, and of a panel's next
// steps. Each tile of columns is loaded once; with four tiles of rows, two take turns.
template <int row_tiles, int column_tiles>
HB_INLINE void add_products(const bf16* const (&rows)[row_tiles], i64 row_bytes, const bf16* panel) {
  static_assert(row_tiles * column_tiles <= 4 && column_tiles <= 2, "the tiles that there are");
  repeat<row_tiles>([&](auto r) {
    constexpr int left = 4 + r.value % 2;
    tile_load<left>(rows[r.value], row_bytes);
    repeat<column_tiles>([&](auto c) {
      if (r.value == 0) tile_load<6 + c.value>(panel + c.value * tile_bytes / 2, column_tiles * tile_bytes);
      tile_dot<r.value * column_tiles + c.value, left, 6 + c.value>();
    });
  });
}

// out[row][column] of the sums, `width` floats from row to row.
template <int row_tiles, int column_tiles>
HB_INLINE void store_sums(float* out, i64 width) {
  repeat<row_tiles * column_tiles>([&](auto t) {
    const i64 row = t.value / column_tiles * tile_rows, column = t.value % column_tiles * tile_rows;
    tile_store<t.value>(out + row * width + column, width * i64(sizeof(float)));
  });
}

template <int row_tiles, int column_tiles>
void multiply_tiles(const bf16* a, i64 row_stride, const bf16* panel, i64 steps, float* out) {
  zero_sums<row_tiles * column_tiles>();
  for (i64 s = 0; s < steps; s += tile_rows, a += 2 * tile_rows, panel += tile_rows * column_tiles * tile_bytes / 2) {
    const bf16* rows[row_tiles];
    for (int r = 0; r < row_tiles; ++r) rows[r] = a + r * tile_rows * row_stride;
    add_products<row_tiles, column_tiles>(rows, row_stride * i64(sizeof(bf16)), panel);
  }
  store_sums<row_tiles, column_tiles>(out, TileProduct::width);
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

// to[column][row] of pairs from[row][column]; see turn.
inline void turn_pairs(const bf16* from, i64 stride, i64 rows, i64 columns, bf16* to, i64 to_stride) {
  turn(reinterpret_cast<const float*>(from), stride, rows, columns, reinterpret_cast<float*>(to), to_stride);
}

}  // namespace
