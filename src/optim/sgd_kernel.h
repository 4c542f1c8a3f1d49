// The arithmetic of one SGD step on float32 memory, in one pass. sgd_naive.h has the same
// arithmetic as a plain loop.
#pragma once

#include <cstdint>

namespace lockstep::optim {

// One update of a parameter w with gradient g, rounded as torch::optim::SGD does:
//
//   g = clamp(g * factor, -limit, limit)
//   g = fma(w, decay, g)                                   unless decay is 0
//   b = first ? g : fma(g, undamped, b * momentum)          only with a momentum buffer,
//   g = nesterov ? fma(b, momentum, g) : b                  and so is this
//   w = fma(g, -lr, w)
template <class Real>
struct SgdConstantsOf {
  Real factor = 1;
  Real limit = 0;
  Real decay = 0;
  Real momentum = 0;
  Real undamped = 1;  // 1 - dampening
  Real lr = 0;
  bool nesterov = false;
  bool first = false;  // the buffer has no values yet
};
using SgdConstants = SgdConstantsOf<float>;  // tests also use double

// Parallel arrays of `count` elements each; any alignment, no overlap.
struct SgdSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* momentum_buffer = nullptr;  // null: no momentum
  std::int64_t count = 0;
};

// Uses the widest vectors of this processor. Thread-safe.
void update_sgd(const SgdConstants& constants, const SgdSpan& span);

}  // namespace lockstep::optim
