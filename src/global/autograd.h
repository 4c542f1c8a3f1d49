// Differentiable functions that make global tensors, change their placements and make local tensors
// from them; and formulas of LibTorch that need a change for global tensors.
#pragma once

#include "global/spec.h"

#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>

namespace lockstep::global {

// Callers have checked the arguments of these functions.
[[nodiscard]] at::Tensor distributed(const at::Tensor& tensor, const Mesh& mesh,
                                     const PlacementList& placements);
[[nodiscard]] at::Tensor redistributed(const at::Tensor& tensor, const PlacementList& placements);
[[nodiscard]] at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const SpecPtr& spec);
[[nodiscard]] at::Tensor to_local(const at::Tensor& tensor);

// Replaces formulas of LibTorch that create plain tensors beside global ones, for all tensors of
// the process, and attention (attention.h). Idempotent; thread-safe.
void replace_formulas();

}  // namespace lockstep::global
