// Where a handle says that the time of a step went.
#include "parallel/step_clock.h"

#include "parallel/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <chrono>
#include <map>
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
  EXPECT_GE(total.forward, 2 * 0.004);  // the first one has no beginning
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
      if (group.rank() == 1) std::this_thread::sleep_for(20ms);  // the others wait for it
      model->forward(values({2, 3}, 1), "abc").sum().backward();
    }
    StepTiming timing = ddp.timing();
    EXPECT_EQ(timing.steps, 3);
    if (group.rank() == 1) EXPECT_GE(timing.forward, 2 * 0.02);
    EXPECT_GT(timing.exposed, 0);
    EXPECT_LE(timing.exposed, ddp.seconds_waited() + 1e-6);
  });
}

using Strategy = std::function<Handle(torch::nn::Module& module, const Mesh& mesh)>;

Handle averaged_on(torch::nn::Module& part, const Mesh& ranks) {
  return DistributedDataParallel(part, ranks);
}

std::map<std::string, Strategy> strategies_of_tensors() {
  const TensorPlan plan = {{"a", Colwise()}, {"b", Rowwise()}};
  return {{"parallelize",
           [=](torch::nn::Module& module, const Mesh& mesh) -> Handle {
             return parallelize_tensors(module, mesh["tp"], plan);
           }},
          {"parallelize and ddp",
           [=](torch::nn::Module& module, const Mesh& mesh) -> Handle {
             return parallelize_tensors(
                 module, mesh["tp"], plan,
                 {.strategy = [=](auto& part) { return averaged_on(part, mesh.sub_mesh({"dp"})); },
                  .mesh = mesh});
           }},
          {"context_parallel",
           [](torch::nn::Module& module, const Mesh& mesh) -> Handle {
             return context_parallel(module, Mesh(mesh.group(), {{"cp", 2}}));
           }},
          {"expert_parallel", [=](torch::nn::Module& module, const Mesh& mesh) -> Handle {
             return expert_parallel(module, Mesh(mesh.group(), {{"ep", 1}, {"tp", 2}}),
                                    {.strategy = averaged_on, .plan = plan, .is_stage = true});
           }}};
}

TEST(StepClock, HandlesOfGlobalTensorsMeasureTheirSteps) {
  for (const auto& [name, strategy] : strategies_of_tensors())
    run_as_threads(2, [&, name = name, strategy = strategy](Group group) {
      const Mesh mesh(group, {{"dp", 1}, {"tp", 2}});
      Branches model;
      Handle handle = strategy(*model, mesh);
      auto began = std::chrono::steady_clock::now();
      for (int step = 0; step < 3; ++step) {
        handle.zero_grad();
        std::this_thread::sleep_for(4ms);
        at::Tensor hidden = model->forward(values({2, 3}, 1), "abc");
        hidden.register_hook([](const at::Tensor&) { std::this_thread::sleep_for(2ms); });
        if (group.rank() == 1) std::this_thread::sleep_for(10ms);  // the other one waits for it
        hidden.sum().backward();
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
    });
}

TEST(StepClock, InsideNoSyncAHandleOfGlobalTensorsCountsNoStep) {
  run_as_threads(2, [](Group group) {
    Branches model;
    auto tp = parallelize_tensors(*model, group, {{"a", Colwise()}});
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
