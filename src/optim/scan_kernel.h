// A read-only pass over gradients, for results that are needed before any gradient is used.
#pragma once

#include <cstdint>

namespace lockstep::optim {

// Returns the sum of clamp(g * factor, -limit, limit)^2, accumulated in float64. It is finite if
// and only if every element is, because a sum of squares of float32 cannot overflow float64 here.
double sum_of_squares(const float* values, std::int64_t count, float factor, float limit);

}  // namespace lockstep::optim
