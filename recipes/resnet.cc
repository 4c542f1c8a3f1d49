// A ResNet-18 on any mesh of pp, dp and fsdp, with activation checkpointing. Each rank's batch
// normalization uses its own rows' statistics.
//
//   lockstep run -n 4 build/release/examples/recipe_resnet pp=2,fsdp=2
//   lockstep run -n 2 build/release/examples/recipe_resnet dp=2 40
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "dp=-1"));
  const int steps = argc > 2 ? std::stoi(argv[2]) : 30;
  torch::manual_seed(1);
  ls::models::ResNet18 model(
      ls::models::ResNetOptions{.classes = 4, .cifar_stem = true, .width = 8});
  ls::ParallelModel resnet =
      ls::parallelize(model, mesh, {.activation_checkpointing = {"layer*.*"}, .micro_batches = 2});
  ls::optim::SGD sgd(resnet.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ls::Group data = resnet.data();

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    // Stripes, as wide as the class says: 32 images, of which each rank of data() takes its own.
    const at::Tensor classes =
        ((torch::arange(32) + step) % 4).tensor_split(data.size())[data.rank()];
    const at::Tensor wave =
        torch::arange(16).view({1, 1, 1, 16}) / (classes + 1).view({-1, 1, 1, 1});
    const at::Tensor images = torch::sin(2 * wave + step).expand({-1, 3, 16, 16}).contiguous();
    resnet.zero_grad();
    last = resnet.step({images}, {classes}).item<double>();
    sgd.step();
    if (step == 0) first = last;
  }
  if (world.is_root()) std::printf("loss %.3f, then %.3f\n", first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
