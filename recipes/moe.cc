// A Gpt with mixtures of experts on any mesh of all six axes, with activation checkpointing. An axis
// that is left out has one rank. A run that finds a checkpoint in its folder goes on from it, on
// any mesh with as many stages.
//
//   lockstep run -n 4 build/release/examples/recipe_moe dp=2,ep=2
//   lockstep run -n 8 build/release/examples/recipe_moe pp=2,ep=2,tp=2 300 runs/moe
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "ep=-1"));
  const int steps = argc > 2 ? std::stoi(argv[2]) : 60;
  const std::string folder = argc > 3 ? argv[3] : "";
  torch::manual_seed(1);
  ls::models::MoeOptions shape{
      .gpt = {.layers = 2, .heads = 4, .width = 64, .block = 16, .vocabulary = 50}};
  shape.mixture.experts = 8;
  shape.mixture.chosen = 2;
  shape.mixture.capacity_factor = 1.5;

  auto model = ls::deferred([&] { return ls::models::Moe(shape); });
  ls::ParallelModel moe = ls::parallelize(
      model, mesh, {.activation_checkpointing = {"transformer.h.*"}, .micro_batches = 4});
  ls::optim::AdamW adamw(moe.parameters(), 3e-3);
  ls::Group data = moe.data();
  int begun = 0;
  if (!folder.empty())
    if (const auto found = ls::checkpoint::load_latest(folder, moe, adamw))
      begun = static_cast<int>(found->step);
  if (begun >= steps) {
    if (world.is_root()) std::printf("%s: all %d steps are made\n", folder.c_str(), begun);
    return 0;
  }

  double first = 0, last = 0;
  for (int step = begun; step < steps; ++step) {
    // Counting from anywhere: 32 rows, of which each rank of data() takes its own.
    const at::Tensor batch = (torch::arange(32).view({32, 1}) * 5 + step + torch::arange(17)) % 50;
    const at::Tensor rows = batch.tensor_split(data.size())[data.rank()];
    moe.zero_grad();
    last = moe.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)}).item<double>();
    moe.clip_grad_norm(1.0);
    adamw.step();
    if (step == begun) first = last;
  }
  if (!folder.empty()) ls::checkpoint::save(folder, moe, adamw, {.step = steps});
  const ls::HandleMemory memory = moe.memory();
  if (world.is_root())
    std::printf("rank 0 keeps %lld bytes of parameters; loss %.3f, then %.3f\n",
                static_cast<long long>(memory.shards + memory.whole), first, last);
  // A run that goes on begins with a loss that has fallen already.
  return begun > 0 || last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
