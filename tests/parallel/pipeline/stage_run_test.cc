// A split backward gives the same bits as a single one and computes nothing twice.
#include "parallel/pipeline/stage_run.h"

#include "parallel/pipeline/support.h"

#include <lockstep/global/linear_cross_entropy.h>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <atomic>
#include <functional>

namespace lockstep::pipeline {
namespace {

using namespace test;
using Body = std::function<at::Tensor(const at::Tensor&)>;

SplitBackward::Edges edges_of(const at::Tensor& root) {
  return {torch::autograd::impl::gradient_edge(root)};
}

struct Outcome {
  at::Tensor of_input;
  std::vector<at::Tensor> of_weights;
};

Outcome whole(const Body& body, const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  at::Tensor input = x.detach().clone().set_requires_grad(true);
  for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  const at::Tensor output = body(input);
  backward(edges_of(output), {values(output.sizes(), 9)});
  return {input.grad(), test::gradients_of(weights)};
}

Outcome in_two(const Body& body, const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  at::Tensor input = x.detach().clone().set_requires_grad(true);
  for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  SplitBackward split;
  Outcome outcome;
  {
    const at::Tensor output = body(input);
    outcome.of_input =
        split.input_gradients(edges_of(output), {values(output.sizes(), 9)}, {input}).front();
  }
  for (const at::Tensor& weight : weights) EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(input.grad().defined());
  split.weight_gradients();
  EXPECT_FALSE(input.grad().defined());
  outcome.of_weights = test::gradients_of(weights);
  return outcome;
}

void expect_equal(const Body& body, const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  const Outcome expected = whole(body, weights, x), found = in_two(body, weights, x);
  test::expect_same_bits(found.of_input, expected.of_input, "input");
  for (std::size_t i = 0; i < weights.size(); ++i)
    test::expect_same_bits(found.of_weights[i], expected.of_weights[i],
                           "weight " + std::to_string(i));
}

TEST(SplitBackward, EqualsABackwardAtOnce) {
  auto model = blocks(3);
  expect_equal([&](const at::Tensor& x) { return model->forward(x); }, model->parameters(),
               values({4, block_width}, 1));
}

TEST(SplitBackward, AConvolutionAndBatchNormalisation) {
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)),
                              torch::nn::BatchNorm2d(3),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 2)));
  fill_parameters(*model, 4);
  expect_equal([&](const at::Tensor& x) { return model->forward(x); }, model->parameters(),
               values({2, 2, 6, 6}, 1));
}

TEST(SplitBackward, AWeightThatIsUsedTwiceAndOneThatIsNotUsed) {
  at::Tensor weight = values({5, 5}, 1).set_requires_grad(true),
             shift = values({5}, 2).set_requires_grad(true),
             unused = values({5}, 3).set_requires_grad(true);
  const auto twice = [&](const at::Tensor& x) {
    const at::Tensor transposed = weight.t();
    return at::tanh(at::mm(at::tanh(at::mm(x, transposed) + shift), transposed)) * shift;
  };
  expect_equal(twice, {weight, shift, unused}, values({3, 5}, 4));
}

TEST(SplitBackward, OutputsThatDoNotDependOnTheInput) {
  at::Tensor weight = values({4}, 1).set_requires_grad(true);
  at::Tensor input = values({4}, 2).set_requires_grad(true);
  SplitBackward split;
  const at::Tensor apart = weight.square(), both = weight * input;
  const auto gradients = split.input_gradients(
      {torch::autograd::impl::gradient_edge(apart), torch::autograd::impl::gradient_edge(both)},
      {at::ones({4}), at::ones({4})}, {input});
  test::expect_same_bits(gradients.front(), weight.detach(), "input");
  split.weight_gradients();
  test::expect_same_bits(weight.grad(), input.detach() + 2 * weight.detach(), "weight");
}

TEST(SplitBackward, WithoutInputsEverythingIsLeftForTheWeights) {
  torch::nn::Embedding embedding(7, 3);
  fill_parameters(*embedding, 1);
  const at::Tensor ids = at::arange(5);
  SplitBackward split;
  const at::Tensor output = embedding->forward(ids);
  EXPECT_TRUE(split.input_gradients(edges_of(output), {values({5, 3}, 2)}, {}).empty());
  EXPECT_FALSE(embedding->weight.grad().defined());
  split.weight_gradients();
  const at::Tensor found = embedding->weight.grad().clone();
  embedding->weight.mutable_grad().reset();
  backward(edges_of(embedding->forward(ids)), {values({5, 3}, 2)});
  test::expect_same_bits(found, embedding->weight.grad(), "embedding");
}

TEST(SplitBackward, AHookOfATensorCountsOnce) {
  at::Tensor first = values({5, 5}, 1).set_requires_grad(true),
             second = values({5, 5}, 2).set_requires_grad(true),
             factor = values({5}, 3).set_requires_grad(true);
  int calls = 0;
  const auto twice = [&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  };
  const auto hooked = [&](const at::Tensor& x) {
    const at::Tensor middle = at::mm(x, first);
    middle.register_hook(twice);
    const at::Tensor apart = at::tanh(factor);  // does not depend on the input
    apart.register_hook(twice);
    const at::Tensor end = at::mm(at::tanh(middle), second) * apart;
    end.register_hook(twice);
    return end;
  };
  expect_equal(hooked, {first, second, factor}, values({3, 5}, 4));
  EXPECT_EQ(calls, 2 * 3);
}

TEST(SplitBackward, ARetainedGradientIsNotDoubled) {
  at::Tensor weight = values({5, 5}, 1).set_requires_grad(true);
  at::Tensor middle;
  const auto body = [&](const at::Tensor& x) {
    middle = at::mm(x, weight);
    middle.retain_grad();
    return at::tanh(middle);
  };
  const at::Tensor x = values({3, 5}, 4);
  (void)whole(body, {weight}, x);
  const at::Tensor expected = middle.grad().clone();
  (void)in_two(body, {weight}, x);
  test::expect_same_bits(middle.grad(), expected, "middle");
}

// A loss that computes its gradients in forward() and gives each of them once.
TEST(SplitBackward, LinearCrossEntropy) {
  at::Tensor first = values({5, 5}, 1).set_requires_grad(true),
             last = values({7, 5}, 2).set_requires_grad(true);
  const at::Tensor targets = at::arange(4);
  const auto loss = [&](const at::Tensor& x) {
    return linear_cross_entropy(at::tanh(at::mm(x, first)), last, targets);
  };
  expect_equal(loss, {first, last}, values({4, 5}, 3));
}

// Counts matrix products on this thread during its lifetime.
class Products {
 public:
  Products()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(function.name()) == "aten::mm") ++count();
              return nullptr;
            }))) {
    count() = 0;
  }
  ~Products() { at::removeCallback(handle_); }
  static int& count() {
    thread_local int count = 0;
    return count;
  }

 private:
  at::CallbackHandle handle_;
};

TEST(SplitBackward, ComputesNoProductTwice) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4),
                              torch::nn::Tanh(), torch::nn::Linear(4, 4));
  at::Tensor input = values({3, 4}, 1).set_requires_grad(true);
  SplitBackward split;
  const at::Tensor output = model->forward(input);
  const at::Tensor gradient = values({3, 4}, 2);
  {
    const Products products;
    EXPECT_TRUE(split.input_gradients(edges_of(output), {gradient}, {input}).front().defined());
    EXPECT_EQ(Products::count(), 3);
  }
  const Products products;
  split.weight_gradients();
  EXPECT_EQ(Products::count(), 3);
}

}  // namespace
}  // namespace lockstep::pipeline
