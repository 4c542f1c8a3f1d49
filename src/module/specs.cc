#include "module/specs.h"

#include "base/format.h"

namespace lockstep::modules {

layout::Dtype spec_of(c10::ScalarType dtype) {
  return {c10::toString(dtype), static_cast<std::int64_t>(c10::elementSize(dtype))};
}

layout::TensorSpec spec_of(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return {parameter.name, tensor.sizes().vec(), spec_of(tensor.scalar_type()),
          tensor.unsafeGetTensorImpl()};
}

std::string kind_of(const at::Tensor& tensor) {
  return formatted("{} on {}", c10::toString(tensor.scalar_type()), tensor.device().str());
}

}  // namespace lockstep::modules
