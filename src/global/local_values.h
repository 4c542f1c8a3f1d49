// Access to the values of a tensor, global or plain, for code that works on memory directly, such
// as optimizers.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::global {

// Returns the local tensor of a global tensor, or a plain tensor itself. Call begin_write() before
// writing to it. Not differentiable. Throws InvalidArgument for a view whose base has been written
// since the view was made.
[[nodiscard]] at::Tensor local_values(const at::Tensor& tensor);

// Returns all values of a global tensor, like full_tensor(): differentiable, and collective if a
// placement is not Replicate. Returns a plain or undefined tensor itself.
[[nodiscard]] at::Tensor plain(const at::Tensor& tensor);

// Call before a write to local_values(tensor).
void begin_write(const at::Tensor& tensor);

// Redistributes the gradient of a global parameter to the placements of the parameter and stores
// it, so that it is reduced only once. Collective if the placements differ. Does nothing for a
// plain parameter. Throws InvalidArgument if the gradient of a global parameter is plain.
void settle_gradient(const at::Tensor& parameter);

// Returns the groups whose ranks have the other shards of the tensor: one per mesh axis that shards
// it and has several ranks. Empty for a plain tensor.
[[nodiscard]] std::vector<Group> groups_that_cut(const at::Tensor& tensor);

}  // namespace lockstep::global
