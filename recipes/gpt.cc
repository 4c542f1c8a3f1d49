// A GPT on any mesh of pp, dp, cp, fsdp and tp, with activation checkpointing. An axis that is left
// out has one rank.
//
//   lockstep run -n 8 build/release/examples/recipe_gpt pp=2,fsdp=2,tp=2
//   lockstep run -n 4 build/release/examples/recipe_gpt dp=2,tp=2 200
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::parse_axes(argc > 1 ? argv[1] : "dp=-1"));
  const int steps = argc > 2 ? std::stoi(argv[2]) : 60;
  torch::manual_seed(1);
  const ls::models::GptOptions shape{
      .layers = 4, .heads = 4, .width = 64, .block = 16, .vocabulary = 50};
  auto model = ls::deferred([&] { return ls::models::Gpt(shape); });
  ls::ParallelModel gpt = ls::parallelize(
      model, mesh, {.activation_checkpointing = {"transformer.h.*"}, .micro_batches = 4});
  ls::optim::AdamW adamw(gpt.parameters(), 3e-3);
  ls::Group data = gpt.data();

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    // Counting from anywhere: 32 rows, of which each rank of data() takes its own.
    const at::Tensor batch = (torch::arange(32).view({32, 1}) * 5 + step + torch::arange(17)) % 50;
    const at::Tensor rows = batch.tensor_split(data.size())[data.rank()];
    gpt.zero_grad();
    last = gpt.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)}).item<double>();
    gpt.clip_grad_norm(1.0);
    adamw.step();
    if (step == 0) first = last;
  }
  const ls::HandleMemory memory = gpt.memory();
  if (world.is_root())
    std::printf("rank 0 keeps %lld bytes of parameters; loss %.3f, then %.3f\n",
                static_cast<long long>(memory.shards + memory.whole), first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
