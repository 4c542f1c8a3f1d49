// The ways into global tensors, out of them and between placements, with their gradients.
#pragma once

#include "global/spec.h"

#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>

namespace lockstep::global {

// Arguments are checked.
[[nodiscard]] at::Tensor distributed(const at::Tensor& tensor, const Mesh& mesh,
                                     const PlacementList& placements);
[[nodiscard]] at::Tensor redistributed(const at::Tensor& tensor, const PlacementList& placements);
[[nodiscard]] at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const SpecPtr& spec);
[[nodiscard]] at::Tensor to_local(const at::Tensor& tensor);

// Replaces these, for all tensors of the process, by the same ones that make tensors like the
// gradient: global ones where it is global. Any thread, more than once.
void replace_formulas();

}  // namespace lockstep::global
