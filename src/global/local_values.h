// Access to the values of a tensor, global or plain, for code that computes with memory itself,
// such as optimizers.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::global {

// The local tensor of a global one; a plain tensor itself. Write to it only after begin_write().
// Not differentiable. Throws InvalidArgument for a view whose base has been written since it was
// made.
[[nodiscard]] at::Tensor local_values(const at::Tensor& tensor);

// All values of a global tensor, as full_tensor() gives them: differentiable, and collective where
// something is not Replicate. A plain or undefined tensor is returned as it is.
[[nodiscard]] at::Tensor plain(const at::Tensor& tensor);

// Call before a write to local_values(tensor).
void begin_write(const at::Tensor& tensor);

// Redistributes the gradient of a global parameter to the placements of the parameter and keeps it
// there, so that it is reduced once. Collective if the placements differ. Does nothing for a plain
// parameter. Throws InvalidArgument if the gradient of a global parameter is plain.
void settle_gradient(const at::Tensor& parameter);

// The groups whose ranks have the other shards of the tensor: one per mesh axis that cuts it and
// has several ranks. Empty for a plain tensor.
[[nodiscard]] std::vector<Group> groups_that_cut(const at::Tensor& tensor);

}  // namespace lockstep::global
