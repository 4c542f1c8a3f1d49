#include <lockstep/models/names.h>

#include <lockstep/base/error.h>
#include <lockstep/base/visible.h>

#include <torch/nn/module.h>

#include <set>
#include <string_view>

namespace lockstep::models {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

void collect(const torch::nn::Module& module, const std::string& prefix,
             std::vector<NamedTensor>& tensors, std::vector<Alias>& aliases) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tensors.push_back({joined(prefix, item.key()), item.value().detach()});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    tensors.push_back({joined(prefix, item.key()), item.value().detach()});
  }
  for (const auto& item : module.named_children()) {
    collect(*item.value(), joined(prefix, item.key()), tensors, aliases);
  }
  const auto* tied = dynamic_cast<const HasAliases*>(&module);
  if (tied == nullptr) return;
  for (const Alias& alias : tied->aliases()) {
    const std::string registered = joined(prefix, alias.registered);
    for (std::size_t i = 0, count = tensors.size(); i < count; ++i) {
      if (tensors[i].name == registered)
        tensors.push_back({joined(prefix, alias.name), tensors[i].tensor});
    }
    aliases.push_back({joined(prefix, alias.name), registered});
  }
}

[[noreturn]] void refuse(const std::string& what) { throw BadInput("loading a model: " + what); }

// One tensor of the module, and what is to be written into it under which of its names.
struct Assignment {
  at::Tensor to;
  at::Tensor from;
  std::string from_name;
};

void check_shape(const std::string& name, const at::Tensor& expected, const at::Tensor& found) {
  if (expected.sizes() == found.sizes()) return;
  refuse(c10::str(visible(name), ": expected shape ", expected.sizes(), ", found ", found.sizes()));
}

}  // namespace

std::vector<NamedTensor> exported(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  std::vector<Alias> aliases;
  collect(module, "", tensors, aliases);
  return tensors;
}

std::vector<Alias> aliases_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  std::vector<Alias> aliases;
  collect(module, "", tensors, aliases);
  return aliases;
}

void load_exported(torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, std::string> registered_of;
  for (const Alias& alias : aliases_of(module)) registered_of[alias.name] = alias.registered;

  std::map<std::string, Assignment> by_registered;
  std::set<std::string> known;
  for (const NamedTensor& own : exported(module)) {
    known.insert(own.name);
    auto alias = registered_of.find(own.name);
    const std::string& registered = alias == registered_of.end() ? own.name : alias->second;
    Assignment& assignment =
        by_registered.try_emplace(registered, Assignment{own.tensor, {}, {}}).first->second;
    auto given = tensors.find(own.name);
    if (given == tensors.end()) continue;
    check_shape(own.name, own.tensor, given->second);
    at::Tensor converted = given->second.detach().to(own.tensor.options());
    if (assignment.from.defined() && !assignment.from.equal(converted)) {
      refuse(visible(own.name) + " is tied to " + visible(assignment.from_name) +
             ": expected equal values, found different ones");
    }
    assignment.from = std::move(converted);
    assignment.from_name = own.name;
  }
  for (const auto& [name, assignment] : by_registered) {
    if (!assignment.from.defined())
      refuse("expected a tensor named " + visible(name) + ", found none");
  }
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name))
      refuse("found a tensor named " + visible(name) + " that the model does not have");
  }
  for (auto& [name, assignment] : by_registered) assignment.to.copy_(assignment.from);
}

}  // namespace lockstep::models
