// A checkpoint of tensor parallelism is that of the whole model: it is loaded on other numbers of
// ranks and in one process, with the optimizer's state.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/models/gpt.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include "parallel/tensor/support.h"
#include "support/temporary_folder.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

models::Gpt checkpoint_gpt() { return models::Gpt(small_gpt()); }

double tensor_step_of(models::Gpt& model, Handle& handle, torch::optim::Optimizer& adamw,
                      int seed) {
  const TokenBatch batch(seed);
  handle.zero_grad();
  at::Tensor loss = model->loss(batch.ids, batch.targets);
  loss.backward();
  adamw.step();
  return number_of(loss);
}

TEST(TensorCheckpoint, IsLoadedOnAnyNumberOfRanks) {
  for (const int saved_on : {2, 3}) {
    const TemporaryFolder folder;
    run_group(Engine::local, saved_on, [&](Group group) {
      auto model = made_alike(checkpoint_gpt, at::kDouble);
      auto tp = parallelize_tensors(*model, group, gpt_tensor_plan(small_gpt()));
      torch::optim::AdamW adamw(tp.parameters(), torch::optim::AdamWOptions(0.003));
      for (int step = 0; step < 3; ++step) tensor_step_of(model, tp, adamw, step);
      checkpoint::save(folder.path(), tp, adamw, {.step = 3});
    });
    auto plain = made_alike(checkpoint_gpt, at::kDouble);
    DistributedDataParallel alone(plain, Group());
    torch::optim::AdamW adamw(alone.parameters(), torch::optim::AdamWOptions(0.003));
    ASSERT_EQ(checkpoint::load_latest(folder.path(), alone, adamw)->step, 3);
    const double first = tensor_step_of(plain, alone, adamw, 3),
                 second = tensor_step_of(plain, alone, adamw, 4);
    for (const int ranks : {1, 2, 3, 4})
      run_group(Engine::local, ranks, [&](Group group) {
        auto model = made_alike(checkpoint_gpt, at::kDouble);
        auto tp = parallelize_tensors(*model, group, gpt_tensor_plan(small_gpt()));
        torch::optim::AdamW own(tp.parameters(), torch::optim::AdamWOptions(0.003));
        ASSERT_EQ(checkpoint::load_latest(folder.path(), tp, own)->step, 3);
        EXPECT_NEAR(tensor_step_of(model, tp, own, 3), first, 1e-11);
        EXPECT_NEAR(tensor_step_of(model, tp, own, 4), second, 1e-11);
      });
  }
}

TEST(TensorCheckpoint, WithDataParallelismOutsideIsWrittenOnce) {
  const TemporaryFolder folder;
  const auto strategy = [](const Mesh& mesh) {
    return TensorParallelOptions{
        .strategy =
            [mesh](torch::nn::Module& parts) { return DistributedDataParallel(parts, mesh["dp"]); },
        .mesh = mesh};
  };
  double expected = 0;
  run_group(Engine::local, 4, [&](Group world) {
    const Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
    auto model = made_alike(checkpoint_gpt, at::kDouble);
    auto handle =
        parallelize_tensors(*model, mesh["tp"], gpt_tensor_plan(small_gpt()), strategy(mesh));
    torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.003));
    tensor_step_of(model, handle, adamw, 0);
    checkpoint::save(folder.path(), handle, adamw, {.step = 1});
    const double next = tensor_step_of(model, handle, adamw, 1);
    if (world.is_root()) expected = next;
  });
  auto plain = made_alike(checkpoint_gpt, at::kDouble);
  DistributedDataParallel alone(plain, Group());
  torch::optim::AdamW adamw(alone.parameters(), torch::optim::AdamWOptions(0.003));
  ASSERT_EQ(checkpoint::load_latest(folder.path(), alone, adamw)->step, 1);
  EXPECT_NEAR(tensor_step_of(plain, alone, adamw, 1), expected, 1e-11);
}

// A ParallelModel whose activations are recomputed is saved on one mesh and goes on on others.

constexpr int saved_step = 2;

models::Gpt recomputed_gpt() { return models::Gpt(small_gpt(4)); }

double step_of(ParallelModel& gpt, optim::AdamW& adamw, int step) {
  Group data = gpt.data();
  const TokenBatch batch(step, 8);
  const auto own = [&](const at::Tensor& rows) {
    return rows.tensor_split(data.size())[static_cast<std::size_t>(data.rank())];
  };
  gpt.zero_grad();
  at::Tensor loss = gpt.step({own(batch.ids)}, {own(batch.targets)});
  adamw.step();
  data.all_reduce(loss, Op::average).wait();
  return loss.item<double>();
}

// Makes two steps and saves, or loads and makes the next two. The losses of its steps.
std::vector<double> run_of(const Group& world, const std::vector<MeshAxis>& axes,
                           const std::filesystem::path& folder, bool goes_on) {
  ParallelModel gpt =
      parallelize(made_alike(recomputed_gpt, at::kDouble), Mesh(world, axes),
                  {.activation_checkpointing = {"transformer.h.*"}, .micro_batches = 2});
  optim::AdamW adamw(gpt.parameters(), torch::optim::AdamWOptions(0.003));
  if (goes_on) EXPECT_EQ(checkpoint::load_latest(folder, gpt, adamw)->step, saved_step);
  const int first = goes_on ? saved_step : 0;
  std::vector<double> losses;
  for (int step = first; step < first + 2; ++step) losses.push_back(step_of(gpt, adamw, step));
  if (!goes_on) checkpoint::save(folder, gpt, adamw, {.step = saved_step});
  return losses;
}

TEST(ParallelModelCheckpoint, GoesOnOnAnyMesh) {
  const TemporaryFolder folder;
  const TemporaryFolder alone;
  (void)run_of(Group(), {{"dp", 1}}, alone.path(), /*goes_on=*/false);
  const std::vector<double> expected = run_of(Group(), {{"dp", 1}}, alone.path(), true);
  run_group(Engine::local, 4, [&](Group world) {
    (void)run_of(world, {{"pp", 2}, {"tp", 2}}, folder.path(), /*goes_on=*/false);
  });
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"dp", 1}},
                                            {{"dp", 2}},
                                            {{"fsdp", 2}},
                                            {{"tp", 3}},
                                            {{"cp", 2}},
                                            {{"pp", 2}, {"fsdp", 2}},
                                            {{"dp", 2}, {"tp", 2}}}) {
    int ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    run_group(Engine::local, ranks, [&](Group world) {
      const std::vector<double> found = run_of(world, axes, folder.path(), /*goes_on=*/true);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 1e-10) << axes.front().name;
    });
  }
}

}  // namespace
}  // namespace lockstep
