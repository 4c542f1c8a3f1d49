// A GPT on any mesh of pipeline, data, sharded and tensor parallelism. The pipeline cuts the model
// into stages; of each stage a rank gets its part of tensor parallelism, which is sharded.
// Activation checkpointing may be set up before or after. An axis that is left out has one rank.
//
//   lockstep run -n 8 build/release/examples/recipe_gpt pp=2,fsdp=2,tp=2
//   lockstep run -n 4 build/release/examples/recipe_gpt dp=2,tp=2 200
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace ls = lockstep;

constexpr std::array<std::string_view, 4> axes = {"pp", "dp", "fsdp", "tp"};
const ls::models::GptOptions shape{
    .layers = 4, .heads = 4, .width = 64, .block = 16, .vocabulary = 50};

// This rank's part of a stage: of each layer what tp gives it, of that what fsdp gives it.
ls::Handle parallel(const ls::models::Gpt& model, torch::nn::Module& stage, const ls::Mesh& mesh) {
  const std::vector<ls::UnitRule> units = {"transformer.h.*", "transformer.wte"};
  const auto sharded = [=](torch::nn::Module& parts) -> ls::Handle {
    return ls::fully_shard(parts, mesh[{"dp", "fsdp"}],
                           {.units = ls::stage_units(units, *model, parts)});
  };
  const ls::TensorPlan plan = ls::stage_plan(ls::gpt_tensor_plan(shape), *model, stage);
  return ls::parallelize(stage, mesh["tp"], plan,
                         {.strategy = sharded, .mesh = mesh[{"dp", "fsdp", "tp"}]});
}

// Counting from anywhere: rows of 17 tokens, others on each rank of dp and fsdp.
at::Tensor batch_of(int step, const ls::Mesh& mesh) {
  const int data = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
  const at::Tensor begin = torch::arange(8).view({8, 1}) * 5 + step + 3 * data;
  return (begin + torch::arange(17)) % 50;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const auto given = ls::parse_axes(argc > 1 ? argv[1] : "dp=-1");
  const int steps = argc > 2 ? std::stoi(argv[2]) : 60;
  const ls::Mesh mesh(world, ls::all_axes(given, axes));
  torch::manual_seed(1);

  auto model = ls::deferred([] { return ls::models::Gpt(shape); });
  ls::checkpoint_activations(*model, "transformer.h.*");
  const auto pieces = ls::pieces_of(model);
  const auto stages = ls::split(*model, pieces, ls::even_points(pieces, mesh.size("pp")));
  const auto schedule =
      ls::plan::make_schedule("1f1b", {.stages = mesh.size("pp"), .micro_batches = 4});
  ls::Pipeline pipeline(
      stages, schedule, mesh["pp"], ls::token_loss,
      {.strategy = [&](torch::nn::Module& stage) { return parallel(model, stage, mesh); },
       .all_ranks = mesh.group()});
  ls::optim::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(0.003));

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor rows = batch_of(step, mesh);
    pipeline.zero_grad();
    last = pipeline.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)}).item<double>();
    pipeline.clip_grad_norm(1.0);
    adamw.step();
    if (step == 0) first = last;
  }
  const ls::HandleMemory memory = pipeline.memory();
  if (world.is_root())
    std::printf("rank 0 keeps %lld bytes of parameters; loss %.3f, then %.3f\n",
                static_cast<long long>(memory.shards + memory.whole), first, last);
  return last < first / 2 ? 0 : 1;
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
