// A Gpt with mixtures of experts on a mesh of data and expert parallelism. Experts are cut over the
// ranks of ep; what is no expert, and the experts of each place on ep, are copies that average
// gradients. A run that finds a checkpoint in its folder goes on from it, on any mesh.
//
//   lockstep run -n 4 build/release/examples/recipe_moe dp=2,ep=2
//   lockstep run -n 4 build/release/examples/recipe_moe ep=4 300 runs/moe
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

ls::models::MoeOptions shape() {
  ls::models::MoeOptions options{
      .gpt = {.layers = 2, .heads = 4, .width = 64, .block = 16, .vocabulary = 50}};
  options.mixture.experts = 8;
  options.mixture.chosen = 2;
  options.mixture.capacity_factor = 1.5;
  return options;
}

// Counting from anywhere: rows of 17 tokens, others on each rank.
at::Tensor batch_of(int step, const ls::Group& world) {
  const at::Tensor begin = torch::arange(8).view({8, 1}) * 5 + step + 3 * world.rank();
  return (begin + torch::arange(17)) % 50;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "ep=-1"));
  const int steps = argc > 2 ? std::stoi(argv[2]) : 150;
  const std::string folder = argc > 3 ? argv[3] : "";
  torch::manual_seed(1);

  ls::models::Moe model(shape());
  auto moe = ls::expert_parallel(model.ptr(), mesh,
                                 {.strategy = [](torch::nn::Module& part, const ls::Mesh& ranks) {
                                   return ls::DistributedDataParallel(part, ranks);
                                 }});
  ls::optim::AdamW adamw(moe.parameters(), torch::optim::AdamWOptions(0.003));
  int step = 0;
  if (!folder.empty())
    if (const auto found = ls::checkpoint::load_latest(folder, moe, adamw))
      step = static_cast<int>(found->step);

  double first = 0, last = 0;
  for (; step < steps; ++step) {
    const at::Tensor rows = batch_of(step, world);
    moe.zero_grad();
    at::Tensor loss = model->loss(rows.narrow(1, 0, 16), rows.narrow(1, 1, 16));
    loss.backward();
    moe.clip_grad_norm(1.0);
    adamw.step();
    last = loss.item<double>();
    if (first == 0) first = last;
  }
  if (!folder.empty()) ls::checkpoint::save(folder, moe, adamw, {.step = steps});
  const ls::HandleMemory memory = moe.memory();
  if (world.is_root())
    std::printf("rank 0 keeps %lld bytes of parameters; loss %.3f, then %.3f\n",
                static_cast<long long>(memory.shards + memory.whole), first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
