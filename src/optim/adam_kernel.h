// The arithmetic of one Adam or AdamW step on float32 memory, in one pass: each number is read once
// and written once. adam_naive.h is the same as a plain loop.
#pragma once

#include "optim/formats_kernel.h"

#include <cstdint>

namespace lockstep::optim {

// One update of a parameter w with gradient g, in this order and with these roundings, which are
// torch::optim's (fma: one rounding; every other operation has its own):
//
//   g = clamp(g * factor, -limit, limit)
//   g = fma(w, decay, g)                            unless decay is 0
//   w = w * decay_factor
//   m = fma(g, new1, m * beta1)
//   v = fma(g * new2, g, v * beta2)
//   x = max(x, v)                                   amsgrad only, and then x stands for v below
//   w = w - step_size * m / fma(sqrt(v), unbias, eps)
//
// (torch divides by the root that `unbias` is one over; the product is a division less in a loop
// that must keep up with the memory.)
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

// Side by side, `count` elements each; any alignment, no overlap.
struct AdamSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* average = nullptr;
  float* square = nullptr;
  float* greatest_square = nullptr;  // null: not amsgrad
  std::int64_t count = 0;
};

// With the widest vectors of this processor. Any thread.
void update_adam(const AdamConstants& constants, const AdamSpan& span);

// The same with m and v kept as bfloat16 (their bits), widened before, with stochastic rounding
// after: element i of the span by the hash of place first + i, m by its stream 0 and v by stream 1.
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
