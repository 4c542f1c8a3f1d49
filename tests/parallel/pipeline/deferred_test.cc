// A pipeline of a model that deferred() created, and evaluations of few rows.
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/sharded/deferred.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <memory>

namespace lockstep {
namespace {

using namespace test;

// Constant values, so that they are the same when the model is created again.
torch::nn::Sequential made_blocks() {
  torch::nn::Sequential model = blocks(4);
  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.25);
  return model;
}

TEST(DeferredPipeline, StagesGetTheirValues) {
  for (const int ranks : {1, 2})
    run_group(BackendKind::local, ranks, [&](Group group) {
      auto plain = made_blocks();
      auto model = deferred(made_blocks, {.smallest = 1});
      Pipeline pipeline(split(model, even_points(4, ranks)),
                        plan::make_schedule("1f1b", {.stages = ranks, .micro_batches = 2}), group,
                        squared_error);
      const PipedBatch batch = piped_batch(4, 1);
      const at::Tensor expected = squared_error({plain->forward(batch.inputs[0])}, batch.targets);
      EXPECT_NEAR(pipeline.step(batch.inputs, batch.targets).item<double>(),
                  expected.item<double>(), 1e-6);
    });
}

TEST(SmallEvaluations, AreOfAsManyMicroBatchesAsRows) {
  run_group(BackendKind::local, 2, [](Group group) {
    auto plain = blocks(4), model = blocks(4);
    Pipeline pipeline(split(model, even_points(4, 2)),
                      plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 4}), group,
                      squared_error);
    at::NoGradGuard no_grad;
    for (const std::int64_t rows : {1, 3, 4, 9}) {
      const PipedBatch batch = piped_batch(rows, rows);
      const at::Tensor output = plain->forward(batch.inputs[0]);
      EXPECT_NEAR(pipeline.evaluate(batch.inputs, batch.targets).item<double>(),
                  squared_error({output}, batch.targets).item<double>(), 1e-6);
      const Tensors found = pipeline.forward(batch.inputs);
      ASSERT_EQ(found.empty(), group.rank() == 0);
      if (!found.empty()) EXPECT_TRUE(at::allclose(found[0], output, 1e-5, 1e-6));
    }
  });
}

}  // namespace
}  // namespace lockstep
