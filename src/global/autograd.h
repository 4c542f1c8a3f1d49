// The differentiable ways into global tensors, out of them and between placements; and gradient
// formulas of LibTorch that work on global tensors only after a change.
#pragma once

#include "global/spec.h"

#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>

namespace lockstep::global {

// The caller has checked the arguments.
[[nodiscard]] at::Tensor distributed(const at::Tensor& tensor, const Mesh& mesh,
                                     const PlacementList& placements);
[[nodiscard]] at::Tensor redistributed(const at::Tensor& tensor, const PlacementList& placements);
[[nodiscard]] at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const SpecPtr& spec);
[[nodiscard]] at::Tensor to_local(const at::Tensor& tensor);

// Replaces formulas that make plain tensors of their own, for all tensors of the process, by the
// same formulas with tensors like the gradient: global if it is global. Idempotent; thread-safe.
void replace_formulas();

}  // namespace lockstep::global
