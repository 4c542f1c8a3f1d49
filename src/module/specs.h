// What the arithmetic of layouts, which knows no LibTorch, needs to know of tensors.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/module/named_parameters.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep::modules {

[[nodiscard]] layout::Dtype spec_of(c10::ScalarType dtype);
[[nodiscard]] layout::TensorSpec spec_of(const NamedParameter& parameter);

// "Float on cpu": what tensors have in common that may lie in one storage.
[[nodiscard]] std::string kind_of(const at::Tensor& tensor);

}  // namespace lockstep::modules
