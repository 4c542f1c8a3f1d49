// Programs that were reported as problems in the public trackers of other systems: under every
// strategy, each trains like one process.
#include "parallel/every_strategy.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>
#include <string>

namespace lockstep {
namespace {

using namespace test;

// Parameters of unusual shapes and strides: 0-dim, one element, empty, transposed, channels_last.
struct UnusualImpl : torch::nn::Module {
  UnusualImpl() {
    a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(4, 4)));
    b = register_module("b", torch::nn::Linear(torch::nn::LinearOptions(4, 4)));
    gain = register_parameter("gain", at::ones({}));
    one = register_parameter("one", at::ones({1}));
    none = register_parameter("none", at::ones({0, 3}));
    turned = register_parameter("turned", at::ones({4, 4}).t());
    filter = register_parameter("filter",
                                at::ones({2, 1, 1, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    to(at::kDouble);
    fill_parameters(*this, 5);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::tanh(a->forward(x)) * gain + one;
    y = torch::tanh(b->forward(y).mm(turned));
    return at::conv2d(y.reshape({-1, 1, 2, 2}), filter).flatten(1) + none.sum();
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  at::Tensor gain, one, none, turned, filter;
};
TORCH_MODULE(Unusual);

// The interface between a program and a strategy; in one process, `no_sync` does nothing.
struct ProgramRun {
  Unusual model;
  std::function<void(const std::function<void()>&)> no_sync;
};

// One step on this rank's rows, up to and including backward().
using Program = std::function<void(ProgramRun&, const at::Tensor& rows)>;

std::map<std::string, Program> programs() {
  auto loss = [](ProgramRun& t, const at::Tensor& rows) {
    return t.model->forward(rows).square().mean();
  };
  return {
      {"GradientPenalty",
       [](ProgramRun& t, const at::Tensor& rows) {
         at::Tensor x = rows.detach().requires_grad_();
         at::Tensor y = t.model->forward(x);
         at::Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
         (y.square().mean() + slope.square().mean()).backward();
       }},
      {"TwoForwardsThenOneBackward",
       [=](ProgramRun& t, const at::Tensor& rows) {
         at::Tensor first = loss(t, rows), second = loss(t, rows * 2);
         (first + second).backward();
       }},
      {"TwoForwardsThenTwoBackwards",
       [=](ProgramRun& t, const at::Tensor& rows) {
         at::Tensor first = loss(t, rows), second = loss(t, rows * 2);
         t.no_sync([&] { second.backward(); });
         first.backward();
       }},
      {"TwoBackwardsOfOneForward",
       [=](ProgramRun& t, const at::Tensor& rows) {
         at::Tensor once = loss(t, rows);
         t.no_sync([&] { once.backward({}, /*retain_graph=*/true); });
         once.backward();
       }},
      {"AnOutputThatNobodyUses",
       [=](ProgramRun& t, const at::Tensor& rows) {
         at::Tensor used = loss(t, rows), unused = loss(t, rows * 3);
         used.backward();
       }},
      {"ALayerOnlyInAnEarlierMicroBatch",
       [=](ProgramRun& t, const at::Tensor& rows) {
         t.no_sync([&] { loss(t, rows).backward(); });
         (t.model->a->forward(rows).square().mean() * t.model->gain).backward();
       }},
  };
}

at::Tensor program_rows(int step, int rank) {
  return values({6, 4}, static_cast<std::uint64_t>(10 * step + rank)).to(at::kDouble);
}

constexpr int program_steps = 3;

// The mean over ranks of the gradients that one model gets from each rank's rows.
std::map<std::string, at::Tensor> of_one_process(const Program& program, int ranks) {
  ProgramRun trained{Unusual(), [](const auto& body) { body(); }};
  auto parameters = trained.model->parameters();
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < program_steps; ++step) {
    adamw.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) program(trained, program_rows(step, rank));
    for (const at::Tensor& parameter : parameters)
      if (parameter.grad().defined()) parameter.grad().div_(ranks);
    adamw.step();
  }
  return copies_of(*trained.model);
}

class UnusualProgram : public testing::TestWithParam<Strategy> {
 protected:
  static void train(auto& handle, const Unusual& model, const Group& group,
                    const Program& program) {
    ProgramRun trained{model, [&](const auto& body) {
                         auto scope = handle.no_sync();
                         body();
                       }};
    torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < program_steps; ++step) {
      handle.zero_grad();
      program(trained, program_rows(step, group.rank()));
      adamw.step();
    }
  }

  static std::map<std::string, at::Tensor> ranks_together(const Strategy& strategy,
                                                          const Group& group,
                                                          const Program& program) {
    Unusual model;
    if (!strategy.sharded) {
      DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
      train(ddp, model, group, program);
      return copies_of(*model);
    }
    ShardOptions options = *strategy.sharded;
    options.find_unused_parameters = true;
    auto sharded = fully_shard(model, group, options);
    train(sharded, model, group, program);
    return sharded.state_dict();
  }
};

TEST_P(UnusualProgram, TrainsAsOneProcess) {
  for (const auto& [name, program] : programs())
    for (int ranks : {1, 2, 3}) {
      const auto expected = of_one_process(program, ranks);
      run_as_threads(ranks, [&, &name = name, &program = program](const Group& group) {
        const auto found = ranks_together(GetParam(), group, program);
        for (const auto& [parameter, values] : expected)
          EXPECT_TRUE(at::allclose(found.at(parameter), values, 1e-12, 1e-13))
              << name << ", " << ranks << " ranks, " << parameter;
      });
    }
}

INSTANTIATE_TEST_SUITE_P(All, UnusualProgram, testing::ValuesIn(every_strategy()),
                         name_of_strategy);

}  // namespace
}  // namespace lockstep
