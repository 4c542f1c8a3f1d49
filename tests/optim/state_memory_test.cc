// Optimizers whose state is in memory of the caller.
#include <lockstep/optim/update_options.h>

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <lockstep/base/error.h>

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <sstream>
#include <vector>

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;

// Ordinary memory that records the calls.
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
                                         StateFormat::blockwise));

const torch::optim::AdamWParamState& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

// State that a program or a checkpoint has put elsewhere is moved in the next step.
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

TEST(StateMemory, HasTheMastersOfParametersInSixteenBits) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> plain, ours;
    for (auto* list : {&plain, &ours})
      for (const at::Tensor& parameter : some_parameters(3))
        list->push_back(parameter.detach().to(dtype).requires_grad_());
    auto memory = std::make_shared<Remembering>();
    AdamW expected(plain, torch::optim::AdamWOptions(0.01));
    AdamW found(ours, torch::optim::AdamWOptions(0.01), {.memory = memory});
    for (int i = 0; i < 3; ++i) {
      step(expected, plain, i);
      step(found, ours, i);
      auto& state = dynamic_cast<AdamWState&>(
          const_cast<torch::optim::AdamWParamState&>(state_of(found, ours[0])));
      EXPECT_TRUE(memory->holds(state.master_parameter)) << i;
      if (i == 1) state.master_parameter = state.master_parameter.clone();  // as if loaded
    }
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(ours[i])) << i;
    // Uses: four new masters, one master that is moved, and in each step the master and moments of
    // each parameter.
    EXPECT_EQ(memory->used, 4 + 1 + 3 * 4 * 3);
  }
}

// 12 parameters of 16 MiB each, with gradient and state, make several batches; the next batch is
// announced before the current one has ended.
TEST(StateMemory, IsToldWhatComesNext) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 12; ++i) parameters.push_back(torch::zeros({1 << 20}).requires_grad_());
  auto memory = std::make_shared<Remembering>();
  AdamW adamw(parameters, torch::optim::AdamWOptions(0.01), {.memory = memory});
  step(adamw, parameters, 1);
  EXPECT_EQ(memory->used, 24);
  EXPECT_EQ(memory->expected, 20);  // those of all except the first two parameters
}

// LibTorch's optimizers, with the state tensors per parameter of each.
struct Theirs {
  std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)> make;
  bool made_at_once;
};

std::vector<Theirs> their_optimizers() {
  using namespace torch::optim;
  auto made = [](auto make, bool at_once) { return Theirs{make, at_once}; };
  return {made(
              [](auto parameters) {
                return std::make_unique<torch::optim::AdamW>(parameters,
                                                             AdamWOptions(0.01).amsgrad(true));
              },
              true),
          made(
              [](auto parameters) {
                return std::make_unique<torch::optim::Adam>(parameters, AdamOptions(0.01));
              },
              true),
          made(
              [](auto parameters) {
                return std::make_unique<RMSprop>(parameters,
                                                 RMSpropOptions(0.01).momentum(0.9).centered(true));
              },
              true),
          made([](auto parameters) { return std::make_unique<Adagrad>(parameters, 0.01); }, true),
          made(
              [](auto parameters) {
                return std::make_unique<torch::optim::SGD>(parameters,
                                                           SGDOptions(0.01).momentum(0.9));
              },
              false)};
}

TEST(MoveState, TorchsOptimizersTakeTheSameStepsInOtherMemory) {
  for (const auto& [make, made_at_once] : their_optimizers()) {
    auto plain = some_parameters(3), ours = some_parameters(3);
    auto expected = make(plain), found = make(ours);
    auto memory = std::make_shared<Remembering>();
    move_state(*found, memory);
    EXPECT_EQ(!memory->given.empty(), made_at_once);
    for (int i = 0; i < 3; ++i) {
      step(*expected, plain, i);
      step(*found, ours, i);
      if (i == 0) move_state(*found, memory);
    }
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(ours[i])) << i;
    std::size_t given = memory->given.size();
    EXPECT_GT(given, 0U);
    move_state(*found, memory);
    EXPECT_EQ(memory->given.size(), given);  // state is allocated in one step
    EXPECT_TRUE(at::equal(memory->given[0].ne(0).any(), at::ones({}, at::kBool)));
  }
}

TEST(MoveState, FollowsAnArchive) {
  auto plain = some_parameters(3), ours = some_parameters(3);
  torch::optim::AdamW expected(plain, torch::optim::AdamWOptions(0.01));
  step(expected, plain, 1);
  std::stringstream archive;
  torch::save(expected, archive);
  step(expected, plain, 2);
  auto memory = std::make_shared<Remembering>();
  torch::optim::AdamW found(ours, torch::optim::AdamWOptions(0.01));
  move_state(found, memory);
  step(found, ours, 1);
  torch::load(found, archive);
  move_state(found, memory);
  step(found, ours, 2);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(plain[i].equal(ours[i])) << i;
    if (ours[i].numel() > 0) EXPECT_TRUE(memory->holds(state_of(found, ours[i]).exp_avg())) << i;
  }
}

TEST(MoveState, RefusesOtherOptimizersAndOurs) {
  auto parameters = some_parameters(3);
  auto memory = std::make_shared<Remembering>();
  torch::optim::LBFGS lbfgs(parameters);
  EXPECT_THROW(move_state(lbfgs, memory), InvalidArgument);
  AdamW ours(parameters);
  EXPECT_THROW(move_state(ours, memory), InvalidArgument);
  torch::optim::AdamW theirs(parameters);
  move_state(theirs, nullptr);
  EXPECT_TRUE(theirs.state().empty());
  EXPECT_TRUE(memory->given.empty());
}

}  // namespace
}  // namespace lockstep::optim
