// The arithmetic of one Adam, AdamW or SGD step on float32 memory, in one pass: each number is read
// once and written once. adam_naive.h and sgd_naive.h have the same arithmetic as plain loops.
#pragma once

#include "optim/formats_kernel.h"

#include <cstdint>

namespace lockstep::optim {

// One Adam or AdamW update of a parameter w with gradient g. Order and rounding are those of
// torch::optim (fma rounds once; every other operation rounds its own result):
//
//   g = clamp(g * factor, -limit, limit)
//   g = fma(w, decay, g)                            unless decay is 0
//   w = w * decay_factor
//   m = fma(g, new1, m * beta1)
//   v = fma(g * new2, g, v * beta2)
//   x = max(x, v)                                   amsgrad only, and then x stands for v below
//   w = w - step_size * m / fma(sqrt(v), unbias, eps)
//
// (torch divides by the square root of which `unbias` is the reciprocal. A product saves a division
// in a loop that must keep up with the memory.)
template <class Real>
struct AdamConstantsOf {
  Real factor = 1;
  Real limit = 0;
  Real decay = 0;         // Adam's weight decay; 0 for AdamW
  Real decay_factor = 1;  // 1 - lr * weight decay for AdamW; 1 for Adam
  Real beta1 = 0, new1 = 0;
  Real beta2 = 0, new2 = 0;
  Real unbias = 1;  // 1 / sqrt(1 - beta2^t)
  Real eps = 0;
  Real step_size = 0;  // lr / (1 - beta1^t)
};
using AdamConstants = AdamConstantsOf<float>;  // tests also use double

// Parallel arrays of `count` elements each; any alignment, no overlap.
template <class Stored>
struct AdamSpanOf {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  Stored* average = nullptr;
  Stored* square = nullptr;
  float* greatest_square = nullptr;  // null: not amsgrad
  std::int64_t count = 0;
};
using AdamSpan = AdamSpanOf<float>;
using SmallAdamSpan = AdamSpanOf<std::uint16_t>;  // m and v in bfloat16, as bits

// Uses the widest vectors of this processor. Thread-safe.
void update_adam(const AdamConstants& constants, const AdamSpan& span);

// Overload for m and v in bfloat16, which are widened before the update and rounded stochastically
// after it. Element i of the span uses the hash of index first + i: stream 0 for m and stream 1 for
// v.
void update_adam(const AdamConstants& constants, const SmallAdamSpan& span,
                 const StochasticRounding& rounding);

// One SGD update of a parameter w with gradient g, rounded as torch::optim::SGD does:
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
