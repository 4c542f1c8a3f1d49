// A Gpt with mixtures of experts on any mesh of all six axes: what each rank has is made in one
// order, expert parallelism (with it tensor and context parallelism), activation checkpointing,
// sharding, pipeline. An axis that is left out has one rank. A run that finds a checkpoint in its
// folder goes on from it, on any mesh with as many stages.
//
//   lockstep run -n 4 build/release/examples/recipe_moe dp=2,ep=2
//   lockstep run -n 8 build/release/examples/recipe_moe pp=2,ep=2,tp=2 300 runs/moe
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace ls = lockstep;

constexpr std::array<std::string_view, 6> axes = {"pp", "dp", "ep", "cp", "fsdp", "tp"};

ls::models::MoeOptions shape() {
  ls::models::MoeOptions options{
      .gpt = {.layers = 2, .heads = 4, .width = 64, .block = 16, .vocabulary = 50}};
  options.mixture.experts = 8;
  options.mixture.chosen = 2;
  options.mixture.capacity_factor = 1.5;
  return options;
}

// This rank's part of a stage: its experts, and of all else what tp and cp give it; of both what
// fsdp gives it, where ranks of all other axes have copies.
ls::Handle parallel(const ls::models::Moe& model, torch::nn::Module& stage, const ls::Mesh& mesh) {
  const auto sharded = [=](torch::nn::Module& part, const ls::Mesh& ranks) -> ls::Handle {
    const std::vector<ls::UnitRule> units = {"transformer.h.*", "transformer.wte"};
    return ls::fully_shard(part, {ranks.group(), {{"dp", -1}, {"fsdp", mesh.size("fsdp")}}},
                           {.units = ls::stage_units(units, *model, part)});
  };
  return ls::expert_parallel(stage, mesh[{"dp", "ep", "cp", "fsdp", "tp"}],
                             {.strategy = sharded,
                              .plan = ls::stage_plan(ls::moe_tensor_plan(shape()), *model, stage),
                              .is_stage = true,
                              .tensors = mesh[{"tp", "cp"}]});
}

// Counting from anywhere: rows of 17 tokens, others on each rank of dp, ep and fsdp.
at::Tensor batch_of(int step, const ls::Mesh& mesh) {
  const int of_copy = mesh.coordinate("dp") * mesh.size("ep") + mesh.coordinate("ep");
  const int data = of_copy * mesh.size("fsdp") + mesh.coordinate("fsdp");
  const at::Tensor begin = torch::arange(8).view({8, 1}) * 5 + step + 3 * data;
  return (begin + torch::arange(17)) % 50;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, ls::all_axes(ls::parse_axes(argc > 1 ? argv[1] : "ep=-1"), axes));
  const int steps = argc > 2 ? std::stoi(argv[2]) : 60, parts = mesh.size("pp");
  const std::string folder = argc > 3 ? argv[3] : "";
  torch::manual_seed(1);

  auto model = ls::deferred([] { return ls::models::Moe(shape()); });
  ls::checkpoint_activations(*model, "transformer.h.*");
  const auto pieces = ls::pieces_of(model);
  const ls::CutSequences cut(mesh[{"tp", "cp"}]);
  const auto stages = cut.stages(ls::split(*model, pieces, ls::even_points(pieces, parts)));
  ls::Pipeline moe(
      stages, ls::plan::make_schedule("1f1b", {.stages = parts, .micro_batches = 4}), mesh["pp"],
      cut.loss(ls::token_loss),
      {.strategy = [&](torch::nn::Module& stage) { return parallel(model, stage, mesh); },
       .all_ranks = mesh.group()});
  ls::optim::AdamW adamw(moe.parameters(), torch::optim::AdamWOptions(0.003));
  int step = 0;
  if (!folder.empty())
    if (const auto found = ls::checkpoint::load_latest(folder, moe, adamw))
      step = static_cast<int>(found->step);

  const int begun = step;
  if (begun >= steps) {
    if (world.is_root()) std::printf("%s: all %d steps are made\n", folder.c_str(), begun);
    return 0;
  }

  double first = 0, last = 0;
  for (; step < steps; ++step) {
    const at::Tensor rows = batch_of(step, mesh);
    moe.zero_grad();
    last = moe.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)}).item<double>();
    moe.clip_grad_norm(1.0);
    adamw.step();
    if (first == 0) first = last;
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
