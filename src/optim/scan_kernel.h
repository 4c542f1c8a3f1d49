// What must be known of all gradients before any of them is used: one pass that only reads.
#pragma once

#include <cstdint>

namespace lockstep::optim {

// The sum of clamp(g * factor, -limit, limit)^2, accumulated in float64: finite exactly when every
// element is, since no sum of squares of float32 overflows there.
double sum_of_squares(const float* values, std::int64_t count, float factor, float limit);

}  // namespace lockstep::optim
