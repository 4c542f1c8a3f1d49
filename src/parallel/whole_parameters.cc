#include "parallel/whole_parameters.h"

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "module/tensors.h"

#include <lockstep/dispatch/deferral.h>
#include <lockstep/dispatch/part.h>

#include <cstdint>

namespace lockstep::parallel {

// Parts of tensor parallelism lie in such storages too, which nobody takes away.
void check_not_sharded(const std::vector<NamedParameter>& parameters, std::string_view strategy) {
  for (const auto& [name, tensor, aliases] : parameters) {
    const bool is_part = dispatch::part_of(tensor) != nullptr && dispatch::has_memory(tensor);
    check(!dispatch::is_lazy(tensor) || dispatch::is_deferred(tensor) || is_part,
          "{}: {} is divided by fully_shard(), whose handle trains it", strategy, name);
  }
}

std::vector<NamedPart> whole_parts(const std::vector<NamedParameter>& parameters) {
  std::vector<NamedPart> list;
  for (const auto& [name, tensor, aliases] : parameters)
    list.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return list;
}

void zero_gradient(const at::Tensor& parameter, bool set_to_none) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none) {
    gradient.reset();
  } else {
    gradient = gradient.detach();
    gradient.zero_();
  }
}

HandleMemory memory_of(const std::vector<NamedPart>& parameters) {
  HandleMemory memory;
  for (const NamedPart& part : parameters) {
    const auto bytes = static_cast<std::int64_t>(part.tensor.nbytes());
    (part.slice.is_whole() ? memory.whole : memory.shards) += bytes;
    if (const at::Tensor& gradient = part.tensor.grad(); gradient.defined())
      memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
  }
  return memory;
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
