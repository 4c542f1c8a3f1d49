// The arithmetic of one Adam or AdamW step on float32 memory, in one pass: each number is read once
// and written once. adam_naive.h has the same arithmetic as a plain loop.
#pragma once

#include "optim/formats_kernel.h"

#include <cstdint>

namespace lockstep::optim {

// One update of a parameter w with gradient g. Order and rounding are those of torch::optim (fma
// rounds once; every other operation rounds its own result):
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
struct AdamConstants {
  float factor = 1;
  float limit = 0;
  float decay = 0;         // Adam's weight decay; 0 for AdamW
  float decay_factor = 1;  // 1 - lr * weight decay for AdamW; 1 for Adam
  float beta1 = 0, new1 = 0;
  float beta2 = 0, new2 = 0;
  float unbias = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^t)
};

// Parallel arrays of `count` elements each; any alignment, no overlap.
struct AdamSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* average = nullptr;
  float* square = nullptr;
  float* greatest_square = nullptr;  // null: not amsgrad
  std::int64_t count = 0;
};

// Uses the widest vectors of this processor. Thread-safe.
void update_adam(const AdamConstants& constants, const AdamSpan& span);

// Overload for m and v in bfloat16 (as bits), which are widened before the update and rounded
// stochastically after it. Element i of the span uses the hash of index first + i: stream 0 for m
// and stream 1 for v.
struct SmallAdamSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  std::uint16_t* average = nullptr;
  std::uint16_t* square = nullptr;
  float* greatest_square = nullptr;
  std::int64_t count = 0;
};
void update_adam(const AdamConstants& constants, const SmallAdamSpan& span,
                 const StochasticRounding& rounding);

}  // namespace lockstep::optim
