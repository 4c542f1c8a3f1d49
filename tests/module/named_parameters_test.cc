#include <lockstep/module/named_parameters.h>

#include "module/tensors.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace lockstep {
namespace {

struct Head : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  void tie(const at::Tensor& to) { parameters_["weight"] = weight = to; }
};

struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_module("embedding", torch::nn::Embedding(10, 4));
    head = register_module("head", std::make_shared<Head>(torch::nn::LinearOptions(4, 10)));
    head->tie(embedding->weight);
  }
  torch::nn::Embedding embedding{nullptr};
  std::shared_ptr<Head> head;
};

TEST(NamedParameters, ListsATiedWeightOnce) {
  Tied model;
  ASSERT_EQ(model.parameters().size(), 3U);
  auto parameters = unique_parameters(model);
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0].name, "embedding.weight");
  EXPECT_EQ(parameters[0].aliases, std::vector<std::string>{"head.weight"});
  EXPECT_EQ(parameters[1].name, "head.bias");
  EXPECT_TRUE(parameters[1].aliases.empty());
}

TEST(NamedParameters, LayOutFlat) {
  Tied model;
  std::vector<layout::TensorSpec> specs;
  for (const auto& parameter : unique_parameters(model))
    specs.push_back(modules::spec_of(parameter));
  layout::FlatLayout layout(specs, {.alignment = 4});
  EXPECT_EQ(layout.numel(), 50);
  EXPECT_EQ(layout.entry(1).name, "head.bias");
}

}  // namespace
}  // namespace lockstep
