// What goes wrong on one rank of tensor parallelism is told to all of them.
#include <lockstep/parallel/tensor/parallelize.h>

#include "parallel/tensor/support.h"
#include "support/processes.h"
#include "support/torch/engine_test.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

constexpr int tensor_ranks = 3;

// Two layers with a call of `deed` between them.
struct WithDeedImpl : torch::nn::Module {
  explicit WithDeedImpl(std::function<void()> deed)
      : up(register_module("up", torch::nn::Linear(6, 12))),
        down(register_module("down", torch::nn::Linear(12, 6))),
        deed(std::move(deed)) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = down(torch::relu(up(x)));
    deed();
    return down(torch::relu(up(y)));
  }
  torch::nn::Linear up, down;
  std::function<void()> deed;
};
TORCH_MODULE(WithDeed);

const TensorPlan deed_plan = {{"up", Colwise()}, {"down", Rowwise()}};

// A rank of processes does something in the middle of forward(); what the others are told.
void expect_tensor_rank_named(int victim, const std::function<void()>& deed, Duration timeout) {
  const RankRendezvous place(Engine::shm, tensor_ranks, timeout);
  RankProcesses processes(tensor_ranks, [&](int rank) {
    try {
      Group group = place.join(rank);
      WithDeed model([&] {
        if (rank == victim) deed();
      });
      auto tp = parallelize(*model, group, deed_plan);
      at::Tensor loss = model->forward(values({4, 6}, 1)).square().mean();
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(rank, victim);
      expect_contains(error.what(), "rank " + std::to_string(victim));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(rank, victim) << error.what();
    }
  });
  for (int rank = 0; rank < tensor_ranks; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(processes.wait(rank, rank_limit).ok()) << "rank " << rank;
  }
  processes.kill(victim, SIGKILL);
}

TEST(TensorFails, ARankThatIsKilledIsNamed) {
  for (int victim = 0; victim < tensor_ranks; ++victim)
    expect_tensor_rank_named(
        victim, [] { ::raise(SIGKILL); }, std::chrono::seconds(20));
}

TEST(TensorFails, ARankThatThrowsInForwardIsNamed) {
  for (int victim = 0; victim < tensor_ranks; ++victim)
    expect_tensor_rank_named(
        victim, [] { throw std::runtime_error("no room for the batch"); },
        std::chrono::seconds(20));
}

TEST(TensorFails, ARankThatComputesForEverIsNamed) {
  expect_tensor_rank_named(
      1, [] { std::this_thread::sleep_for(std::chrono::minutes(5)); }, std::chrono::seconds(1));
}

class TensorRefuses : public EngineTest {};

TEST_P(TensorRefuses, RanksWithDifferentPlansAreAMismatch) {
  run([&](Group group) {
    WithDeed model([] {});
    const TensorPlan plan = group.rank() == 1 ? TensorPlan{{"up", Colwise()}} : deed_plan;
    expect_contains(message_of<Mismatch>([&] { (void)parallelize(*model, group, plan); }),
                    "plan down: Rowwise");
    EXPECT_TRUE(parallelize(*model, group, deed_plan).is_attached());
  });
}

// Their collectives would not meet.
TEST_P(TensorRefuses, RanksWithDifferentOptionsAreAMismatch) {
  run([&](Group group) {
    WithDeed model([] {});
    const bool other = group.rank() == 1;
    const auto message = [&](const TensorParallelOptions& options) {
      return message_of<Mismatch>([&] { (void)parallelize(*model, group, deed_plan, options); });
    };
    expect_contains(message({.sequence_parallel = other}), "sequence_parallel: in dim 1");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 0 : 1}),
                    "sequence_parallel: in dim 0");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 2 : 1}),
                    "sequence_parallel: in dim 2");
    EXPECT_TRUE(parallelize(*model, group, deed_plan).is_attached());
  });
}

// The module is then as it is after the handle's end.
TEST_P(TensorRefuses, AStrategyThatThrowsLeavesGradientsToTheModule) {
  run([&](Group group) {
    WithDeed model([] {});
    const auto refuse = [](torch::nn::Module&) -> Handle { throw InvalidArgument("not today"); };
    const auto call = [&] {
      (void)parallelize(*model, group, deed_plan,
                        {.strategy = refuse, .mesh = Mesh(group, {{"tp", group.size()}})});
    };
    EXPECT_EQ(message_of<InvalidArgument>(call), "not today");
    model->forward(values({4, 6}, 1)).square().mean().backward();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(parameter.is_leaf());
      EXPECT_TRUE(is_global(parameter.grad()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, TensorRefuses, every_engine({2}), engine_test_name);

}  // namespace
}  // namespace lockstep
