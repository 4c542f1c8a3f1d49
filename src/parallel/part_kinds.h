// Of which kind each of a module's tensors is, for state_parts() (lockstep/parallel/handle.h).
#pragma once

#include "module/state_entries.h"
#include "module/tensors.h"

#include <lockstep/parallel/handle.h>

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::parallel {

class PartKinds {
 public:
  PartKinds(const torch::nn::Module& module, std::span<const std::string> ignored) {
    modules::ModuleTensors tensors = modules::tensors_of(module, ignored);
    for (const auto& buffer : tensors.buffers) add(buffer.tensor, PartKind::buffer);
    for (const at::Tensor& tensor : tensors.ignored) add(tensor, PartKind::ignored);
  }

  // All of one of the module's tensors, without gradient.
  [[nodiscard]] NamedPart whole_part(const modules::StateEntry& entry) const {
    auto found = kinds_.find(entry.tensor.unsafeGetTensorImpl());
    return {entry.names.front(),
            entry.tensor.detach(),
            {entry.names.begin() + 1, entry.names.end()},
            layout::whole_slice(entry.tensor.sizes()),
            found == kinds_.end() ? PartKind::parameter : found->second};
  }

 private:
  void add(const at::Tensor& tensor, PartKind kind) {
    kinds_.emplace(tensor.unsafeGetTensorImpl(), kind);
  }

  std::unordered_map<const void*, PartKind> kinds_;  // of those that are not a plain parameter
};

// state_parts() of a strategy whose ranks have all of the module.
[[nodiscard]] inline std::vector<NamedPart> whole_state_parts(
    const torch::nn::Module& module, std::span<const std::string> ignored = {}) {
  const PartKinds kinds(module, ignored);
  std::vector<NamedPart> list;
  for (const modules::StateEntry& entry : modules::state_entries(module))
    if (!entry.tensor.is_nested()) list.push_back(kinds.whole_part(entry));
  return list;
}

}  // namespace lockstep::parallel
