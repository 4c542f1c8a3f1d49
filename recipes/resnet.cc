// A ResNet-18 on any mesh of pipeline, data and sharded data parallelism, with activation
// checkpointing. Its convolutions are not worth cutting by tensor parallelism:
// the axis tp is left out. Each rank's batch normalisation uses its own rows' statistics.
//
//   lockstep run -n 4 build/release/examples/recipe_resnet pp=2,fsdp=2
//   lockstep run -n 2 build/release/examples/recipe_resnet dp=2 40
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace ls = lockstep;

constexpr std::array<std::string_view, 3> axes = {"pp", "dp", "fsdp"};

// What forward() computes, step by step, and the modules that each step takes.
std::vector<ls::ModelPiece> pieces_of(const ls::models::ResNet18& model) {
  auto net = model.ptr();
  std::vector<ls::ModelPiece> pieces;
  pieces.push_back({"stem", {"conv1", "bn1"}, [net](const ls::Tensors& x) {
                      return ls::Tensors{torch::relu(net->bn1(net->conv1(x[0])))};
                    }});
  const std::vector<std::pair<std::string, torch::nn::Sequential>> layers = {
      {"layer1", net->layer1},
      {"layer2", net->layer2},
      {"layer3", net->layer3},
      {"layer4", net->layer4}};
  for (const auto& [name, layer] : layers)
    pieces.push_back({name, {name}, [layer = layer](const ls::Tensors& x) {
                        auto own = layer;
                        return ls::Tensors{own->forward(x[0])};
                      }});
  pieces.push_back({"head", {"fc"}, [net](const ls::Tensors& x) {
                      return ls::Tensors{net->fc(x[0].mean({2, 3}))};
                    }});
  return pieces;
}

// Stripes, as wide as the class says.
std::pair<at::Tensor, at::Tensor> batch_of(int step, const ls::Mesh& mesh) {
  const int data = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
  const at::Tensor classes = (torch::arange(16) + step + data) % 4;
  const at::Tensor wave = torch::arange(16).view({1, 1, 1, 16}) / (classes + 1).view({16, 1, 1, 1});
  return {torch::sin(2 * wave + step).expand({16, 3, 16, 16}).contiguous(), classes};
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const auto given = ls::parse_axes(argc > 1 ? argv[1] : "dp=-1");
  const int steps = argc > 2 ? std::stoi(argv[2]) : 30;
  const ls::Mesh mesh(world, ls::all_axes(given, axes));
  torch::manual_seed(1);

  ls::models::ResNet18 model(
      ls::models::ResNetOptions{.classes = 4, .cifar_stem = true, .width = 8});
  ls::checkpoint_activations(*model, "layer*.*");
  const auto pieces = pieces_of(model);
  const auto stages = ls::split(*model, pieces, ls::even_points(pieces, mesh.size("pp")));
  const auto schedule =
      ls::plan::make_schedule("1f1b", {.stages = mesh.size("pp"), .micro_batches = 2});
  const auto sharded = [&](torch::nn::Module& stage) -> ls::Handle {
    const std::vector<ls::UnitRule> units = {"layer*.*"};
    return ls::fully_shard(stage, mesh[{"dp", "fsdp"}],
                           {.units = ls::stage_units(units, *model, stage)});
  };
  const auto loss = [](const ls::Tensors& logits, const ls::Tensors& classes) {
    return torch::cross_entropy_loss(logits[0], classes[0]);
  };
  ls::Pipeline pipeline(stages, schedule, mesh["pp"], loss,
                        {.strategy = sharded, .all_ranks = mesh.group()});
  ls::optim::SGD sgd(pipeline.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const auto [images, classes] = batch_of(step, mesh);
    pipeline.zero_grad();
    last = pipeline.step({images}, {classes}).item<double>();
    sgd.step();
    if (step == 0) first = last;
  }
  if (world.is_root()) std::printf("loss %.3f, then %.3f\n", first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
