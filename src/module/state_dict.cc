#include <lockstep/module/state_dict.h>

#include "base/check.h"
#include "base/escaped.h"
#include "module/tensors.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace lockstep::modules {

at::Tensor values_for(std::span<const std::string> names, at::IntArrayRef sizes,
                      const std::map<std::string, at::Tensor>& tensors) {
  at::Tensor values;
  std::string_view from;
  for (const std::string& name : names) {
    auto given = tensors.find(name);
    if (given == tensors.end()) continue;
    if (given->second.sizes() != sizes)
      throw BadInput(formatted("loading a model: {}: expected shape [{}], found [{}]",
                               escaped(name), listed(sizes, ", "),
                               listed(given->second.sizes(), ", ")));
    if (values.defined() && !have_equal_values(values, given->second.to(values.options())))
      throw BadInput(formatted(
          "loading a model: {} is tied to {}: expected equal values, found different ones",
          escaped(name), escaped(from)));
    values = given->second.detach();
    from = name;
  }
  if (!values.defined())
    throw BadInput(formatted("loading a model: expected a tensor named {}, found none",
                             escaped(names.front())));
  return values;
}

std::vector<NamedParameter> state_entries(const torch::nn::Module& module) {
  std::vector<NamedParameter> entries;
  std::unordered_map<const void*, std::size_t> seen;
  for (const NamedTensor& item : own_tensors(module)) {
    auto [found, is_new] = seen.emplace(item.tensor.unsafeGetTensorImpl(), entries.size());
    if (is_new) {
      entries.push_back({item.name, item.tensor, {}});
    } else {
      entries[found->second].aliases.push_back(item.name);
    }
  }
  return entries;
}

}  // namespace lockstep::modules

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
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  std::set<std::string> known;
  for (const NamedParameter& entry : modules::state_entries(module)) {
    const std::vector<std::string> names = modules::names_of(entry);
    copies.emplace_back(entry.tensor, modules::values_for(names, entry.tensor.sizes(), tensors));
    known.insert(names.begin(), names.end());
  }
  for (const auto& [name, tensor] : tensors)
    if (!known.contains(name))
      throw BadInput(formatted(
          "loading a model: found a tensor named {} that the model does not have", escaped(name)));
  for (const auto& [to, from] : copies) to.detach().copy_(from);
}

}  // namespace lockstep
