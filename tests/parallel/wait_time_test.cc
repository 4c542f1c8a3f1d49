#include "parallel/handle_state.h"

#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <thread>

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
