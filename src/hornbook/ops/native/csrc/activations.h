// Activations of a feed-forward and their derivatives, in fp32.
#pragma once
#include <type_traits>

#include "simd.h"

namespace {

// In the order of ACTIVATIONS in linear.py.
enum class Activation : i64 { none, gelu, gelu_tanh, relu, relu_squared, silu };

// Φ(u) of the standard normal distribution, absolute error below 1e-7 (Abramowitz and Stegun, formula 7.1.26), and
// e^(-u²/2), which both the formula and the derivative of GELU need.
struct Normal {
  Vec cumulative, density;
};
inline Normal normal(Vec u) {
  const Vec z = abs(u) * set1(0.70710678f), density = exp(u * u * set1(-0.5f));
  const Vec t = set1(1.0f) / fma(z, set1(0.3275911f), set1(1.0f));
  Vec p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const Vec upper = p * t * density * set1(0.5f);  // 1 - Φ(|u|)
  return {select(less(u, set1(0.0f)), upper, set1(1.0f) - upper), density};
}

// The logistic function of 2 √(2/π) (u + 0.044715 u³): GELU with tanh is u times it.
inline Vec tanh_gate(Vec u, Vec u_squared) {
  const Vec inner = u * fma(u_squared, set1(-0.07135481627f), set1(-1.595769122f));
  return set1(1.0f) / (set1(1.0f) + exp(inner));
}

inline Vec logistic(Vec u) { return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - u)); }

template <Activation activation>
Vec activate(Vec u) {
  if constexpr (activation == Activation::gelu) return u * normal(u).cumulative;
  if constexpr (activation == Activation::gelu_tanh) return u * tanh_gate(u, u * u);
  if constexpr (activation == Activation::relu) return max(set1(0.0f), u);
  if constexpr (activation == Activation::relu_squared) return max(set1(0.0f), u) * max(set1(0.0f), u);
  if constexpr (activation == Activation::silu) return u * logistic(u);
  return u;
}

template <Activation activation>
Vec activation_derivative(Vec u) {
  if constexpr (activation == Activation::gelu) {
    const Normal n = normal(u);
    return fma(u * n.density, set1(0.3989422804f), n.cumulative);
  }
  if constexpr (activation == Activation::gelu_tanh) {
    const Vec squared = u * u, gate = tanh_gate(u, squared);
    const Vec slope = fma(squared, set1(3 * 0.07135481627f), set1(1.595769122f));
    return fma(u * slope, gate * (set1(1.0f) - gate), gate);
  }
  if constexpr (activation == Activation::relu) return select(less(set1(0.0f), u), set1(1.0f), set1(0.0f));
  if constexpr (activation == Activation::relu_squared) return max(set1(0.0f), u) * set1(2.0f);
  if constexpr (activation == Activation::silu) {
    const Vec gate = logistic(u);
    return gate * fma(u, set1(1.0f) - gate, set1(1.0f));
  }
  return set1(1.0f);
}

// Returns function(std::integral_constant<Activation, activation>()).
template <class Function>
auto with_activation(Activation activation, Function function) {
  using A = Activation;
  switch (activation) {
    case A::gelu: return function(std::integral_constant<A, A::gelu>());
    case A::gelu_tanh: return function(std::integral_constant<A, A::gelu_tanh>());
    case A::relu: return function(std::integral_constant<A, A::relu>());
    case A::relu_squared: return function(std::integral_constant<A, A::relu_squared>());
    case A::silu: return function(std::integral_constant<A, A::silu>());
    default: return function(std::integral_constant<A, A::none>());
  }
}

}  // namespace
