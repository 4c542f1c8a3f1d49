// Compressed states: they train as well, they are small, and their stochastic rounding does not
// depend on threads.
#include "optim/support.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sstream>

namespace lockstep::optim {
namespace {

using test::parameters_of;
using test::set_gradients;
using test::state_of;
using torch::optim::AdamWOptions;

// Trains a small network on a function and returns the mean loss of the last steps.
template <class Make>
double trained_loss(const Make& make) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  auto optimizer = make(model->parameters());
  at::Tensor truth = torch::randn({8, 1});
  double sum = 0;
  constexpr int steps = 1000, last = 200;
  for (int step = 0; step < steps; ++step) {
    at::Tensor x = torch::randn({64, 8});
    // The noise leaves a loss of 0.01.
    at::Tensor y = torch::sin(x.matmul(truth)) + 0.1 * torch::randn({64, 1});
    optimizer->zero_grad();
    at::Tensor loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    optimizer->step();
    if (step >= steps - last) sum += loss.item<double>() / last;
  }
  return sum;
}

double adamw_loss(StateFormat format) {
  return trained_loss([&](std::vector<at::Tensor> parameters) {
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(3e-3),
                                   UpdateOptions{.state = format});
  });
}

TEST(SmallState, TrainsAsWellAsFloat) {
  double wide = adamw_loss(StateFormat::float32);
  EXPECT_LT(wide, 0.1);
  EXPECT_NEAR(adamw_loss(StateFormat::bfloat16), wide, 0.15 * wide);
  EXPECT_NEAR(adamw_loss(StateFormat::blockwise), wide, 0.25 * wide);
}

// In each step, a gradient's mean square changes by a thousandth, which is less than half of the
// resolution of 8 bits: rounding to nearest would never change the first value.
TEST(SmallState, FollowsSlowChanges) {
  for (StateFormat format : {StateFormat::bfloat16, StateFormat::blockwise}) {
    auto parameters = parameters_of({{64, 64}});
    AdamW adamw(parameters, AdamWOptions(1e-6), {.state = format});
    for (int step = 0; step < 4000; ++step) {
      double size = step < 1000 ? 1 : 0.5;
      parameters[0].mutable_grad() = torch::full({64, 64}, size);
      adamw.step();
    }
    at::Tensor squares = state_of<AdamWState>(adamw, parameters[0]).plain_fields().at("exp_avg_sq");
    double left = 0.632 * std::pow(0.999, 3000) + 0.25 * (1 - std::pow(0.999, 3000));
    EXPECT_NEAR(squares.mean().item<double>(), left, 0.03 * left);
  }
}

// When the momentum is close to its limit, a step changes it by less than half of its resolution:
// rounding to nearest would stop a quarter away from the limit.
TEST(SmallState, FollowsSlowChangesOfMomentum) {
  for (StateFormat format : {StateFormat::bfloat16, StateFormat::blockwise}) {
    auto parameters = parameters_of({{64, 64}});
    SGD sgd(parameters, torch::optim::SGDOptions(1e-6).momentum(0.99), {.state = format});
    for (int step = 0; step < 1000; ++step) {
      parameters[0].mutable_grad() = torch::ones({64, 64});
      sgd.step();
    }
    at::Tensor momentum =
        state_of<SGDState>(sgd, parameters[0]).plain_fields().at("momentum_buffer");
    EXPECT_NEAR(momentum.mean().item<double>(), 100, 3);
  }
}

std::size_t state_bytes(const AdamWState& state) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor :
       {state.exp_avg(), state.exp_avg_sq(), state.exp_avg_scale, state.exp_avg_sq_scale})
    if (tensor.defined()) bytes += tensor.nbytes();
  return bytes;
}

