// A checkpoint of a ParallelModel contains the whole model: it is saved on one mesh and continues
// on any other one, with the optimizer's state.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/moe.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/parallelize.h>

#include "parallel/tensor/support.h"
#include "support/temporary_folder.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

constexpr int saved_step = 2;

using Axes = std::vector<MeshAxis>;

models::Gpt saved_gpt() { return models::Gpt(small_gpt(4)); }

models::Moe saved_moe() {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false)};
  options.mixture.experts = 4;
  return models::Moe(options);
}

double step_of(ParallelModel& model, optim::AdamW& adamw, int step) {
  const TokenBatch own = own_rows(model.data(), TokenBatch(step, 8));
  model.zero_grad();
  const at::Tensor loss = model.step({own.ids}, {own.targets});
  adamw.step();
  return average_over(model.data(), loss);
}

// Makes two steps and saves, or loads and makes the next two. Returns the losses of its steps.
// Activations are recomputed.
template <typename Make>
std::vector<double> run_of(const Make& make, const Group& world, const Axes& axes,
                           const std::filesystem::path& folder, bool goes_on) {
  ParallelModel model = parallelize(made_alike(make, at::kDouble), Mesh(world, axes),
                                    {.activation_checkpointing = {"transformer.h.*"}});
  optim::AdamW adamw(model.parameters(), torch::optim::AdamWOptions(0.003));
  if (goes_on) EXPECT_EQ(checkpoint::load_latest(folder, model, adamw)->step, saved_step);
  const int first = goes_on ? saved_step : 0;
  std::vector<double> losses;
  for (int step = first; step < first + 2; ++step) losses.push_back(step_of(model, adamw, step));
  if (!goes_on) checkpoint::save(folder, model, adamw, {.step = saved_step});
  return losses;
}

template <typename Make>
void expect_to_go_on(const Make& make, const std::vector<Axes>& saved,
                     const std::vector<Axes>& on) {
  const TemporaryFolder alone;
  (void)run_of(make, Group(), {{"dp", 1}}, alone.path(), /*goes_on=*/false);
  const std::vector<double> expected = run_of(make, Group(), {{"dp", 1}}, alone.path(), true);
  for (const Axes& from : saved) {
    const TemporaryFolder folder;
    run_group(BackendKind::local, ranks_of(from), [&](Group world) {
      (void)run_of(make, world, from, folder.path(), /*goes_on=*/false);
    });
    for (const Axes& axes : on)
      run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
        const std::vector<double> found = run_of(make, world, axes, folder.path(), true);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(found[i], expected[i], 1e-10)
              << from.front().name << " to " << axes.front().name;
      });
  }
}

TEST(ParallelModelCheckpoint, GoesOnOnAnyMesh) {
  expect_to_go_on(saved_gpt,
                  {{{"pp", 2}, {"tp", 2}}, {{"tp", 3}}, {{"dp", 2}, {"tp", 2}}, {{"cp", 3}}},
                  {{{"dp", 1}},
                   {{"dp", 2}},
                   {{"fsdp", 2}},
                   {{"tp", 2}},
                   {{"tp", 4}},
                   {{"cp", 2}},
                   {{"pp", 2}, {"fsdp", 2}},
                   {{"dp", 2}, {"tp", 3}}});
}

TEST(ParallelModelCheckpoint, OfExpertsGoesOnOnAnyMesh) {
  expect_to_go_on(saved_moe, {{{"dp", 2}, {"ep", 2}}, {{"ep", 4}}},
                  {{{"dp", 1}}, {{"ep", 2}}, {{"ep", 4}}, {{"ep", 2}, {"fsdp", 2}}});
}

}  // namespace
}  // namespace lockstep
