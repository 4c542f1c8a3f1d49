// The naive Adam step: the formulas of update_kernel.h as a loop over elements. Tests compare the
// fast kernel with it, bit for bit in float, and use the double version as the exact result.
#pragma once

#include "optim/update_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace lockstep::optim {

// `greatest_square` is empty without amsgrad; the other spans have equal lengths.
template <class Real>
void naive_adam(const AdamConstantsOf<Real>& c, std::span<Real> parameter,
                std::span<const Real> gradient, std::span<Real> average, std::span<Real> square,
                std::span<Real> greatest_square) {
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    Real g = std::clamp(gradient[i] * c.factor, -c.limit, c.limit);
    if (c.decay != 0) g = std::fma(parameter[i], c.decay, g);
    Real w = parameter[i] * c.decay_factor;
    average[i] = std::fma(g, c.new1, average[i] * c.beta1);
    Real scaled = g * c.new2;
    square[i] = std::fma(scaled, g, square[i] * c.beta2);
    Real v = square[i];
    if (!greatest_square.empty()) v = greatest_square[i] = std::max(greatest_square[i], v);
    Real denominator = std::fma(std::sqrt(v), c.unbias, c.eps);
    parameter[i] = w - c.step_size * average[i] / denominator;
  }
}

}  // namespace lockstep::optim
