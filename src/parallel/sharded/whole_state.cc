#include "parallel/sharded/whole_state.h"

#include <lockstep/base/check.h>
#include <lockstep/models/names.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace lockstep::sharded {
namespace {

struct Named {
  std::vector<std::string> names;
  at::Tensor tensor;  // the module's
};

// The module's tensors, each once, with every name it has in files.
std::vector<Named> all_of(const torch::nn::Module& module) {
  std::vector<Named> all;
  auto add = [&](const std::string& name, const at::Tensor& tensor) {
    auto same =
        std::ranges::find_if(all, [&](const Named& one) { return one.tensor.is_same(tensor); });
    if (same == all.end()) {
      all.push_back({{name}, tensor});
    } else {
      same->names.push_back(name);
    }
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  for (const models::Alias& alias : models::aliases_of(module))
    for (Named& one : all)
      if (std::ranges::find(one.names, alias.registered) != one.names.end())
        one.names.push_back(alias.name);
  return all;
}

at::Tensor chosen(const Named& own, const std::map<std::string, at::Tensor>& tensors) {
  at::Tensor values;
  std::string from;
  for (const std::string& name : own.names) {
    auto given = tensors.find(name);
    if (given == tensors.end()) continue;
    check_input(given->second.sizes() == own.tensor.sizes(),
                "loading a model: {}: expected shape [{}], found [{}]", name,
                listed(own.tensor.sizes(), ", "), listed(given->second.sizes(), ", "));
    check_input(!values.defined() || values.equal(given->second),
                "loading a model: {} is tied to {}: expected equal values, found different ones",
                name, from);
    values = given->second.detach();
    from = name;
  }
  check_input(values.defined(), "loading a model: expected a tensor named {}, found none",
              own.names.front());
  return values;
}

}  // namespace

std::map<std::string, at::Tensor> named_values(const torch::nn::Module& module,
                                               const std::map<const void*, at::Tensor>& values) {
  std::map<std::string, at::Tensor> named;
  for (const Named& one : all_of(module)) {
    auto found = values.find(one.tensor.unsafeGetTensorImpl());
    at::Tensor tensor = found == values.end() ? one.tensor.detach().clone() : found->second;
    for (const std::string& name : one.names) named[name] = tensor;
  }
  return named;
}

std::vector<Assignment> assignments_of(const torch::nn::Module& module,
                                       const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Assignment> assignments;
  std::vector<std::string> known;
  for (const Named& one : all_of(module)) {
    assignments.push_back({one.tensor, chosen(one, tensors)});
    known.insert(known.end(), one.names.begin(), one.names.end());
  }
  for (const auto& [name, tensor] : tensors)
    check_input(std::ranges::find(known, name) != known.end(),
                "loading a model: found a tensor named {} that the model does not have", name);
  return assignments;
}

}  // namespace lockstep::sharded
