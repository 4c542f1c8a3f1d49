// A Gpt with mixtures of experts on any mesh of all six axes. If the folder has a checkpoint, the
// run resumes from it, on any mesh.
//
//   lockstep run -n 4 build/release/examples/recipe_moe dp=2,ep=2
//   lockstep run -n 8 build/release/examples/recipe_moe pp=2,ep=2,tp=2 300 runs/moe
#include "recipe.h"

namespace ls = lockstep;

int train(const ls::Mesh& mesh, const recipe::Arguments& given) {
  ls::models::MoeOptions shape{
      .gpt = {.layers = 2, .heads = 4, .hidden_size = 64, .context_length = 16, .vocabulary = 50}};
  shape.mixture.experts = 8;
  shape.mixture.top_k = 2;
  shape.mixture.capacity_factor = 1.5;
  auto model = ls::deferred([&] { return ls::models::Moe(shape); });
  ls::ParallelModel moe = ls::parallelize(model, mesh, {.micro_batches = 4});
  ls::optim::AdamW adamw(moe.parameters(), 3e-3);

  int begun = 0;
  if (!given.folder.empty())
    if (const auto found = ls::checkpoint::load_latest(given.folder, moe, adamw))
      begun = static_cast<int>(found->step);
  if (begun >= given.steps) {
    if (mesh.group().is_root())
      std::printf("%s: all %d steps are made\n", given.folder.c_str(), begun);
    return 0;
  }
  const int result = recipe::train(moe, adamw, given.steps, recipe::counting, begun);
  if (!given.folder.empty()) ls::checkpoint::save(given.folder, moe, adamw, {.step = given.steps});
  return result;
}

int main(int argc, char** argv) { return recipe::run(argc, argv, {.mesh = "ep=-1"}, train); }
