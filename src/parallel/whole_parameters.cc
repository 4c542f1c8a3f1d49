#include "parallel/whole_parameters.h"

#include "module/tensors.h"

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

PartKinds::PartKinds(const torch::nn::Module& module, std::span<const std::string> ignored) {
  modules::ModuleTensors tensors = modules::tensors_of(module, ignored);
  for (const auto& buffer : tensors.buffers)
    kinds_.emplace(buffer.tensor.unsafeGetTensorImpl(), PartKind::buffer);
  for (const at::Tensor& tensor : tensors.ignored)
    kinds_.emplace(tensor.unsafeGetTensorImpl(), PartKind::ignored);
}

NamedPart PartKinds::whole_part(const modules::StateEntry& entry) const {
  auto found = kinds_.find(entry.tensor.unsafeGetTensorImpl());
  return {entry.names.front(),
          entry.tensor.detach(),
          {entry.names.begin() + 1, entry.names.end()},
          layout::whole_slice(entry.tensor.sizes()),
          found == kinds_.end() ? PartKind::parameter : found->second};
}

std::vector<NamedPart> whole_state_parts(const torch::nn::Module& module,
                                         std::span<const std::string> ignored) {
  const PartKinds kinds(module, ignored);
  std::vector<NamedPart> list;
  for (const modules::StateEntry& entry : modules::state_entries(module))
    if (!entry.tensor.is_nested()) list.push_back(kinds.whole_part(entry));
  return list;
}

}  // namespace lockstep::parallel
