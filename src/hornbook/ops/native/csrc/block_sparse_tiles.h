// Products of bf16 tokens with blocks of 16, 32 or 64 by AMX tiles, summed in fp32.
//
// Output and gradient of the input: tokens are the rows of tiles, outputs the columns. The blocks of a line follow each
// other, so that their products add up in the tiles. Blocks of 32 take two by two tiles of sums, 32 tokens by 32 outputs;
// larger ones are taken apart into blocks of 32. A block of 16 is half as deep as a tile: it takes four tiles of sums, 64
// tokens by 16 outputs, and tiles of half the depth, which no other block has to share.
//
// Gradient of the blocks: the contraction is over tokens, so every tile is whole. The features of the narrower operand are
// the rows, since those have to be turned, and those of the wider one the columns; four blocks of 16 of one line share the
// columns.
#pragma once
#include "block_lines.h"
#include "tiles.h"

namespace {

#ifdef HB_AMX
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif

// Bytes of packed tokens, and of packed blocks, that stay in the second-level cache, of which processors with AMX have at
// least 2 MiB. For a gradient, they decide the order of sums.
constexpr i64 kTileBytes = 512 << 10;

// How a product with blocks of b is cut into tiles.
template <i64 b>
struct TileCut {
  static constexpr i64 size = b < 32 ? b : 32;  // of the parts of a block: the depth and the outputs of a product
  static constexpr i64 parts = b / size;        // of a block, along each side
  static constexpr i64 area = size * size;      // of a part
  static constexpr int column_tiles = size / 16, row_tiles = 4 / column_tiles;
  static constexpr i64 tokens = row_tiles * tile_rows;
};

// A part of a block as a panel [input pair][output]: `values` has rows of b, which are outputs, or inputs with `across`.
template <i64 b, bool across>
void pack_part(const bf16* values, bf16* panel) {
  constexpr i64 size = TileCut<b>::size, pairs = size / 2;
  if constexpr (across) {
    for (i64 input = 0; input < size; input += 2)
      for (i64 output = 0; output < size; output += Vec::lanes) {
        const bf16* from = values + input * b + output;
        TileProduct::pack_step(from, b, TileProduct::depth, Vec::lanes, panel + input * size + 2 * output);
      }
  } else {
    turn_pairs(values, b / 2, size, pairs, panel, size);
  }
}

// The blocks as panels in the order of lines, [part of the outputs][part of the inputs], and where they are along their
// lines; packed by all threads together.
template <i64 b, bool across>
class PackedBlocks {
 public:
  PackedBlocks(const bf16* values, const Lines& lines) : lines_(lines), values_(values) {
    panels_ = static_cast<bf16*>(scratch(2, lines.num_blocks() * (b * b * i64(sizeof(bf16)) + i64(sizeof(i64)))));
    places_ = reinterpret_cast<i64*>(panels_ + lines.num_blocks() * b * b);
  }
  void pack(int thread, int running) const {
    using Cut = TileCut<b>;
    const Range own = share(lines_.num_blocks(), 1, thread, running);
    for (i64 i = own.begin; i < own.end; ++i) {
      const i64 block = lines_.block(i);
      bf16* panel = panels_ + i * b * b;
      places_[i] = lines_.others[block];
      for (i64 output = 0; output < b; output += Cut::size)
        for (i64 input = 0; input < b; input += Cut::size, panel += Cut::area)
          pack_part<b, across>(values_ + block * b * b + (across ? input * b + output : output * b + input), panel);
    }
    if (running > 1) hb_runtime.barrier();
  }
  const Lines& lines() const { return lines_; }
  const bf16* panel(i64 i, i64 part) const { return panels_ + i * b * b + part * b * TileCut<b>::size; }
  i64 place(i64 i) const { return places_[i]; }