TEST(SmallState, IsSmall) {
  auto bytes = [](StateFormat format) {
    auto parameters = parameters_of({{256, 100}});
    parameters[0].mutable_grad() = torch::ones({256, 100});
    AdamW adamw(parameters, AdamWOptions(1e-3), {.state = format});
    adamw.step();
    return state_bytes(state_of<AdamWState>(adamw, parameters[0]));
  };
  EXPECT_EQ(bytes(StateFormat::float32), 25'600U * 8);
  EXPECT_EQ(bytes(StateFormat::bfloat16), 25'600U * 4);
  EXPECT_EQ(bytes(StateFormat::blockwise), 25'600U * 2 + 100 * 8);
}

// Results are equal for parameters in one storage and in many, with one thread and with three.
TEST(SmallState, StochasticRoundingDoesNotDependOnThreadsOrRuns) {
  const std::vector<std::vector<std::int64_t>> shapes{{300, 300}, {256}, {77}, {512, 256}};
  for (StateFormat format : {StateFormat::bfloat16, StateFormat::blockwise}) {
    test::FlatParameters together(shapes);
    auto apart = test::copies_of(together.parameters);
    AdamW one(together.parameters, AdamWOptions(1e-3), {.state = format});
    AdamW many(apart, AdamWOptions(1e-3), {.state = format});
    for (int step = 0; step < 5; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(step));
      at::NoGradGuard no_grad;
      together.gradients.normal_();
      for (std::size_t i = 0; i < apart.size(); ++i)
        apart[i].mutable_grad() = together.parameters[i].grad().clone();
      one.step();
      at::set_num_threads(3);
      many.step();
      at::set_num_threads(1);
    }
    for (std::size_t i = 0; i < apart.size(); ++i)
      EXPECT_TRUE(at::equal(apart[i], together.parameters[i])) << i;
  }
}

TEST(SmallState, IsPlainInArchives) {
  for (StateFormat format : {StateFormat::bfloat16, StateFormat::blockwise}) {
    auto mine = parameters_of({{33, 17}, {600}}), other = test::copies_of(mine);
    AdamW ours(mine, AdamWOptions(1e-2), {.state = format});
    for (int step = 0; step < 5; ++step) {
      set_gradients(mine, other);
      ours.step();
    }
    std::stringstream archive;
    torch::save(ours, archive);
    torch::optim::AdamW theirs(other, AdamWOptions(1e-2));
    torch::load(theirs, archive);
    auto& plain = state_of<torch::optim::AdamWParamState>(theirs, other[1]);
    EXPECT_EQ(plain.exp_avg_sq().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(plain.exp_avg_sq(),
                          state_of<AdamWState>(ours, mine[1]).plain_fields().at("exp_avg_sq")));
    EXPECT_EQ(plain.step(), 5);
  }
}

TEST(SmallState, ContinuesFromAnArchiveBitForBit) {
  for (StateFormat format : {StateFormat::bfloat16, StateFormat::blockwise}) {
    auto mine = parameters_of({{33, 17}, {600}}), other = test::copies_of(mine);
    AdamW ours(mine, AdamWOptions(1e-2), {.state = format});
    set_gradients(mine, other);
    for (int step = 0; step < 5; ++step) ours.step();
    std::stringstream archive;
    torch::save(ours, archive);
    auto resumed = test::copies_of(mine);
    AdamW again(resumed, AdamWOptions(1e-2), {.state = format});
    torch::load(again, archive);
    for (std::size_t i = 0; i < mine.size(); ++i) resumed[i].mutable_grad() = mine[i].grad();
    for (int step = 0; step < 5; ++step) {
      ours.step();
      again.step();
    }
    for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(at::equal(mine[i], resumed[i])) << i;
  }
}

TEST(SmallState, IsRefusedWhereThereIsNoKernelForIt) {
  auto parameters = parameters_of({{3}, {4}}, 0, at::kDouble);
  auto untouched = test::copies_of(parameters);
  set_gradients(parameters, untouched);
  AdamW adamw(parameters, AdamWOptions(1e-2), {.state = StateFormat::blockwise});
  EXPECT_THROW(adamw.step(), InvalidArgument);
  EXPECT_TRUE(at::equal(parameters[0], untouched[0]));
}

TEST(SmallState, HoldsMomentumToo) {
  auto loss = [](StateFormat format) {
    return trained_loss([&](std::vector<at::Tensor> parameters) {
      return std::make_unique<SGD>(std::move(parameters),
                                   torch::optim::SGDOptions(0.05).momentum(0.9),
                                   UpdateOptions{.state = format});
    });
  };
  double wide = loss(StateFormat::float32);
  EXPECT_NEAR(loss(StateFormat::bfloat16), wide, 0.15 * wide);
  EXPECT_NEAR(loss(StateFormat::blockwise), wide, 0.25 * wide);
}

}  // namespace
}  // namespace lockstep::optim
