// Without an axis pp, a ParallelModel is a handle that works with a user's own training loop.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/join.h>

#include "parallel/own_net.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <string>
#include <vector>

namespace lockstep::test {
namespace {

TEST(ParallelizeWithoutStages, TheModulesOwnForwardAndBackwardWork) {
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"dp", 2}}, {{"fsdp", 2}}, {{"dp", 2}, {"tp", 2}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      OwnNet plain, net;
      ParallelModel model = parallelize(net, Mesh(world, axes));
      Group data = model.data();
      const OwnBatch batch(1, 8);
      mean_square({plain->forward(batch.x)}, {batch.y}).backward();
      const at::Tensor x = own_rows(data, batch.x), y = own_rows(data, batch.y);
      {
        auto local = model.no_sync();
        (mean_square({net->forward(x.narrow(0, 0, 2))}, {y.narrow(0, 0, 2)}) / 2).backward();
      }
      (mean_square({net->forward(x.narrow(0, 2, 2))}, {y.narrow(0, 2, 2)}) / 2).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
      EXPECT_NEAR(model.clip_grad_norm(1e9), norm, 1e-11 * norm);
    });
}

TEST(ParallelizeWithoutStages, StepInsideNoSyncStaysLocal) {
  run_group(BackendKind::local, 2, [](Group world) {
    OwnNet plain, net;
    ParallelModel model = parallelize(net, Mesh(world, {{"dp", 2}}), {.micro_batches = 2});
    const OwnBatch batch(1 + world.rank(), 4);
    mean_square({plain->forward(batch.x)}, {batch.y}).backward();
    {
      auto local = model.no_sync();
      (void)model.step({batch.x}, {batch.y}, mean_square);
    }
    expect_close_to(net->in->weight.grad(), plain->in->weight.grad(), 1e-12, "in.weight");
  });
}

TEST(ParallelizeWithoutStages, JoinLetsRanksHaveDifferentNumbersOfBatches) {
  run_group(BackendKind::local, 3, [](Group world) {
    OwnNet net;
    ParallelModel model = parallelize(net, Mesh(world, {{"dp", 3}}));
    const OwnBatch batch(1, 4);
    int others = 0;
    Join join({&model.joinable()});
    for (int i = 0; i <= world.rank(); ++i) {
      model.zero_grad();
      (void)model.step({batch.x}, {batch.y}, mean_square);
    }
    join.finish([&] {
      ++others;
      model.zero_grad();
    });
    EXPECT_EQ(others, 2 - world.rank());
  });
}

TEST(ParallelizeWithoutStages, SyncBatchNormSeesTheRowsOfAllRanks) {
  run_group(BackendKind::local, 2, [](Group world) {
    torch::nn::Sequential plain(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4));
    torch::nn::Sequential net(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4));
    for (auto* one : {&plain, &net}) {
      fill_parameters(**one, 3);
      (*one)->to(at::kDouble);
    }
    SyncBatchNorm sync(net, world);
    ParallelModel model = parallelize(net, Mesh(world, {{"dp", 2}}));
    const at::Tensor x = values({6, 8}, 1).to(at::kDouble);
    const PipelineLoss loss = [](const Tensors& outputs, const Tensors& targets) {
      return (outputs[0] * targets[0]).square().mean();
    };
    const at::Tensor y = values({6, 4}, 2).to(at::kDouble);
    loss({plain->forward(x)}, {y}).backward();
    (void)model.step({own_rows(world, x)}, {own_rows(world, y)}, loss);
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      expect_close_to(net->parameters()[i].grad(), plain->parameters()[i].grad(), 1e-11,
                      std::to_string(i));
  });
}

TEST(ParallelizeWithoutStages, AHookTakesTheBucketsAndAScalerTheLoss) {
  run_group(BackendKind::local, 2, [](Group world) {
    OwnNet plain, net;
    int buckets = 0;
    const auto hook = hook_of("count", [&](const GradientBucket& bucket, Group& group) {
      ++buckets;
      return average_of(bucket, group);
    });
    ParallelModel model =
        parallelize(net, Mesh(world, {{"dp", 2}}), {.data = {.hook = hook}, .micro_batches = 2});
    optim::GradScaler scaler({.initial_scale = 8});
    optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD of_plain(plain->parameters(), torch::optim::SGDOptions(0.1));
    const OwnBatch batch(1, 8);
    mean_square({plain->forward(batch.x)}, {batch.y}).backward();
    of_plain.step();
    (void)model.step({own_rows(world, batch.x)}, {own_rows(world, batch.y)},
                     [&](const Tensors& outputs, const Tensors& targets) {
                       return scaler.scale(mean_square(outputs, targets));
                     });
    EXPECT_GT(buckets, 0);
    EXPECT_TRUE(scaler.step(sgd).stepped);
    expect_close_to(net->in->weight, plain->in->weight, 1e-11, "in.weight");
  });
}

}  // namespace
}  // namespace lockstep::test
