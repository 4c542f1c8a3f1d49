// PartOfModel: some modules, parameters and buffers of a model, each under the name that it has
// there.
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

  void add_module(const std::string& path, std::shared_ptr<torch::nn::Module> module);
  void add_parameter(const std::string& path, const at::Tensor& tensor);
  void add_buffer(const std::string& path, const at::Tensor& tensor);

  void set_aliases(std::vector<Alias> aliases) { aliases_ = std::move(aliases); }
  [[nodiscard]] std::vector<Alias> aliases() const override { return aliases_; }

 private:
  // The module that is around what `path` names; made where it is missing.
  torch::nn::Module& around(const std::string& path);

  std::vector<Alias> aliases_;
};

// Everything that the modules have, each name once: names that two of them have are of the same
// tensor.
[[nodiscard]] std::shared_ptr<PartOfModel> merged(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace lockstep::pipeline
