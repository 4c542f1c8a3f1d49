// Conversions of local tensors from placements to placements, by the table of
// lockstep/global/redistribute.h.
#pragma once

#include "global/spec.h"

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep::global {

// What this rank has in `to` of the tensor of which it has `local` by `spec`. Collective; a view of
// `local` where that is enough.
[[nodiscard]] at::Tensor converted(const at::Tensor& local, const Spec& spec,
                                   std::span<const Placement> to);

// In place along an axis, counted. Collective over the axis.
void all_reduce(Space& space, int axis, const at::Tensor& tensor, Op op);

// What one conversion along an axis of `ranks` ranks costs for a tensor of `bytes` along it: bytes
// that a rank receives, and what stands for the work of filling memory. Negative: never chosen for
// an operation's arguments.
[[nodiscard]] double cost_of(Placement from, Placement to, int ranks, double bytes);

}  // namespace lockstep::global
