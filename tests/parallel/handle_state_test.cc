// Tests how a handle divides the time of a step.
#include "parallel/handle_state.h"
#include "parallel/composition.h"
#include "parallel/support.h"

#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <thread>

namespace lockstep {
namespace {

using namespace test;
using namespace std::chrono_literals;

TEST(StepClock, CountsEachPartOnce) {
  auto waits = std::make_shared<parallel::WaitTime>();
  parallel::StepClock clock(waits);
  auto began = std::chrono::steady_clock::now();
  for (int step = 0; step < 3; ++step) {
    clock.zero_grad();
    std::this_thread::sleep_for(4ms);
    clock.first_gradient();
    std::this_thread::sleep_for(8ms);
    {
      parallel::WaitTime::Scope waiting(*waits);
      std::this_thread::sleep_for(2ms);
    }
    clock.backward_ended(true);
    std::this_thread::sleep_for(3ms);
  }
  clock.zero_grad();
  double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  StepTiming total = clock.total();
  EXPECT_EQ(total.steps, 3);
  EXPECT_GE(total.forward, 2 * 0.004);  // the first forward has no known beginning
  EXPECT_GE(total.backward, 3 * 0.008);
  EXPECT_GE(total.exposed, 3 * 0.002);
  EXPECT_GE(total.update, 3 * 0.003);
  EXPECT_LE(total.forward + total.backward + total.exposed + total.update, all);
}

TEST(StepClock, ABackwardInsideNoSyncIsFollowedByAForward) {
  parallel::StepClock clock(std::make_shared<parallel::WaitTime>());
  clock.first_gradient();
  clock.backward_ended(false);
  std::this_thread::sleep_for(5ms);
  clock.zero_grad();
  clock.first_gradient();
  EXPECT_GE(clock.total().forward, 0.005);
  EXPECT_EQ(clock.total().update, 0);
  EXPECT_EQ(clock.total().steps, 0);
}

TEST(StepClock, AHandleMeasuresItsSteps) {
  run_as_threads(3, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      if (group.rank() == 1) std::this_thread::sleep_for(20ms);  // the other ranks wait for rank 1
      model->forward(values({2, 3}, 1), "abc").sum().backward();
    }
    StepTiming timing = ddp.timing();
    EXPECT_EQ(timing.steps, 3);
    if (group.rank() == 1) EXPECT_GE(timing.forward, 2 * 0.02);
    EXPECT_GT(timing.exposed, 0);
    EXPECT_LE(timing.exposed, ddp.seconds_waited() + 1e-6);
  });
}

template <typename Net>
void expect_steps_measured(const Net& model, const Mesh& mesh) {
  ParallelModel handle = parallelize(model, mesh);
  const std::string name = mesh.layout().describe();
  Net net = model;
  const TokenBatch batch(1, 2);
  auto began = std::chrono::steady_clock::now();
  for (int step = 0; step < 3; ++step) {
    handle.zero_grad();
    std::this_thread::sleep_for(4ms);
    const Tensors cut = handle.cut({batch.ids, batch.targets});
    at::Tensor loss = net->loss(cut[0], cut[1]);
    if (mesh.group().rank() == 1) std::this_thread::sleep_for(10ms);  // the other ranks wait for it
    loss.backward();
    std::this_thread::sleep_for(3ms);
  }
  handle.zero_grad();
  const StepTiming timing = handle.timing();
  double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_EQ(timing.steps, 3) << name;
  EXPECT_GE(timing.forward, 2 * 0.004) << name;
  EXPECT_GT(timing.backward, 0) << name;
  EXPECT_GE(timing.exposed, 0) << name;
  EXPECT_GE(timing.update, 3 * 0.003) << name;
  EXPECT_LE(timing.forward + timing.backward + timing.exposed + timing.update, all) << name;
}

TEST(StepClock, HandlesOfGlobalTensorsMeasureTheirSteps) {
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"tp", 2}}, {{"dp", 2}, {"tp", 2}}, {{"cp", 2}}})
    run_as_threads(ranks_of(axes), [&](Group group) {
      expect_steps_measured(models::Gpt(small_gpt(1)), Mesh(group, axes));
    });
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"ep", 2}}, {{"ep", 2}, {"tp", 2}}})
    run_as_threads(ranks_of(axes), [&](Group group) {
      expect_steps_measured(moe_of(0, at::kFloat), Mesh(group, axes));
    });
}

TEST(StepClock, InsideNoSyncAHandleOfGlobalTensorsCountsNoStep) {
  run_as_threads(2, [](Group group) {
    Branches model;
    auto tp = parallelize(model.ptr(), Mesh(group, {{"tp", 2}}), {.tensor = {{"a", Colwise()}}});
    {
      const NoSync scope = tp.no_sync();
      model->forward(values({2, 3}, 1), "abc").sum().backward();
    }
    EXPECT_EQ(tp.timing().steps, 0);
    model->forward(values({2, 3}, 1), "abc").sum().backward();
    EXPECT_EQ(tp.timing().steps, 1);
  });
}

}  // namespace
}  // namespace lockstep

namespace lockstep::parallel {
namespace {

using namespace std::chrono_literals;

TEST(WaitTime, AddsUpWhatPassesInItsScopes) {
  WaitTime time;
  EXPECT_EQ(time.seconds(), 0);
  for (int i = 0; i < 2; ++i) {
    WaitTime::Scope waiting(time);
    std::this_thread::sleep_for(20ms);
  }
  double seconds = time.seconds();
  EXPECT_GE(seconds, 0.04);
  std::this_thread::sleep_for(1ms);
  EXPECT_EQ(time.seconds(), seconds);
}

// Rank 1 reaches backward() 50 ms late, so rank 0 waits.
template <typename Handle>
void expect_rank_0_waits(const Handle& make) {
  run_as_threads(2, [&](Group group) {
    torch::nn::Linear model(4, 4);
    auto handle = make(model, group);
    at::Tensor loss = model->forward(at::ones({1, 4})).sum();
    double before = handle.seconds_waited();
    if (group.rank() == 1) std::this_thread::sleep_for(50ms);
    loss.backward();
    if (group.is_root()) EXPECT_GE(handle.seconds_waited() - before, 0.03);
  });
}

TEST(WaitTime, OfDistributedDataParallelIsTheWaitForALateRank) {
  expect_rank_0_waits([](torch::nn::Linear& model, const Group& group) {
    return DistributedDataParallel(model, group);
  });
}

TEST(WaitTime, OfAShardedModuleIsTheWaitForALateRank) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    expect_rank_0_waits([level](torch::nn::Linear& model, const Group& group) {
      return fully_shard(model, group, {.level = level});
    });
}

}  // namespace
}  // namespace lockstep::parallel
