// Polynomials that bring singular values towards 1: X <- a X + (b G + c G²) X with G = X Xᵀ, one after the other.
//
// G and G² are symmetric: blocks above the diagonal are copied from those below, which saves almost half of these
// products. Values are rounded to bf16 between the products, which add up in floats; without products of pairs they are not.
#include "panels.h"
#include "transpose.h"

namespace {

#ifdef HB_PAIRS
using Product = PairProduct;
#else
using Product = FloatProduct;
#endif
using Element = Product::Element;

// A matrix in a buffer of the thread, with whole vectors of rows and of columns, filled up with zeros.
struct Matrix {
  i64 rows, columns, stride;
  Element* values;

  Matrix(int slot, i64 rows, i64 columns) : rows(rows), columns(columns), stride(round_up(columns, Vec::lanes)) {
    const i64 bytes = round_up(rows, Vec::lanes) * stride * i64(sizeof(Element));
    values = static_cast<Element*>(scratch(slot, bytes));
    std::memset(values, 0, static_cast<std::size_t>(bytes));
  }
  Element* at(i64 row, i64 column) const { return values + row * stride + column; }
  i64 steps() const { return stride / Product::depth; }
};

// Calls store(row, column, vector) for the product of `left` and panels, from row `first_row(column)` of each panel on.
template <class FirstRow, class Store>
void multiply_panels(const Matrix& left, const Element* packed, i64 columns, i64 steps, FirstRow first_row,
                     Store store) {
  alignas(64) float block[Product::rows * Product::width];
  for (i64 column = 0; column < columns; column += Product::width) {
    const i64 width = smaller(Product::width, columns - column);
    const Element* panel = packed + column * steps * Product::depth;
    for (i64 row = first_row(column); row < left.rows; row += Product::rows) {
      const i64 count = smaller(Product::rows, left.rows - row);
      multiply<Product>(left.at(row, 0), count, left.stride, Product::depth, panel, width, steps, block, kNothingAhead);
      for (i64 r = 0; r < count; r++)
        for (i64 c = 0; c < width; c += Vec::lanes) store(row + r, column + c, load(block + r * Product::width + c));
    }
  }
}

// result = change(x xᵀ), element by element; both products and result are symmetric.
template <class Change>
void multiply_by_transposed(const Matrix& x, Element* packed, const Matrix& result, Change change) {
  for (i64 first = 0; first < x.rows; first += Product::width) {  // a step of the contraction is 4 bytes of a row
    const i64 width = round_up(smaller(Product::width, x.rows - first), Vec::lanes);
    turn(reinterpret_cast<const float*>(x.at(first, 0)), x.steps(), width, x.steps(),
         reinterpret_cast<float*>(packed + first * x.stride), width);
  }
  multiply_panels(
      x, packed, x.rows, x.steps(), [](i64 column) { return column; },
      [&](i64 row, i64 column, Vec sums) { store(result.at(row, column), change(row, column, sums)); });
  for (i64 column = 0; column < x.rows; column += Product::width)
    for (i64 row = column + Product::width; row < x.rows; row += Vec::lanes)
      turn(result.at(row, column), result.stride, Vec::lanes, Product::width, result.at(column, row), result.stride);
}

// One matrix of [rows][columns] after polynomials of three coefficients each.
void apply_polynomials(const bf16* from, i64 rows, i64 columns, const float* coefficients, i64 count, bf16* to) {
  const Matrix x(0, rows, columns), gram(1, rows, rows), factor(2, rows, rows);
  auto* packed = static_cast<Element*>(scratch(3, larger(x.stride, gram.stride) * x.stride * i64(sizeof(Element))));
  for (i64 row = 0; row < rows; row++) Product::convert_row(from + row * columns, columns, x.at(row, 0));
  for (; count > 0; count--, coefficients += 3) {
    const Vec a = set1(coefficients[0]), b = set1(coefficients[1]), c = set1(coefficients[2]);
    multiply_by_transposed(x, packed, gram, [](i64, i64, Vec sums) { return sums; });
    multiply_by_transposed(gram, packed, factor,
                           [&](i64 row, i64 column, Vec sums) { return fma(c, sums, b * load(gram.at(row, column))); });
    pack_rows<Product>(x.values, x.stride, rows, columns, Product::width, packed, nullptr);
    multiply_panels(
        factor, packed, columns, num_steps<Product>(rows), [](i64) { return 0; },
        [&](i64 row, i64 column, Vec sums) { store(x.at(row, column), fma(a, load(x.at(row, column)), sums)); });
  }
  for (i64 row = 0; row < rows; row++)
    for (i64 column = 0; column < columns; column += Vec::lanes)
      store(to + row * columns + column, load(x.at(row, column)), smaller(Vec::lanes, columns - column));
}

}  // namespace

// bf16 [count][rows][columns] with rows <= columns, and floats [num_polynomials][3]; threads share the matrices.
HB_EXPORT(void, orthogonalize_bf16)(const bf16* from, i64 count, i64 rows, i64 columns, const float* coefficients,
                                    i64 num_polynomials, bf16* to, i64 threads) {
  parallel(threads, [=](int thread, int num_threads) {
    const Range own = share(count, 1, thread, num_threads);
    for (i64 matrix = own.begin; matrix < own.end; matrix++)
      apply_polynomials(from + matrix * rows * columns, rows, columns, coefficients, num_polynomials,
                        to + matrix * rows * columns);
  });
}
