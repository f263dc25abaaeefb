// Tells whether the instructions of a form run, by using those that CPUID alone does not vouch for.
#ifdef HB_AMX
#include "tiles.h"
#else
#include "isa.h"
#endif

// Returns 1, or does not return where the processor refuses an instruction.
HB_EXPORT(i64, works)() {
#ifdef HB_AMX
  const Tiles tiles;
  alignas(64) bf16 ones[2 * tile_rows * tile_rows];
  alignas(64) float sums[tile_rows * tile_rows];
  std::fill(ones, ones + 2 * tile_rows * tile_rows, bf16(0x3F80));
  tile_load<4>(ones, tile_bytes);
  tile_load<6>(ones, tile_bytes);
  tile_zero<0>();
  tile_dot<0, 4, 6>();
  tile_store<0>(sums, tile_bytes);
  for (float sum : sums)
    if (sum != 2 * tile_rows) return 0;
#endif
  return 1;
}
