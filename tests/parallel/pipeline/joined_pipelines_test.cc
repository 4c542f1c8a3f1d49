// Pipelines that a strategy joins: what step() and evaluate() return on their ranks.
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "parallel/pipeline/support.h"

namespace lockstep {
namespace {

using namespace test;

using Join = std::function<Handle(torch::nn::Module& stage, const Mesh& mesh)>;

std::map<std::string, Join> joins() {
  return {{"ddp",
           [](torch::nn::Module& stage, const Mesh& mesh) -> Handle {
             return DistributedDataParallel(stage, mesh["dp"]);
           }},
          {"fully_shard", [](torch::nn::Module& stage, const Mesh& mesh) -> Handle {
             return fully_shard(stage, mesh["dp"]);
           }}};
}

double loss_of_one_process(std::int64_t rows, int seed) {
  const auto model = blocks(block_count);
  const PipedBatch batch = piped_batch(rows, seed);
  torch::NoGradGuard no_grad;
  torch::nn::Sequential copy = model;
  return squared_error({copy->forward(batch.inputs[0])}, batch.targets).item<double>();
}

class JoinedPipelines : public testing::TestWithParam<std::string> {
 protected:
  // Of 2 pipelines of 2 stages, of which `body` gets this rank's, and its own number.
  void run(const std::function<void(Pipeline&, int)>& body) {
    run_as_threads(4, [&](Group world) {
      const Mesh mesh(world, {{"dp", 2}, {"pp", 2}});
      const auto schedule = plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 4});
      Pipeline pipeline(
          split(blocks(block_count), even_points(block_count, 2)), schedule, mesh["pp"],
          squared_error,
          {.strategy =
               [&](torch::nn::Module& stage) { return joins().at(GetParam())(stage, mesh); },
           .all_ranks = world});
      body(pipeline, mesh.coordinate("dp"));
    });
  }
};

// The number of rows does not count: gradients are averaged over pipelines, whatever they have.
TEST_P(JoinedPipelines, StepReturnsTheMeanOfAllOnEveryRank) {
  for (std::int64_t more : {0, 4}) {
    const double expected = (loss_of_one_process(8, 1) + loss_of_one_process(8 + more, 2)) / 2;
    run([&](Pipeline& pipeline, int number) {
      const PipedBatch batch = piped_batch(8 + number * more, 1 + number);
      const at::Tensor loss = pipeline.step(batch.inputs, batch.targets);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
    });
  }
}

TEST_P(JoinedPipelines, EvaluateReturnsTheLossOfItsOwnRows) {
  run([&](Pipeline& pipeline, int number) {
    const PipedBatch batch = piped_batch(8, 1 + number);
    const double expected = loss_of_one_process(8, 1 + number);
    EXPECT_NEAR(pipeline.evaluate(batch.inputs, batch.targets).item<double>(), expected, 1e-6);
  });
}

TEST_P(JoinedPipelines, StepInsideNoSyncReturnsTheLossOfItsOwnRows) {
  if (GetParam() != "ddp") GTEST_SKIP() << "has no gradients to give inside no_sync()";
  run([&](Pipeline& pipeline, int number) {
    const PipedBatch batch = piped_batch(8, 1 + number);
    const NoSync scope = pipeline.no_sync();
    EXPECT_NEAR(pipeline.step(batch.inputs, batch.targets).item<double>(),
                loss_of_one_process(8, 1 + number), 1e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, JoinedPipelines, testing::Values("ddp", "fully_shard"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
