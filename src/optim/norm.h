// Norms of gradients that are treated on the fly.
#pragma once

#include <lockstep/optim/clipping.h>
#include <lockstep/optim/treatment.h>

#include <span>

namespace lockstep::optim {

// norm_part() of the gradients as treated.
[[nodiscard]] double treated_norm_part(std::span<const at::Tensor> gradients,
                                       const Treatment& treatment, double norm_type);

// The norm of them all, over all ranks when `combine` is given.
[[nodiscard]] double combined_norm(std::span<const at::Tensor> gradients,
                                   const Treatment& treatment, double norm_type,
                                   const CombineParts& combine);

}  // namespace lockstep::optim
