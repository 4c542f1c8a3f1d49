#include "dispatch/thread_generator.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <thread>

namespace lockstep::dispatch {
namespace {

at::Tensor drawn() {
  return torch::cat({at::rand({5}), at::randn({5}), at::randperm(5).to(at::kFloat),
                     torch::nn::functional::dropout(torch::ones({40})),
                     torch::empty({5}).bernoulli_(0.5)});
}

at::Tensor drawn_with(std::uint64_t seed) {
  ThreadGenerator generator(seed);
  return drawn();
}

TEST(ThreadGenerator, OperationsOfItsThreadDrawFromIt) {
  ThreadGenerator::prepare();
  torch::manual_seed(3);
  at::Tensor expected = drawn();
  torch::manual_seed(3);
  at::Tensor first = drawn_with(1);
  EXPECT_TRUE(at::equal(drawn_with(1), first));
  EXPECT_FALSE(at::equal(drawn_with(2), first));
  {
    ThreadGenerator outer(1);
    at::Tensor inner = drawn_with(2);
    EXPECT_TRUE(at::equal(drawn(), first));
    EXPECT_TRUE(at::equal(inner, drawn_with(2)));
    std::thread([&] { EXPECT_TRUE(at::equal(drawn(), expected)); }).join();  // uses the default one
  }
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(drawn(), expected));
}

TEST(ThreadGenerator, AGeneratorThatIsGivenIsUsed) {
  ThreadGenerator::prepare();
  auto own = [] { return at::make_generator<at::CPUGeneratorImpl>(9); };
  at::Tensor expected = at::rand({4}, own());
  ThreadGenerator generator(1);
  EXPECT_TRUE(at::equal(at::rand({4}, own()), expected));
}

// Gradients of random operations are the same as without a ThreadGenerator.
TEST(ThreadGenerator, AutogradGoesThrough) {
  ThreadGenerator::prepare();
  ThreadGenerator generator(1);
  at::Tensor x = torch::ones({100}).requires_grad_();
  at::Tensor y = torch::nn::functional::dropout(x);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));
}

}  // namespace
}  // namespace lockstep::dispatch
