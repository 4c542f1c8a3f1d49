// PartOfModel: some modules, parameters and buffers of a model, each under its name in the model.
#pragma once

#include <lockstep/module/state_dict.h>

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::pipeline {

class PartOfModel final : public torch::nn::Module, public HasAliases {
 public:
  PartOfModel() : torch::nn::Module("Stage") {}

  void set_aliases(std::vector<Alias> aliases) { aliases_ = std::move(aliases); }
  [[nodiscard]] std::vector<Alias> aliases() const override { return aliases_; }

 private:
  std::vector<Alias> aliases_;
};

// Returns a module with all members of the given modules, each name once: the same name must be the
// same tensor.
[[nodiscard]] std::shared_ptr<PartOfModel> merged(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace lockstep::pipeline
