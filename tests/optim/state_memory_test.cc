// Optimizers whose state lies in memory that somebody else gives.
#include <lockstep/optim/state_memory.h>

#include <lockstep/optim/adam.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;

// Ordinary memory that remembers what it was asked.
class Remembering final : public StateMemory {
 public:
  at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
    given.push_back(at::zeros({count}, dtype));
    return given.back();
  }
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override {
    for (const at::Tensor& one : given)
      if (tensor.is_alias_of(one)) return true;
    return false;
  }
  void will_use(const at::Tensor& tensor) noexcept override { expected += holds(tensor); }
  void has_used(const at::Tensor& tensor) noexcept override { used += holds(tensor); }

  std::vector<at::Tensor> given;
  int expected = 0, used = 0;
};

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>, UpdateOptions)>;

std::vector<at::Tensor> some_parameters(std::int64_t rows) {
  torch::manual_seed(3);
  std::vector<at::Tensor> parameters;
  for (std::int64_t columns : {5, 0, 1000, 7})
    parameters.push_back(torch::randn({rows, columns}).requires_grad_());
  return parameters;
}

void step(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int seed) {
  torch::manual_seed(seed);
  for (const at::Tensor& parameter : parameters)
    parameter.mutable_grad() = torch::randn_like(parameter);
  optimizer.step();
}

class InMemory : public testing::TestWithParam<StateFormat> {
 protected:
  static std::vector<Make> makers() {
    return {[](auto parameters, auto update) {
              return std::make_unique<AdamW>(
                  parameters, torch::optim::AdamWOptions(0.01).amsgrad(true), update);
            },
            [](auto parameters, auto update) {
              return std::make_unique<Adam>(parameters, torch::optim::AdamOptions(0.01), update);
            },
            [](auto parameters, auto update) {
              return std::make_unique<SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9),
                                           update);
            }};
  }
};

TEST_P(InMemory, StepsGiveTheSameBits) {
  for (const Make& make : makers()) {
    auto memory = std::make_shared<Remembering>();
    auto plain = some_parameters(11), ours = some_parameters(11);
    auto expected = make(plain, {.state = GetParam()});
    auto found = make(ours, {.state = GetParam(), .memory = memory});
    for (int i = 0; i < 3; ++i) {
      step(*expected, plain, i);
      step(*found, ours, i);
    }
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(ours[i])) << i;
    EXPECT_FALSE(memory->given.empty());
    EXPECT_GT(memory->used, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, InMemory,
                         testing::Values(StateFormat::float32, StateFormat::bfloat16,
                                         StateFormat::blocks));

const torch::optim::AdamWParamState& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

// What a program or a checkpoint put there comes along with the next step.
TEST(StateMemory, TakesStateThatWasElsewhere) {
  auto plain = some_parameters(3), ours = some_parameters(3);
  AdamW expected(plain, torch::optim::AdamWOptions(0.01));
  auto memory = std::make_shared<Remembering>();
  AdamW found(ours, torch::optim::AdamWOptions(0.01), {.memory = memory});
  step(expected, plain, 1);
  step(found, ours, 1);
  for (const at::Tensor& parameter : ours) {
    auto& state = const_cast<torch::optim::AdamWParamState&>(state_of(found, parameter));
    state.exp_avg(state.exp_avg().clone());
  }
  step(expected, plain, 2);
  step(found, ours, 2);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(plain[i].equal(ours[i])) << i;
    if (ours[i].numel() == 0) continue;
    EXPECT_TRUE(memory->holds(state_of(found, ours[i]).exp_avg())) << i;
    EXPECT_TRUE(memory->holds(state_of(found, ours[i]).exp_avg_sq())) << i;
  }
}

// 12 parameters of 16 MiB each, with gradient and state: several stretches, and the next one is
// announced before the one at hand is over.
TEST(StateMemory, IsToldWhatComesNext) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 12; ++i) parameters.push_back(torch::zeros({1 << 20}).requires_grad_());
  auto memory = std::make_shared<Remembering>();
  AdamW adamw(parameters, torch::optim::AdamWOptions(0.01), {.memory = memory});
  step(adamw, parameters, 1);
  EXPECT_EQ(memory->used, 24);
  EXPECT_EQ(memory->expected, 20);  // all but the first two parameters'
}

}  // namespace
}  // namespace lockstep::optim