 private:
  Lines lines_;
  const bf16* values_;
  bf16* panels_;
  i64* places_;
};

// [part of the features][token][size] of tokens [token][feature]; those that do not exist are zero.
template <i64 b>
void pack_tokens(const bf16* tokens, i64 stride, i64 num_tokens, i64 num_features, bf16* packed) {
  using Cut = TileCut<b>;
  constexpr i64 kTokens = 8;  // that go to a part one after the other, so that lines are written whole
  for (i64 token = 0; token < Cut::tokens; token += kTokens)
    for (i64 feature = 0; feature < num_features; feature += Cut::size)
      for (i64 t = token; t < token + kTokens; ++t) {
        bf16* to = packed + feature * Cut::tokens + t * Cut::size;
        if (t < num_tokens)
          std::memcpy(to, tokens + t * stride + feature, Cut::size * sizeof(bf16));
        else
          std::memset(to, 0, Cut::size * sizeof(bf16));
      }
}

// A part of the outputs of a line for a slice of packed tokens; `out` has rows of `width`.
template <i64 b, bool across>
void multiply_line(const bf16* tokens, const PackedBlocks<b, across>& blocks, i64 line, i64 part, float* out,
                   i64 width) {
  using Cut = TileCut<b>;
  zero_sums<Cut::row_tiles * Cut::column_tiles>();
  const i64* starts = blocks.lines().starts;
  for (i64 i = starts[line]; i < starts[line + 1]; ++i)
    for (i64 input = 0; input < Cut::parts; ++input) {
      const bf16* from = tokens + (blocks.place(i) * Cut::parts + input) * Cut::tokens * Cut::size;
      const bf16* rows[Cut::row_tiles];
      for (int r = 0; r < Cut::row_tiles; ++r) rows[r] = from + r * tile_rows * Cut::size;
      add_products<Cut::row_tiles, Cut::column_tiles>(rows, Cut::size * i64(sizeof(bf16)),
                                                      blocks.panel(i, part) + input * Cut::area);
    }
  store_sums<Cut::row_tiles, Cut::column_tiles>(out, width);
}

// Outputs that are written at once. They go through the caches: another operator reads them next.
constexpr i64 kWidth = kCacheLine / i64(sizeof(bf16));

// Rounds and writes sums [token][kWidth], plus a bias unless it is null, as `unpack` does.
inline void write_outputs(const float* sums, const float* bias, i64 num_tokens, i64 num_outputs, bf16* to, i64 stride) {
  for (i64 token = 0; token < num_tokens; ++token, sums += kWidth, to += stride)
    for (i64 output = 0; output < num_outputs; output += Vec::lanes) {
      const Vec sum = load(sums + output);
      store(to + output, bias ? rounded<bf16>(sum) + rounded<bf16>(load(bias + output)) : sum);
    }
}

// y [m][lines b] of x [m][num_in], plus the bias. Each slice of tokens meets many lines, whose blocks stay in the
// second-level cache.
template <i64 b, bool across>
void multiply_by_tiles(const bf16* x, i64 stride, i64 m, i64 num_in, const bf16* values, const Lines& lines,
                       const float* bias, bf16* y, i64 threads) {
  using Cut = TileCut<b>;
  const PackedBlocks<b, across> blocks(values, lines);
  const i64 num_out = lines.count * b, slice_bytes = Cut::tokens * num_in * i64(sizeof(bf16));
  const i64 chunk = larger(kTileBytes / slice_bytes, 1) * Cut::tokens;
  const i64 block_bytes = lines.num_blocks() * b * b * i64(sizeof(bf16));
  const i64 group = round_up(num_out * kTileBytes / larger(block_bytes, kTileBytes), 64);
  parallel(threads, [&](int thread, int running) {
    blocks.pack(thread, running);
    const Range own = share(m, Cut::tokens, thread, running);
    auto* packed =
        static_cast<bf16*>(scratch(0, smaller(chunk, round_up(m, Cut::tokens)) * num_in * i64(sizeof(bf16))));
    const Tiles tiles(Cut::size / 2);
    alignas(64) float sums[Cut::tokens * kWidth];
    for (i64 token = own.begin; token < own.end; token += chunk) {
      const i64 end = smaller(token + chunk, own.end);
      for (i64 at = token; at < end; at += Cut::tokens)
        pack_tokens<b>(x + at * stride, stride, m - at, num_in, packed + (at - token) * num_in);
      for (i64 first = 0; first < num_out; first += group)
        for (i64 at = token; at < end; at += Cut::tokens)
          for (i64 output = first; output < smaller(first + group, num_out); output += kWidth) {
            const i64 outputs = smaller(kWidth, num_out - output);
            for (i64 n = 0; n < outputs; n += Cut::size)
              multiply_line(packed + (at - token) * num_in, blocks, (output + n) / b, (output + n) % b / Cut::size,
                            sums + n, kWidth);
            write_outputs(sums, bias ? bias + output : nullptr, smaller(Cut::tokens, end - at), outputs,
                          y + at * num_out + output, num_out);
          }
    }
  });
}

// Features [begin, end) of tokens as tiles of rows, [16 features][16 pairs of tokens][feature][pair]; `panel` is scratch.
template <i64 size>
void pack_turned(const bf16* tokens, i64 stride, i64 num_tokens, Range features, bf16* panel, bf16* packed) {
  const i64 steps = num_steps<TileProduct>(num_tokens);
  for (i64 feature = features.begin; feature < features.end; feature += size) {
    pack_rows<TileProduct>(tokens + feature, stride, num_tokens, size, size, panel, nullptr);
    for (i64 f = 0; f < size; f += tile_rows)
      for (i64 step = 0; step < steps; step += tile_rows)
        turn_pairs(panel + 2 * (step * size + f), size, tile_rows, tile_rows,
                   packed + 2 * ((feature + f) * steps + step * tile_rows), tile_rows);
  }
}

// out [row][16 column_tiles] = the products of tiles of rows, [steps / 16][row][pair] each, and a panel.
template <int row_tiles, int column_tiles>
void multiply_tokens(const bf16* (&rows)[row_tiles], const bf16* panel, i64 steps, float* out) {
  zero_sums<row_tiles * column_tiles>();
  for (i64 step = 0; step < steps; step += tile_rows) {
    add_products<row_tiles, column_tiles>(rows, tile_bytes, panel + step * column_tiles * tile_bytes / 2);
    for (const bf16*& row : rows) row += tile_rows * tile_bytes / 2;
  }
  store_sums<row_tiles, column_tiles>(out, column_tiles * tile_rows);
}

// The narrower operand of a gradient, packed for all lines, and one line of the wider one.
struct TileOperands {
  const bf16 *turned, *line;
  i64 steps;
  bool is_first, is_last;  // of the chunks of tokens
};

// Adds the products of some tokens to blocks i to i + count of a line, which are [other][along] until the last tokens; then
// those of rows, where that is across, are turned.
template <i64 b, bool across, int count>
void add_to_blocks(const TileOperands& operands, const Lines& lines, i64 i, float* of_values) {
  using Cut = TileCut<b>;
  constexpr int row_tiles = count * Cut::size / tile_rows;
  alignas(64) float sums[row_tiles * tile_rows * Cut::size], turned[b * b];
  for (i64 other = 0; other < b; other += Cut::size)
    for (i64 along = 0; along < b; along += Cut::size) {
      const bf16* rows[row_tiles];
      for (int r = 0; r < row_tiles; ++r) {
        const i64 feature =
            lines.others[lines.block(i + r * tile_rows / Cut::size)] * b + other + r * tile_rows % Cut::size;
        rows[r] = operands.turned + 2 * feature * operands.steps;
      }
      multiply_tokens<row_tiles, Cut::column_tiles>(rows, operands.line + 2 * along * operands.steps, operands.steps,
                                                    sums);
      for (int n = 0; n < count; ++n)
        add_block(sums + n * Cut::area, Cut::size, of_values + lines.block(i + n) * b * b + other * b + along, b,
                  Cut::size, Cut::size, operands.is_first);
    }
  if (!across && operands.is_last)
    for (int n = 0; n < count; ++n) {
      float* block = of_values + lines.block(i + n) * b * b;
      std::memcpy(turned, block, sizeof turned);
      turn(turned, b, b, b, block, b);
    }
}

// The blocks of alongᵀ others, of tokens `along` [m][lines b] and `others` [m][num_others]; see weight_gradient.
template <i64 b, bool across>
void weight_gradient_by_tiles(const bf16* along, i64 stride, const bf16* others, i64 others_stride, i64 m,
                              i64 num_others, const Lines& lines, float* of_values, i64 threads) {
  using Cut = TileCut<b>;
  constexpr i64 unit = 2 * tile_rows;  // tokens of a tile
  const i64 chunk =
      smaller(larger(kTileBytes / (num_others * i64(sizeof(bf16))) / unit, 1) * unit, round_up(larger(m, 1), unit));
  auto* turned = static_cast<bf16*>(scratch(1, chunk * num_others * i64(sizeof(bf16))));
  parallel(threads, [&](int thread, int running) {
    const Range own = share(lines.count, 1, thread, running), packs = share(num_others, Cut::size, thread, running);
    auto* panel = static_cast<bf16*>(scratch(0, chunk * b * i64(sizeof(bf16))));
    const Tiles tiles;
    for (i64 token = 0; token == 0 || token < m; token += chunk) {
      const i64 real = smaller(chunk, m - token);
      const TileOperands operands{turned, panel, num_steps<TileProduct>(real), token == 0, token + chunk >= m};
      pack_turned<Cut::size>(others + token * others_stride, others_stride, real, packs, panel, turned);
      if (running > 1) hb_runtime.barrier();
      for (i64 line = own.begin; line < own.end; ++line) {
        i64 i = lines.starts[line];
        const i64 end = lines.starts[line + 1];
        if (i < end)
          pack_rows<TileProduct>(along + token * stride + line * b, stride, real, b, Cut::size, panel, nullptr);
        if constexpr (b == tile_rows) {
          for (; i + 4 <= end; i += 4) add_to_blocks<b, across, 4>(operands, lines, i, of_values);
          for (; i + 2 <= end; i += 2) add_to_blocks<b, across, 2>(operands, lines, i, of_values);
        }
        for (; i < end; ++i) add_to_blocks<b, across, 1>(operands, lines, i, of_values);
      }
      if (running > 1) hb_runtime.barrier();
    }
  });
}

}  // namespace
