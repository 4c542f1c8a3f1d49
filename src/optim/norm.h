// Norms of gradients with an element transform applied on the fly.
#pragma once

#include "optim/update_entry.h"

#include <lockstep/optim/clipping.h>

#include <span>

namespace lockstep::optim {

// Returns gradient_norm() of the transformed gradients.
[[nodiscard]] double transformed_norm(std::span<const at::Tensor> parameters,
                                      const ElementTransform& transform, double norm_type);

// Returns true if no element of the gradients is inf or NaN, on any rank that has parts of them.
[[nodiscard]] bool all_finite(std::span<const at::Tensor> parameters);

}  // namespace lockstep::optim
