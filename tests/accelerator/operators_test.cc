// Operators and training on the simulated accelerator give the same bits as on the CPU.
#include "support/accelerator/expectations.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <vector>

using namespace lockstep::test::accelerator;

namespace {

namespace nn = torch::nn;

class Operators : public AcceleratorTest {};

std::vector<at::Tensor> losses_on(c10::Device where) {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(16, 32), nn::ReLU(), nn::LayerNorm(nn::LayerNormOptions({32})),
                     nn::Linear(32, 32), nn::GELU(), nn::Linear(32, 4));
  const auto inputs = at::randn({24, 16}).to(where);
  const auto targets = at::randint(4, {24}, at::kLong).to(where);
  net->to(where);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<at::Tensor> losses;
  for (int step = 0; step < 6; ++step) {
    adamw.zero_grad();
    const auto loss = at::cross_entropy_loss(net->forward(inputs), targets);
    loss.backward();
    adamw.step();
    losses.push_back(loss.detach());
  }
  return losses;
}

TEST_F(Operators, TrainANetWithTheBitsOfTheCpu) {
  const auto expected = losses_on(c10::kCPU);
  const auto found = losses_on(device(0));
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(found[i].item<float>(), expected[i].item<float>());
}

TEST_F(Operators, AStepOfTrainingNeverBlocksTheHost) {
  nn::Linear linear(16, 4);
  linear->to(device(0));
  const auto inputs = at::ones({8, 16}, device(0));
  torch::optim::AdamW adamw(linear->parameters());
  expect_synchronizations_at_most(0, 0, [&] {
    linear->forward(inputs).sum().backward();
    adamw.step();
  });
}

TEST_F(Operators, DrawTheSameNumbersUnderEverySchedule) {
  std::vector<float> sums;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    torch::manual_seed(3);
    const auto noise = at::randn({100}, device(0));
    sums.push_back((at::dropout(noise, 0.5, true) + noise).sum().item<float>());
  }
  EXPECT_EQ(sums, std::vector<float>(4, sums.front()));
}

// Autograd runs nodes on the stream of their forward and joins the caller's stream with it.
TEST_F(Operators, BackwardOfASideStreamIsOrderedWithTheCaller) {
  const auto weights = at::ones({4, 4}, device(0)).requires_grad_();
  const auto inputs = at::ones({2, 4}, device(0));
  at::Tensor loss;
  {
    const auto side = new_stream(device(0));
    c10::Event event(side.device_type());
    event.record(current_stream(device(0)));
    side.wait(event);
    const c10::StreamGuard on(side);
    loss = (inputs.mm(weights) + inputs.mm(weights * 2)).sum();
  }
  loss.backward();
  EXPECT_EQ((weights.grad() * 2).sum().item<float>(), 192);
}

TEST_F(Operators, AutocastComputesInTheLowDtype) {
  const auto weights = at::ones({4, 4}, device(0));
  at::autocast::set_autocast_enabled(c10::DeviceType::PrivateUse1, true);
  at::autocast::set_autocast_dtype(c10::DeviceType::PrivateUse1, at::kBFloat16);
  const auto product = weights.mm(weights);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(c10::DeviceType::PrivateUse1, false);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
}

}  // namespace
