// Conversion of a local tensor to other placements, by the table of lockstep/global/tensor.h.
#pragma once

#include "global/spec.h"

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep::global {

// Converts this rank's part `local` of a tensor with `spec` to the placements `to`. Collective. The
// result is a view of `local` if no rank needs other elements.
[[nodiscard]] at::Tensor converted(const at::Tensor& local, const Spec& spec,
                                   std::span<const Placement> to);

// An all_reduce in place along an axis, counted in traffic(). Collective over the axis.
void all_reduce(MeshContext& context, int axis, const at::Tensor& tensor, Op op);

// The cost of one conversion of a tensor of `bytes` along an axis of `ranks` ranks: the bytes that
// a rank receives, plus an estimate for filling memory. Negative if the conversion must not be
// chosen for an operation's arguments.
[[nodiscard]] double cost_of(Placement from, Placement to, int ranks, double bytes);

}  // namespace lockstep::global
