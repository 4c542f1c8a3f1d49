// The tensors among an operation's arguments or results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep::dispatch {

// Calls action(tensor) for each that is defined.
template <typename Action>
void for_each_tensor_in(const c10::IValue& value, Action&& action) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) action(*value.toTensor().unsafeGetTensorImpl());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) action(*tensor.unsafeGetTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor_in(element, action);
  }
}

}  // namespace lockstep::dispatch
