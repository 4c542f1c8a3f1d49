#include <lockstep/module/state_dict.h>

#include "module/state_entries.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

struct Names {
  std::vector<NamedTensor> tensors;
  std::vector<Alias> aliases;
};

void collect(const torch::nn::Module& module, const std::string& prefix, Names& names) {
  auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) names.tensors.push_back({joined(prefix, name), tensor});
  };
  for (const auto& item : module.named_parameters(/*recurse=*/false)) add(item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false)) add(item.key(), item.value());
  for (const auto& item : module.named_children())
    collect(*item.value(), joined(prefix, item.key()), names);
  const auto* tied = dynamic_cast<const HasAliases*>(&module);
  if (tied == nullptr) return;
  for (const Alias& alias : tied->aliases()) {
    const std::string registered = joined(prefix, alias.registered);
    for (std::size_t i = 0, count = names.tensors.size(); i < count; ++i)
      if (names.tensors[i].name == registered) add(alias.name, names.tensors[i].tensor);
    names.aliases.push_back({joined(prefix, alias.name), registered});
  }
}

Names names_in(const torch::nn::Module& module) {
  Names names;
  collect(module, "", names);
  return names;
}

}  // namespace

std::vector<NamedTensor> modules::own_tensors(const torch::nn::Module& module) {
  return names_in(module).tensors;
}

std::vector<Alias> aliases_of(const torch::nn::Module& module) { return names_in(module).aliases; }

std::vector<NamedTensor> named_tensors(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors = modules::own_tensors(module);
  for (NamedTensor& item : tensors) item.tensor = item.tensor.detach();
  return tensors;
}

std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (NamedTensor& item : named_tensors(module))
    tensors.emplace(std::move(item.name), std::move(item.tensor));
  return tensors;
}

void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  for (const auto& [tensor, values] : modules::assignments_of(module, tensors))
    tensor.detach().copy_(values);
}

}  // namespace lockstep
