// Activations that checkpoint_activations() keeps in pinned host memory, on the simulated
// accelerator.
#include <lockstep/models/gpt.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/module/named_parameters.h>

#include "parallel/tensor/support.h"
#include "support/accelerator/expectations.h"
#include "train/device.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace test::accelerator;

constexpr int layers = 6;

class OffloadedActivations : public AcceleratorTest {
 protected:
  void SetUp() override {
    AcceleratorTest::SetUp();
    device_ = device(0);
  }

  // Runs the test's body under late and early schedules.
  static void under_each_schedule(const std::function<void()>& body) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
      body();
      expect_no_faults();
    }
  }

  [[nodiscard]] static models::Gpt gpt(c10::Device device) {
    models::GptOptions options = test::small_gpt(layers);
    options.dropout = 0.2;
    models::Gpt model(options);
    test::fill_parameters(*model, 1);
    model->to(device);
    return model;
  }

  // Three layers, each of which is a block.
  [[nodiscard]] torch::nn::Sequential net(bool offload = true) const {
    torch::nn::Sequential net;
    for (int i = 0; i < 3; ++i) net->push_back(torch::nn::Linear(width_, width_));
    test::fill_parameters(*net, 1);
    net->to(device_);
    if (offload) (void)checkpoint_activations(*net, {"*"}, {.offload = true});
    return net;
  }
  [[nodiscard]] at::Tensor input() const { return test::values({16, width_}, 3).to(device_); }

  // Returns a block's result, from several kernels.
  static at::Tensor block(torch::nn::Sequential& net, std::size_t number, const at::Tensor& input) {
    return net->ptr<torch::nn::LinearImpl>(number)->forward(input).sigmoid().square().cos();
  }

  static std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
    std::vector<at::Tensor> found;
    for (const NamedParameter& one : unique_parameters(module))
      found.push_back(one.tensor.grad().cpu());
    return found;
  }

  static void expect_equal(const std::vector<at::Tensor>& found,
                           const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }

  // Returns the gradients of a step.
  [[nodiscard]] static std::vector<at::Tensor> step(c10::Device device, bool offload) {
    auto model = gpt(device);
    ActivationCheckpoints checkpoints = checkpoint_activations(
        *model, offload ? std::vector<std::string>{"transformer.h.*"} : std::vector<std::string>(),
        {.offload = true});
    train::seed_device(device, 5);
    const test::TokenBatch batch(0, 4);
    model->loss(batch.ids.to(device), batch.targets.to(device)).backward();
    EXPECT_EQ(checkpoints.counts().blocks, offload ? layers : 0);
    EXPECT_EQ(checkpoints.counts().released_bytes > 0, offload);
    EXPECT_EQ(checkpoints.counts().recomputations, 0);
    return gradients_of(*model);
  }

  static constexpr std::int64_t width_ = 32;
  c10::Device device_ = c10::kCPU;
};

TEST_F(OffloadedActivations, GradientsHaveTheSameBits) {
  const auto expected = step(device_, false);
  under_each_schedule([&] { expect_equal(step(device_, true), expected); });
}

TEST_F(OffloadedActivations, AStepDoesNotBlockTheHost) {
  auto model = gpt(device_);
  (void)checkpoint_activations(*model, {"transformer.h.*"}, {.offload = true});
  const test::TokenBatch batch(0, 4);
  const auto ids = batch.ids.to(device_), targets = batch.targets.to(device_);
  expect_synchronizations_at_most(0, 0, [&] { model->loss(ids, targets).backward(); });
}

TEST_F(OffloadedActivations, TheDeviceHasThoseOfTwoBlocksAtATime) {
  const auto peak = [&](bool offload) {
    auto model = net(offload);
    at::Tensor last = test::values({4096, width_}, 3).to(device_);
    (void)train::peak_memory(device_);
    for (int i = 0; i < 30; ++i) last = block(model, static_cast<std::size_t>(i % 3), last);
    last.sum().backward();
    return train::peak_memory(device_)->allocated;
  };
  // Each block has four results, of which the next block's input stays on the device.
  EXPECT_LT(peak(true), peak(false) / 2);
}

TEST_F(OffloadedActivations, AResultThatIsUsedAfterwardsComesBack) {
  auto plain = net(false);
  const at::Tensor expected = block(plain, 1, block(plain, 0, input()).detach()).cpu();
  under_each_schedule([&] {
    auto model = net();
    const at::Tensor first = block(model, 0, input());
    const at::Tensor second = block(model, 1, first);
    const at::Tensor third = block(model, 2, second.detach());
    EXPECT_TRUE(second.cpu().equal(expected));
    (second.sum() + third.sum()).backward();
  });
}

TEST_F(OffloadedActivations, AGraphMayBeUsedTwice) {
  const auto twice = [&](torch::nn::Sequential model) {
    const at::Tensor loss = block(model, 2, block(model, 1, block(model, 0, input()))).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return gradients_of(*model);
  };
  const auto expected = twice(net(false));
  under_each_schedule([&] { expect_equal(twice(net()), expected); });
}

// The backward pass of the last block begins to copy the activations of the block before it.
TEST_F(OffloadedActivations, AGraphMayBeDroppedInTheMiddleOfItsBackwardPass) {
  under_each_schedule([&] {
    auto model = net();
    std::vector<at::Tensor> others;
    {
      const at::Tensor second = block(model, 1, block(model, 0, input()));
      const at::Tensor loss = block(model, 2, second).exp().sum();
      (void)torch::autograd::grad({loss}, {model->ptr(2)->parameters().front()});
    }
    for (int i = 0; i < 20; ++i) others.push_back(input().add(i));  // takes the memory
    for (const at::Tensor& other : others) (void)other.cpu();
  });
}

TEST_F(OffloadedActivations, TwoModelsOnTwoThreadsAreIndependent) {
  const auto expected = step(device_, false);
  under_each_schedule([&] {
    std::vector<std::vector<at::Tensor>> found(2);
    run_ranks(2, [&](const Group& group, c10::Device own) {
      found[static_cast<std::size_t>(group.rank())] = step(own, true);
    });
    for (const auto& one : found) expect_equal(one, expected);
  });
}

TEST_F(OffloadedActivations, ResultsInHostMemoryStayThere) {
  torch::nn::Sequential model = net(false);
  model->to(at::kCPU);
  auto checkpoints = checkpoint_activations(*model, {"*"}, {.offload = true});
  const at::Tensor in = test::values({16, width_}, 3);
  block(model, 2, block(model, 1, block(model, 0, in))).sum().backward();
  EXPECT_EQ(checkpoints.counts().blocks, 3);
  EXPECT_EQ(checkpoints.counts().released_bytes, 0);
}

}  // namespace
}  // namespace lockstep
