// Norms of gradients that are transformed on the fly.
#pragma once

#include "optim/update_entry.h"

#include <lockstep/optim/clipping.h>

#include <span>

namespace lockstep::optim {

// gradient_norm() of the gradients as transformed.
[[nodiscard]] double transformed_norm(std::span<const at::Tensor> parameters,
                                      const ElementTransform& transform, double norm_type);

// Whether no element of the gradients is infinite or NaN, on any rank that has parts of them.
[[nodiscard]] bool all_finite(std::span<const at::Tensor> parameters);

// Of one gradient's elements, without other ranks': the sum of |g|^norm_type, or the largest |g|
// when norm_type is infinity.
[[nodiscard]] double norm_part(const at::Tensor& gradient, const ElementTransform& transform,
                               double norm_type);

}  // namespace lockstep::optim
