// A failure on one rank of tensor parallelism is reported to all ranks.
#include <lockstep/parallel/parallelize.h>

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

ParallelPlan parallel_plan(const WithDeed& /*model*/) {
  return {.tensor = {{"up", Colwise()}, {"down", Rowwise()}}};
}

ParallelModel cut_layers(const WithDeed& model, const Group& ranks, ParallelOptions options = {}) {
  return parallelize(model, Mesh(ranks, {{"tp", ranks.size()}}), std::move(options));
}

// One rank process runs `deed` in the middle of forward(); the other ranks must get an error that
// names it.
void expect_tensor_rank_named(int victim, const std::function<void()>& deed, Duration timeout) {
  const RankRendezvous place(Engine::shm, tensor_ranks, timeout);
  RankProcesses processes(tensor_ranks, [&](int rank) {
    try {
      Group group = place.join(rank);
      WithDeed model([&] {
        if (rank == victim) deed();
      });
      auto tp = cut_layers(model, group);
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
    const TensorPlan plan = group.rank() == 1 ? TensorPlan{{"up", Colwise()}} : TensorPlan();
    expect_contains(message_of<Mismatch>([&] { (void)cut_layers(model, group, {.tensor = plan}); }),
                    "plan down: Rowwise");
    EXPECT_TRUE(cut_layers(model, group).is_attached());
  });
}

// Their collectives would not match.
TEST_P(TensorRefuses, RanksWithDifferentOptionsAreAMismatch) {
  run([&](Group group) {
    WithDeed model([] {});
    const bool other = group.rank() == 1;
    const auto message = [&](const ParallelOptions& options) {
      return message_of<Mismatch>([&] { (void)cut_layers(model, group, options); });
    };
    expect_contains(message({.sequence_parallel = other}), "sequence_parallel = true");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 0 : 1}),
                    "sequence_dim = 0");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 2 : 1}),
                    "sequence_dim = 2");
    EXPECT_TRUE(cut_layers(model, group).is_attached());
  });
}

// Without this check nothing would fail: each rank's shard of the model would learn from a
// different batch.
TEST_P(TensorRefuses, RanksWithDifferentBatchesAreAMismatch) {
  run([&](Group group) {
    WithDeed model([] {});
    auto tp = cut_layers(model, group);
    auto step = [&](int seed) {
      tp.zero_grad();
      model->forward(values({4, 6}, seed)).square().mean().backward();
    };
    for (int i = 0; i < 3; ++i) step(i);
    const std::string text = message_of<Mismatch>([&] { step(3 + group.rank()); });
    expect_contains(text, "a plain Float tensor of sizes [4, 6] counts as replicated");
    expect_contains(text, "found different ones on rank 1 and on rank 0");
    EXPECT_EQ(text.find('\n'), std::string::npos);
  });
}

// A difference that appears only in a later call is also detected.
TEST_P(TensorRefuses, BatchesThatPartLaterAreAMismatch) {
  run([&](Group group) {
    torch::nn::Embedding table(37, 12);
    auto tp = parallelize(table, Mesh(group, {{"tp", 2}}), {.tensor = {{"weight", Vocabulary()}}});
    const auto steps = [&] {
      for (int i = 0; i < 2000; ++i)
        (void)table->forward(torch::tensor({3, i % 37, i > 700 && group.rank() == 1 ? 5 : 4}));
    };
    expect_contains(message_of<Mismatch>(steps), "a plain Long tensor of sizes [3]");
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, TensorRefuses, every_engine({2}), engine_test_name);

}  // namespace
}  // namespace lockstep
