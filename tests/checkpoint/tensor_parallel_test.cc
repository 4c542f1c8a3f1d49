// A checkpoint of tensor parallelism is that of the whole model: it is loaded on other numbers of
// ranks and in one process, with the optimizer's state.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/models/gpt.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include "parallel/tensor/support.h"
#include "support/temporary_folder.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
