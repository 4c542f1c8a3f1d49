// Calls on the module of a pipeline take effect or throw. A call that the other ranks do not make
// throws.
#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

namespace lockstep {
namespace {

using namespace test;

class PipelineModule : public BackendTest {};

// A pipeline and the same model in one process, each with an optimizer.
struct Pair {
  torch::nn::Sequential model = blocks(block_count), plain = blocks(block_count);
  plan::Schedule schedule;
  Pipeline pipeline;

  explicit Pair(Group group)
      : schedule(plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4})),
        pipeline(split(model, even_points(block_count, schedule.stages)), schedule, group,
                 squared_error) {}
  void step(int seed) {
    const PipedBatch batch = piped_batch(8, seed);
    (void)pipeline.step(batch.inputs, batch.targets);
    (void)one_process_step([this](const Tensors& x) { return Tensors{plain->forward(x[0])}; },
                           squared_error, batch, schedule.micro_batches);
  }
  void expect_equal_parameters() {
    const auto expected = plain->named_parameters();
    for (const Part& part : pipeline.named_parameters()) {
      if (!expected.contains(part.name)) continue;  // of a rank without any
      EXPECT_TRUE(at::allclose(dispatch::values_of(part.tensor.detach()),
                               expected[part.name].detach(), 1e-5, 1e-6))
          << part.name;
    }
  }
};

TEST_P(PipelineModule, ItsZeroGradCounts) {
  run([](Group group) {
    for (const bool by_optimizer : {false, true}) {
      Pair pair(group);
      torch::optim::SGD sgd(by_optimizer ? pair.model->parameters() : pair.pipeline.parameters(),
                            0.1);
      torch::optim::SGD reference(pair.plain->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        if (by_optimizer)
          sgd.zero_grad();
        else
          pair.model->zero_grad();
        pair.plain->zero_grad();
        pair.step(step);
        sgd.step();
        reference.step();
      }
      pair.expect_equal_parameters();
    }
  });
}

at::Tensor penalty(torch::nn::Module& module) {
  at::Tensor sum = torch::zeros({});
  for (const at::Tensor& parameter : module.parameters()) sum = sum + parameter.square().sum();
  return sum;
}

TEST_P(PipelineModule, GradientsOfItsOwnAreAdded) {
  run([](Group group) {
    for (const bool before : {true, false}) {
      Pair pair(group);
      torch::optim::SGD sgd(pair.pipeline.parameters(), 0.1);
      torch::optim::SGD reference(pair.plain->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        pair.pipeline.zero_grad();
        pair.plain->zero_grad();
        if (!before) pair.step(step);
        penalty(*pair.model).backward();
        penalty(*pair.plain).backward();
        if (before) pair.step(step);
        sgd.step();
        reference.step();
      }
      pair.expect_equal_parameters();
    }
  });
}

// Clipping by the norm of this rank's stages would scale each rank by a different factor.
TEST_P(PipelineModule, ClippingItIsRefused) {
  run([](Group group) {
    if (group.size() == 1) return;  // it has all parameters
    Pair pair(group);
    pair.step(1);
    expect_contains(message_of<InvalidArgument>(
                        [&] { torch::nn::utils::clip_grad_norm_(pair.model->parameters(), 1.0); }),
                    "clip_grad_norm()");
  });
}

// Otherwise a rank would receive messages of the wrong call.
TEST_P(PipelineModule, RanksThatCallDifferentThingsAreTold) {
  run([](Group group) {
    if (group.size() == 1) return;
    Pair pair(group);
    const PipedBatch batch = piped_batch(8, 1);
    expect_contains(message_of<Mismatch>([&] {
                      if (group.is_root())
                        (void)pair.pipeline.evaluate(batch.inputs, batch.targets);
                      else
                        (void)pair.pipeline.step(batch.inputs, batch.targets);
                    }),
                    "rank 0 called evaluate() where rank 1 called step()");
    pair.step(2);  // the group is usable
  });
}

TEST_P(PipelineModule, InputsThatWouldGetNoGradientAreRefused) {
  run([](Group group) {
    Pair pair(group);
    PipedBatch batch = piped_batch(8, 1);
    batch.inputs[0].requires_grad_();
    expect_contains(
        message_of<InvalidArgument>([&] { (void)pair.pipeline.step(batch.inputs, batch.targets); }),
        "expected tensors that require no gradient");
    (void)pair.pipeline.evaluate(batch.inputs, batch.targets);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineModule, every_backend({1, 3}), backend_test_name);

}  // namespace
}  // namespace lockstep
