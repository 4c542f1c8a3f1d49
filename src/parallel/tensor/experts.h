// Separates the experts of a model's mixtures (lockstep/models/mixture.h) from its other tensors.
#pragma once

#include "parallel/tensor/token_exchange.h"

#include <lockstep/models/mixture.h>
#include <lockstep/parallel/tensor/plan.h>

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

struct NamedMixture {
  std::string name;  // "" for the module itself
  models::MixtureImpl* mixture = nullptr;
};

[[nodiscard]] std::vector<NamedMixture> mixtures_of(torch::nn::Module& module);

// Modules with the same tensors, under the same names.
struct SeparateTensors {
  std::shared_ptr<torch::nn::Module> rest;
  std::shared_ptr<torch::nn::Module> experts;  // null for a module without mixtures
};

// Not collective; changes nothing.
[[nodiscard]] SeparateTensors separate_experts(torch::nn::Module& module);

// Not collective. Shards the list of experts; each expert is whole on one rank.
[[nodiscard]] TensorPlan plan_of_experts(const torch::nn::Module& experts);

// Not collective. Makes the mixtures of `module` send tokens to the ranks that own their experts.
// `sent` counts the tokens.
void exchange_tokens(torch::nn::Module& module, const TokenExchange::Meshes& meshes,
                     const std::shared_ptr<TokenExchange::Sent>& sent);

}  // namespace lockstep::tensor_parallel
