// A Llama with grouped queries on any mesh of pp, dp, cp, fsdp and tp, with sequence parallelism
// along tp, and activation checkpointing of every second layer.
//
//   lockstep run -n 8 build/release/examples/recipe_llama pp=2,fsdp=2,tp=2
//   lockstep run -n 4 build/release/examples/recipe_llama cp=2,tp=2 200
#include "recipe.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  auto body = [](const ls::Mesh& mesh, const recipe::Arguments& given) {
    const ls::models::LlamaOptions shape{.layers = 4,
                                         .heads = 4,
                                         .key_value_heads = 2,
                                         .hidden_size = 64,
                                         .intermediate_size = 176,
                                         .context_length = 16,
                                         .vocabulary = 50};
    auto model = ls::deferred([&] { return ls::models::Llama(shape); });
    auto llama = ls::parallelize(model, mesh,
                                 {.sequence_parallel = true,
                                  .activation_checkpointing = {"model.layers.*"},
                                  .activations = {.every = 2},
                                  .micro_batches = 4});
    ls::optim::AdamW optimizer(llama.parameters(), 3e-3);
    return recipe::train(llama, optimizer, given.steps);
  };
  return recipe::run(argc, argv, {}, body);
}
