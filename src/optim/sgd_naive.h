// The naive SGD step: the formulas of update_kernel.h as a loop over elements, for the tests.
#pragma once

#include "optim/update_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace lockstep::optim {

// `momentum_buffer` is empty without momentum.
template <class Real>
void naive_sgd(const SgdConstantsOf<Real>& c, std::span<Real> parameter,
               std::span<const Real> gradient, std::span<Real> momentum_buffer) {
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    Real g = std::clamp(gradient[i] * c.factor, -c.limit, c.limit);
    if (c.decay != 0) g = std::fma(parameter[i], c.decay, g);
    if (!momentum_buffer.empty()) {
      Real& b = momentum_buffer[i];
      b = c.first ? g : std::fma(g, c.undamped, b * c.momentum);
      g = c.nesterov ? std::fma(b, c.momentum, g) : b;
    }
    parameter[i] = std::fma(g, -c.lr, parameter[i]);
  }
}

}  // namespace lockstep::optim
