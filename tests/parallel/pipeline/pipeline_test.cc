// Pipelines give bitwise the same results as one process, with every schedule, on threads and
// processes.
#include <lockstep/parallel/pipeline/pipeline.h>

#include <lockstep/plan/schedule.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

int chunks_of(std::string_view name) {
  return name == "interleaved" || name == "zbv" || name == "dualpipev" ? 2 : 1;
}

plan::Schedule schedule_for(std::string_view name, int ranks) {
  return plan::make_schedule(
      name, {.stages = ranks * chunks_of(name), .micro_batches = ranks == 1 ? 3 : 2 * ranks});
}

class PipelineOn : public BackendTest {};

// Two steps of SGD, an evaluation, and the outputs.
void expect_equal_to_one_process(Group group, const plan::Schedule& schedule) {
  auto model = blocks(block_count), plain = blocks(block_count);
  const std::string where = schedule.name;
  Pipeline pipeline(split(model, even_points(block_count, schedule.stages)), schedule, group,
                    squared_error);
  torch::optim::SGD sgd(pipeline.parameters(), 0.1), plain_sgd(plain->parameters(), 0.1);
  const StageForward forward = [&](const Tensors& x) { return Tensors{plain->forward(x[0])}; };
  for (int step = 0; step < 2; ++step) {
    const PipedBatch batch = piped_batch(5 * schedule.micro_batches + 3, step);
    pipeline.zero_grad();
    plain_sgd.zero_grad();
    const at::Tensor loss = pipeline.step(batch.inputs, batch.targets);
    const at::Tensor expected =
        one_process_step(forward, squared_error, batch, schedule.micro_batches);
    expect_same_bits(loss, expected, where + ": loss");
    expect_gradients(pipeline, gradients_of(*plain), where);
    sgd.step();
    plain_sgd.step();
  }
  const std::map<std::string, at::Tensor> state = pipeline.state_dict();
  for (const auto& parameter : plain->named_parameters())
    expect_same_bits(state.at(parameter.key()), parameter.value().detach(), parameter.key());
  at::NoGradGuard no_grad;
  const PipedBatch batch = piped_batch(5 * schedule.micro_batches + 3, 7);
  const Tensors outputs = pipeline.forward(batch.inputs);
  const int last_rank = plan::rank_of_stages(schedule).back();
  ASSERT_EQ(outputs.size(), group.rank() == last_rank ? 1u : 0u);
  if (!outputs.empty()) {
    EXPECT_TRUE(at::allclose(outputs.front(), plain->forward(batch.inputs.front())));
  }
  const at::Tensor loss = pipeline.evaluate(batch.inputs, batch.targets);
  EXPECT_NEAR(loss.item<double>(),
              squared_error({plain->forward(batch.inputs.front())}, batch.targets).item<double>(),
              1e-6);
}

TEST_P(PipelineOn, EveryScheduleEqualsOneProcessBitForBit) {
  for (const std::string_view name : plan::schedule_names())
    run([&](Group group) { expect_equal_to_one_process(group, schedule_for(name, group.size())); });
}

// An unnamed schedule: consecutive stages on one rank, with split backwards (I and W).
TEST(PipelineOfTwoRanks, ExecutesTheScheduleOfAFile) {
  run_group(BackendKind::shm, 2, [&](Group group) {
    expect_equal_to_one_process(group,
                                plan::parse_schedule("0F0,1F0,0F1,1F1,1I1,1W1,0B1,1B0,0I0,0W0\n"
                                                     "2F0,3F0,2F1,3B0,3F1,3I1,2I1,2B0,2W1,3W1\n",
                                                     "mine.csv"));
  });
}

struct ShiftImpl : torch::nn::Module {
  ShiftImpl() : shift(register_parameter("shift", torch::ones({block_width}))) {}
  at::Tensor forward(const at::Tensor& x) { return x + shift.view({1, block_width}); }
  at::Tensor shift;
};
TORCH_MODULE(Shift);

// The gradient of `shift` reuses the memory of its input's gradient. The next micro-batch
// accumulates into it, possibly before the previous stage has read the input's gradient.
TEST(PipelineOfOneRank, AGradientThatIsPassedOnDoesNotGrow) {
  run_group(BackendKind::local, 1, [&](Group group) {
    for (const char* actions :
         {"0F0,0F1,1F0,1F1,1I0,1W0,1I1,1W1,0B0,0B1\n", "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n"}) {
      torch::manual_seed(1);
      torch::nn::Sequential model(torch::nn::Linear(block_width, block_width), Shift());
      torch::manual_seed(1);
      torch::nn::Sequential plain(torch::nn::Linear(block_width, block_width), Shift());
      Pipeline pipeline(split(model, {"1"}), plan::parse_schedule(actions, "mine.csv"), group,
                        squared_error);
      const PipedBatch batch = piped_batch(2, 0);
      (void)pipeline.step(batch.inputs, batch.targets);
      (void)one_process_step([&](const Tensors& x) { return Tensors{plain->forward(x[0])}; },
                             squared_error, batch, 2);
      expect_gradients(pipeline, gradients_of(*plain), actions);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineOn, every_backend({1, 4}), backend_test_name);
// Three stages divide the blocks unevenly.
INSTANTIATE_TEST_SUITE_P(Uneven, PipelineOn, testing::Values(std::tuple(BackendKind::local, 3)),
                         backend_test_name);

}  // namespace
}  // namespace lockstep
