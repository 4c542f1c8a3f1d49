// Four kinds of parallelism on one mesh, around a GPT as it is: two stages of a pipeline, two
// copies of each, of which each is divided over two ranks, and each layer of a stage is computed by
// two ranks together. Sixteen ranks have room for all of them; eight leave the copies out.
//
//   lockstep run -n 8 build/release/examples/10_all_axes
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <vector>

namespace ls = lockstep;

int main() try {
  ls::Group world = ls::init();
  const ls::Mesh mesh(world, {{"pp", 2}, {"dp", -1}, {"fsdp", 2}, {"tp", 2}});
  torch::manual_seed(1);  // the same model on every rank
  const ls::models::GptOptions options{
      .layers = 4, .heads = 4, .width = 64, .block = 16, .vocabulary = 50};
  auto model = ls::deferred([&] { return ls::models::Gpt(options); });

  // Activations of each block are computed again in backward(), on each rank its part.
  auto checkpoints = ls::checkpoint_activations(*model, "transformer.h.*");

  // The inner two axes divide what a stage has: layers over tp, and each rank's parts over fsdp.
  const std::vector<ls::UnitRule> units = {"transformer.h.*", "transformer.wte"};
  const auto sharded = [&](torch::nn::Module& parts) -> ls::Handle {
    return ls::fully_shard(parts, mesh[{"dp", "fsdp"}],
                           {.units = ls::stage_units(units, *model, parts)});
  };
  const auto divided = [&](torch::nn::Module& stage) -> ls::Handle {
    const auto plan = ls::stage_plan(ls::gpt_tensor_plan(options), *model, stage);
    return ls::parallelize(stage, mesh["tp"], plan,
                           {.strategy = sharded, .mesh = mesh[{"dp", "fsdp", "tp"}]});
  };

  const auto pieces = ls::pieces_of(model);
  const auto stages = ls::split(*model, pieces, ls::even_points(pieces, 2));
  const auto schedule = ls::plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 4});
  ls::Pipeline pipeline(stages, schedule, mesh["pp"], ls::token_loss,
                        {.strategy = divided, .all_ranks = mesh.group()});
  torch::optim::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(0.003));

  double last = 0;
  for (int step = 0; step < 40; ++step) {
    // Counting from anywhere; ranks of one pipeline and of tp have the same rows.
    const int data = mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp");
    const at::Tensor begin = torch::arange(8).view({8, 1}) * 5 + step + 3 * data;
    const at::Tensor rows = (begin + torch::arange(17)) % 50;
    pipeline.zero_grad();
    last = pipeline.step({rows.narrow(1, 0, 16)}, {rows.narrow(1, 1, 16)}).item<double>();
    pipeline.clip_grad_norm(1.0);
    adamw.step();
  }

  std::int64_t whole = 0;
  for (const auto& [name, tensor] : pipeline.state_dict())
    if (name != "lm_head.weight") whole += static_cast<std::int64_t>(tensor.nbytes());
  if (world.is_root()) {
    const ls::HandleMemory memory = pipeline.memory();
    std::printf("%s\n", mesh.picture().c_str());
    std::printf("the model has %lld bytes, rank 0 keeps %lld of them\n",
                static_cast<long long>(whole), static_cast<long long>(memory.shards));
    std::printf("blocks computed again: %lld\n",
                static_cast<long long>(checkpoints.counts().recomputations));
    std::printf("final loss %s 1.0\n", last < 1 ? "below" : "above");
  }
} catch (const std::exception& error) {  // one line, not an abort
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
