// Pipelines that are replicas or shards of each other: each has its own rows, and step() and
// evaluate() return the loss of these rows.
#include <lockstep/parallel/parallelize.h>

#include "parallel/pipeline/support.h"

namespace lockstep {
namespace {

using namespace test;

double loss_of_one_process(std::int64_t rows, int seed) {
  torch::nn::Sequential model = blocks(block_count);
  const PipedBatch batch = piped_batch(rows, seed);
  torch::NoGradGuard no_grad;
  return squared_error({model->forward(batch.inputs[0])}, batch.targets).item<double>();
}

class JoinedPipelines : public testing::TestWithParam<std::string> {
 protected:
  // Creates 2 pipelines of 2 stages and calls `body` with this rank's pipeline and its number.
  void run(const std::function<void(ParallelModel&, int)>& body) {
    run_as_threads(4, [&](Group world) {
      ParallelModel pipeline = parallelize(
          blocks(block_count), Mesh(world, {{GetParam(), 2}, {"pp", 2}}), {.micro_batches = 4});
      body(pipeline, pipeline.data().rank());
    });
  }
};

TEST_P(JoinedPipelines, StepReturnsTheLossOfItsOwnRows) {
  for (std::int64_t more : {0, 4})
    run([&](ParallelModel& pipeline, int number) {
      const std::int64_t rows = 8 + number * more;
      const PipedBatch batch = piped_batch(rows, 1 + number);
      const at::Tensor loss = pipeline.step(batch.inputs, batch.targets, squared_error);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>(), loss_of_one_process(rows, 1 + number), 1e-6);
    });
}

TEST_P(JoinedPipelines, EvaluateReturnsTheLossOfItsOwnRows) {
  run([&](ParallelModel& pipeline, int number) {
    const PipedBatch batch = piped_batch(8, 1 + number);
    const at::Tensor loss = pipeline.evaluate(batch.inputs, batch.targets, squared_error);
    EXPECT_NEAR(loss.item<double>(), loss_of_one_process(8, 1 + number), 1e-6);
  });
}

TEST_P(JoinedPipelines, StepInsideNoSyncReturnsTheLossOfItsOwnRows) {
  run([&](ParallelModel& pipeline, int number) {
    const PipedBatch batch = piped_batch(8, 1 + number);
    const NoSync scope = pipeline.no_sync();
    EXPECT_NEAR(pipeline.step(batch.inputs, batch.targets, squared_error).item<double>(),
                loss_of_one_process(8, 1 + number), 1e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(Axes, JoinedPipelines, testing::Values("dp", "fsdp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
