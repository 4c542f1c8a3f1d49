// Tensors among the items of a stack, alone or in lists.
#pragma once

#include "global/arguments.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <span>
#include <vector>

namespace lockstep::global {

// Puts tensors[i] in the place of arguments.tensors[i]; `values` are all arguments.
void put_tensors(const Arguments& arguments, std::span<const at::Tensor> tensors,
                 std::span<c10::IValue> values);

// One after the other; those of no value are undefined.
[[nodiscard]] std::vector<at::Tensor> tensors_in(std::span<const c10::IValue> values);

}  // namespace lockstep::global
