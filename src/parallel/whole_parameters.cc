#include "parallel/whole_parameters.h"

#include <cstdint>

namespace lockstep::parallel {

std::vector<NamedPart> whole_parts(const std::vector<NamedParameter>& parameters) {
  std::vector<NamedPart> list;
  for (const auto& [name, tensor, aliases] : parameters)
    list.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return list;
}

void zero_gradients(const std::vector<NamedParameter>& parameters, bool set_to_none) {
  for (const NamedParameter& parameter : parameters) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient = gradient.detach();
      gradient.zero_();
    }
  }
}

void count_memory(const at::Tensor& parameter, HandleMemory& memory) {
  memory.whole += static_cast<std::int64_t>(parameter.nbytes());
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined()) memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
}

}  // namespace lockstep::parallel
