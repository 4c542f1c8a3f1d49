#include "parallel/tensor/experts.h"

#include "module/tensors.h"
#include "parallel/tensor/module_of_parts.h"

#include <set>
#include <utility>

namespace lockstep::tensor_parallel {

std::vector<NamedMixture> mixtures_of(torch::nn::Module& module) {
  std::vector<NamedMixture> found;
  // A module that no pointer owns cannot be among those that named_modules() lists.
  if (auto* mixture = module.as<models::MixtureImpl>()) found.push_back({"", mixture});
  for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
    if (auto* mixture = item.value()->as<models::MixtureImpl>())
      found.push_back({item.key(), mixture});
  return found;
}

SeparateTensors separate_experts(torch::nn::Module& module) {
  std::set<const at::TensorImpl*> of_experts;
  for (const NamedMixture& one : mixtures_of(module))
    for (const at::Tensor& weight : {one.mixture->up, one.mixture->down})
      of_experts.insert(weight.unsafeGetTensorImpl());
  std::vector<Part> rest, experts;
  const auto add = [&](Part part) {
    const bool is_of_expert = of_experts.contains(part.tensor.unsafeGetTensorImpl());
    (is_of_expert ? experts : rest).push_back(std::move(part));
  };
  const modules::ModuleTensors tensors = modules::tensors_of(module);
  for (const auto& [name, tensor, aliases] : tensors.parameters)
    add({.name = name, .tensor = tensor, .aliases = aliases});
  for (const auto& [name, tensor] : tensors.buffers)
    add({.name = name, .tensor = tensor, .kind = PartKind::buffer});
  return {.rest = module_of_parts(rest),
          .experts = experts.empty() ? nullptr : module_of_parts(experts)};
}

TensorPlan plan_of_experts(const torch::nn::Module& experts) {
  TensorPlan plan;
  for (const NamedParameter& one : unique_parameters(experts))
    plan.emplace_back(one.name, Vocabulary());
  return plan;
}

void exchange_tokens(torch::nn::Module& module, const TokenExchange::Meshes& meshes,
                     const std::shared_ptr<TokenExchange::Sent>& sent) {
  for (const auto& [name, mixture] : mixtures_of(module))
    mixture->set_exchange(std::make_shared<TokenExchange>(meshes, name, sent));
}

}  // namespace lockstep::tensor_parallel
