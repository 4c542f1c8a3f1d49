// A ResNet-18 on any mesh of pp, dp and fsdp, with activation checkpointing. Each rank's batch
// normalization uses its own rows' statistics.
//
//   lockstep run -n 4 build/release/examples/recipe_resnet pp=2,fsdp=2
//   lockstep run -n 2 build/release/examples/recipe_resnet dp=2 40
#include "recipe.h"

// Images of stripes; the class determines the width of the stripes.
std::pair<at::Tensor, at::Tensor> stripes(int step) {
  const at::Tensor classes = (torch::arange(32) + step) % 4;
  const at::Tensor wave = torch::arange(16).view({1, 1, 1, 16}) / (classes + 1).view({-1, 1, 1, 1});
  return {torch::sin(2 * wave + step).expand({-1, 3, 16, 16}).contiguous(), classes};
}

int train(const lockstep::Mesh& ranks, const recipe::Arguments& given) {
  lockstep::models::ResNet18 model(
      lockstep::models::ResNetOptions{.classes = 4, .cifar_stem = true, .width = 8});
  auto resnet = lockstep::parallelize(
      model, ranks, {.activation_checkpointing = {"layer*.*"}, .micro_batches = 2});
  lockstep::optim::SGD sgd(resnet.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  return recipe::train(resnet, sgd, given.steps, stripes);
}

int main(int argc, char** argv) { return recipe::run(argc, argv, {.steps = 30}, train); }
