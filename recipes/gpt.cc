// A GPT on any mesh of pp, dp, cp, fsdp and tp, with activation checkpointing. The losses are the
// same on every mesh, as in examples/10_all_axes.cc.
//
//   lockstep run -n 8 build/release/examples/recipe_gpt pp=2,fsdp=2,tp=2
//   lockstep run -n 4 build/release/examples/recipe_gpt dp=2,tp=2 200
#include "recipe.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  return recipe::run(argc, argv, {}, [](const ls::Mesh& mesh, const recipe::Arguments& given) {
    const ls::models::GptOptions shape{
        .layers = 4, .heads = 4, .hidden_size = 64, .context_length = 16, .vocabulary = 50};
    ls::ParallelModel gpt =
        ls::parallelize(ls::deferred([&] { return ls::models::Gpt(shape); }), mesh,
                        {.activation_checkpointing = {"transformer.h.*"}, .micro_batches = 4});
    ls::optim::AdamW adamw(gpt.parameters(), 3e-3);
    return recipe::train(gpt, adamw, given.steps);
  });
}
