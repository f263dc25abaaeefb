// What happens to the results of a product before they are stored: bias, activation or its derivative, gates.
#pragma once
#include "activations.h"
#include "panels.h"

namespace {

// Writes the gradients of gate and up, `apart` from each other, for that of f(gate) up.
template <Activation activation, class T>
void gated_gradient(Vec gradient, const T* gate, const T* up, i64 n, T* out, i64 apart) {
  const Vec u = load(gate, n);
  store(out, gradient * load(up, n) * activation_derivative<activation>(u), n);
  store(out + apart, gradient * activate<activation>(u), n);
}

// What happens to a block of results [rows][width] before it is stored. A gated layer has F columns of results f(gate) up,
// and 2 F of values before them: all gates, then all `up`.
template <class T>
struct Epilogue {
  const float* bias;    // [columns] or null
  T* before;            // [rows][columns]: the results before the activation, or null
  const T* derivative;  // [rows][columns]: multiply by the activation's derivative there; null: apply the activation
  i64 derivative_stride;
  T* out;
  i64 out_stride;
  i64 gated;  // F; 0 for a plain activation

  // Adds the memory that the block's function reads and writes.
  void announce(i64 row, i64 rows, i64 column, i64 columns, Ahead& ahead) const {
    if (gated && !derivative) column /= 2, columns /= 2;
    ahead.add(out + row * out_stride + column, out_stride, rows, columns);
    for (i64 at = column; at <= column + gated; at += gated ? gated : 1) {
      if (gated && derivative && at > column) ahead.add(out + row * out_stride + at, out_stride, rows, columns);
      if (before) ahead.add(before + row * before_stride() + at, before_stride(), rows, columns);
      if (derivative) ahead.add(derivative + row * derivative_stride + at, derivative_stride, rows, columns);
    }
  }

  i64 before_stride() const { return gated ? 2 * gated : out_stride; }

  template <Activation activation>
  void store_block(const float* block, i64 width, i64 row, i64 rows, i64 column, i64 columns) const {
    for (i64 r = row; r < row + rows; r++, block += width)
      for (i64 c = 0; c < columns; c += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, columns - c), at = column + c;
        Vec y = load(block + c);
        if (bias) y = y + load(bias + at, n);
        if (before) store(before + r * out_stride + at, y, n);
        if (derivative)
          y = y * activation_derivative<activation>(load(derivative + r * derivative_stride + at, n));
        else
          y = activate<activation>(y);
        store(out + r * out_stride + at, y, n);
      }
  }

  // Of a block of gates and as many values that they multiply.
  template <Activation activation>
  void store_gated(const float* block, i64 width, i64 row, i64 rows, i64 column, i64 columns) const {
    const i64 half = columns / 2;
    for (i64 r = row; r < row + rows; r++, block += width)
      for (i64 c = 0; c < half; c += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, half - c), at = column / 2 + c;
        Vec gate = load(block + c), up = load(block + half + c);
        if (bias) gate = gate + load(bias + at, n), up = up + load(bias + gated + at, n);
        if (before) {
          store(before + r * 2 * gated + at, gate, n);
          store(before + r * 2 * gated + gated + at, up, n);
        }
        store(out + r * out_stride + at, activate<activation>(gate) * up, n);
      }
  }

  // Of the gradients of f(gate) up, those of gate and up.
  template <Activation activation>
  void store_gated_gradient(const float* block, i64 width, i64 row, i64 rows, i64 column, i64 columns) const {
    for (i64 r = row; r < row + rows; r++, block += width)
      for (i64 c = 0; c < columns; c += Vec::lanes) {
        const i64 n = smaller(Vec::lanes, columns - c), at = column + c;
        const T* u = derivative + r * derivative_stride + at;
        gated_gradient<activation>(load(block + c), u, u + gated, n, out + r * out_stride + at, gated);
      }
  }
};

template <class T>
using StoreBlock = void (Epilogue<T>::*)(const float*, i64, i64, i64, i64, i64) const;

template <class T>
StoreBlock<T> store_function(Activation activation, const Epilogue<T>& epilogue) {
  return with_activation(activation, [&](auto fixed) -> StoreBlock<T> {
    constexpr Activation f = decltype(fixed)::value;
    if (!epilogue.gated) return &Epilogue<T>::template store_block<f>;
    if (epilogue.derivative) return &Epilogue<T>::template store_gated_gradient<f>;
    return &Epilogue<T>::template store_gated<f>;
  });
}

}  // namespace
