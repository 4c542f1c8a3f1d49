// What goes wrong on one rank of pipelines whose stages are computed by tensor parallelism is told
// to all ranks of both axes.
#include <lockstep/comm/init.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/pipeline/language_models.h>
#include <lockstep/parallel/pipeline/pipeline.h>

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

constexpr int composed_ranks = 4;

// One step, in which `deed` happens on rank `victim` before its stage's second forward.
void step_with_deed(Group world, int victim, const std::function<void()>& deed) {
  const int rank = world.rank();
  const Mesh mesh(std::move(world), {{"pp", 2}, {"tp", 2}});
  const models::GptOptions options = small_gpt(2);
  auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
  const auto pieces = pieces_of(model);
  auto stages = split(*model, pieces, even_points(pieces, 2));
  for (Stage& stage : stages)
    stage.forward = [inner = stage.forward, rank, victim, &deed,
                     calls = 0](const Tensors& inputs) mutable {
      if (rank == victim && ++calls == 2) deed();
      return inner(inputs);
    };
  Pipeline pipeline(stages, plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 3}),
                    mesh["pp"], token_loss,
                    {.strategy = [&](torch::nn::Module& stage) -> Handle {
                       return parallelize(stage, mesh["tp"],
                                          stage_plan(gpt_tensor_plan(options), *model, stage));
                     },
                     .all_ranks = mesh.group()});
  const TokenBatch batch(1, 6);
  (void)pipeline.step({batch.ids}, {batch.targets});
}

void expect_composed_rank_named(int victim, const std::function<void()>& deed, Duration timeout) {
  const RankRendezvous place(Engine::shm, composed_ranks, timeout);
  RankProcesses processes(composed_ranks, [&](int rank) {
    try {
      step_with_deed(place.join(rank), victim, deed);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(rank, victim);
      expect_contains(error.what(), "rank ");
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(rank, victim) << error.what();
    }
  });
  for (int rank = 0; rank < composed_ranks; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(processes.wait(rank, rank_limit).ok()) << "rank " << rank;
  }
  processes.kill(victim, SIGKILL);
}

TEST(ComposedFails, ARankThatIsKilledEndsTheOthers) {
  for (int victim = 0; victim < composed_ranks; ++victim)
    expect_composed_rank_named(
        victim, [] { ::raise(SIGKILL); }, std::chrono::seconds(20));
}

TEST(ComposedFails, ARankThatComputesForEverEndsTheOthers) {
  expect_composed_rank_named(
      1, [] { std::this_thread::sleep_for(std::chrono::minutes(5)); }, std::chrono::seconds(1));
}

TEST(ComposedFails, AStageThatThrowsIsNamedOnEveryRank) {
  for (int victim = 0; victim < composed_ranks; ++victim)
    run_group(
        Engine::shm, composed_ranks,
        [&](Group world) {
          const int rank = world.rank();
          try {
            step_with_deed(std::move(world), victim, [] { throw std::runtime_error("no room"); });
            ADD_FAILURE() << "no error";
          } catch (const Aborted& error) {
            EXPECT_NE(rank, victim);
            expect_contains(error.what(), "F1 of the pipeline failed: no room");
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "no room");
          }
        },
        /*timeout=*/rank_limit);
}

}  // namespace
}  // namespace lockstep
