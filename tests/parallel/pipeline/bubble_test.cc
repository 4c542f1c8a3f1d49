// A pipeline takes the time that the simulator predicts. Stages sleep instead of computing, so that
// ranks do not compete for cores.
#include <lockstep/parallel/pipeline/pipeline.h>

#include <lockstep/plan/simulation.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

void sleep_for(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// The forward, the gradient of the input and the gradient of the weight take the same time.
struct SlowProduct : torch::autograd::Function<SlowProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    sleep_for(20);
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    torch::autograd::variable_list result(2);
    if (context->needs_input_grad(0)) {
      sleep_for(20);
      result[0] = gradients[0] * saved[1];
    }
    if (context->needs_input_grad(1)) {
      sleep_for(20);
      result[1] = (gradients[0] * saved[0]).sum_to_size(saved[1].sizes());
    }
    return result;
  }
};

struct SlowImpl : torch::nn::Module {
  SlowImpl() : weight(register_parameter("weight", torch::ones({1, block_width}))) {}
  at::Tensor forward(const at::Tensor& x) { return SlowProduct::apply(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Slow);

struct Taken {
  double seconds = 0;   // of the slowest rank
  double promised = 0;  // by the simulator, from measured times
};

Taken taken_by(Group group, std::string_view name, int micro_batches) {
  const int chunks = name == "zbv" ? 2 : 1;
  torch::nn::Sequential model;
  // Each rank has the same amount of work, whatever its number of stages.
  for (int i = 0; i < 2 * group.size(); ++i) model->push_back(Slow());
  const auto schedule =
      plan::make_schedule(name, {.stages = chunks * group.size(), .micro_batches = micro_batches});
  Pipeline pipeline(split(model, even_points(2 * group.size(), schedule.stages)), schedule, group,
                    squared_error);
  const PipedBatch batch = piped_batch(micro_batches, 1);
  (void)pipeline.step(batch.inputs, batch.targets);
  (void)pipeline.step(batch.inputs, batch.targets);
  const Pipeline::Measured measured = pipeline.measured();
  at::Tensor own = at::zeros({schedule.stages, 4}, at::kDouble);
  for (std::size_t i = 0; i < measured.stages.size(); ++i) {
    const plan::StageTimes& times = measured.stages[i];
    own[pipeline.stages()[i]].copy_(
        at::tensor({times.forward, times.backward, times.input, times.weight}, at::kDouble));
  }
  group.all_reduce(own).wait();
  plan::PipelineTimes times{.stages = {}};
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto row = own[stage];
    times.stages.push_back({row[0].item<double>(), row[1].item<double>(), row[2].item<double>(),
                            row[3].item<double>()});
  }
  at::Tensor longest = at::full({1}, measured.seconds, at::kDouble);
  group.all_reduce(longest, Op::max).wait();
  const plan::Simulation simulation = plan::simulate(schedule, times);
  const plan::RankSimulation& promised = simulation.longest();
  return {longest.item<double>(), promised.end - promised.begin};
}

TEST(PipelineBubble, IsTheOneOfTheSimulator) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    run_group(BackendKind::local, 2, [&](Group group) {
      const Taken taken = taken_by(group, name, 4);
      EXPECT_NEAR(taken.seconds / taken.promised, 1, 0.02) << name;
    });
}

TEST(PipelineBubble, IsSmallerWithoutBubbleThanWithOne) {
  run_group(BackendKind::local, 2, [&](Group group) {
    const double with = taken_by(group, "1f1b", 4).seconds;
    EXPECT_LT(taken_by(group, "zbv", 4).seconds, 0.95 * with);
  });
}

}  // namespace
}  // namespace lockstep
