// What this rank has of tensors, for code that computes with memory itself, such as optimizers.
// Plain tensors are whole.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::global {

// The local tensor of a global one, another itself: to be read, and after begin_write() written.
// Not differentiable. InvalidArgument for a view whose base has been written since it was made.
[[nodiscard]] at::Tensor local_values(const at::Tensor& tensor);

// The caller is about to write local_values(tensor).
void begin_write(const at::Tensor& tensor);

// Brings the gradient of a global parameter to the placements of the parameter, where it stays, so
// that it is reduced once. Collective where that is a conversion; nothing for a plain parameter.
// InvalidArgument when the gradient is plain.
void settle_gradient(const at::Tensor& parameter);

// The groups over which a tensor is cut, whose ranks have its other shards: one for each axis of
// its mesh that cuts it and has several ranks. None of a plain one.
[[nodiscard]] std::vector<Group> groups_that_cut(const at::Tensor& tensor);

}  // namespace lockstep::global
