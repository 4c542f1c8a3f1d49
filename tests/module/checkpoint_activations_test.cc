// Activation checkpointing: blocks are recomputed in backward(), with the same bits and less
// memory.
#include <lockstep/module/checkpoint_activations.h>

#include <lockstep/base/error.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/resnet.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

namespace lockstep {
namespace {

// Counts the bytes that LibTorch allocates and frees on this thread.
class Bytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, peak = 0;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients, buffers;
  std::int64_t after_forward = 0, peak = 0;
  ActivationCheckpoints::Counts counts;
};

using Make = std::function<std::shared_ptr<torch::nn::Module>()>;
using Loss = std::function<at::Tensor(torch::nn::Module&)>;

// Returns the outcome of the second of two steps; the first one records the tensors that are used
// outside of the blocks.
Outcome run(const Make& make, const Loss& loss_of, const std::string& pattern,
            const ActivationOptions& options = {}) {
  torch::manual_seed(5);
  auto model = make();
  std::optional<ActivationCheckpoints> checkpoints;
  if (!pattern.empty()) checkpoints = checkpoint_activations(*model, {pattern}, options);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  Outcome result;
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    if (checkpoints) checkpoints->reset();
    auto bytes = std::make_shared<Bytes>();
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    at::Tensor loss = loss_of(*model);
    result.after_forward = bytes->now;
    loss.backward();
    result.peak = bytes->peak;
    result.loss = loss.item<double>();
    if (step == 0) sgd.step();
  }
  for (const NamedParameter& one : unique_parameters(*model))
    result.gradients[one.name] = one.tensor.grad().clone();
  for (const auto& item : model->named_buffers()) result.buffers[item.key()] = item.value().clone();
  if (checkpoints) result.counts = checkpoints->counts();
  return result;
}

void expect_equal(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.loss, expected.loss);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, tensor] : expected.gradients)
    EXPECT_TRUE(found.gradients.at(name).equal(tensor)) << name;
  for (const auto& [name, tensor] : expected.buffers)
    EXPECT_TRUE(found.buffers.at(name).equal(tensor)) << name;
}

models::GptOptions gpt_options(double dropout = 0) {
  models::GptOptions options;
  options.layers = 6;
  options.heads = 4;
  options.hidden_size = 64;
  options.context_length = 32;
  options.vocabulary = 50;
  options.dropout = dropout;
  options.bias = true;
  return options;
}

Make gpt(double dropout = 0) {
  return [=] { return models::Gpt(gpt_options(dropout)).ptr(); };
}

at::Tensor token_ids(std::int64_t seed) {
  const at::Tensor numbers = at::arange(8 * 32, at::kLong).view({8, 32});
  return (numbers * numbers * 7 + numbers * 3 + seed) % 50;
}

template <typename Model>
at::Tensor language_loss(torch::nn::Module& module) {
  return dynamic_cast<Model&>(module).loss(token_ids(1), token_ids(2));
}

TEST(CheckpointActivations, GradientsOfAGptAreTheSameBits) {
  const Outcome plain = run(gpt(), language_loss<models::GptImpl>, "");
  const Outcome less = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*");
  expect_equal(less, plain);
  EXPECT_EQ(less.counts.blocks, 6);
  EXPECT_EQ(less.counts.recomputations, 6);
  EXPECT_GT(less.counts.released_bytes, 0);
}

TEST(CheckpointActivations, RandomNumbersAreThoseOfForward) {
  const Outcome plain = run(gpt(0.2), language_loss<models::GptImpl>, "");
  const Outcome less = run(gpt(0.2), language_loss<models::GptImpl>, "transformer.h.*");
  expect_equal(less, plain);
}

// After forward(), only the input of each block remains, and none of the block's activations.
TEST(CheckpointActivations, ABlockKeepsWhatComesIntoIt) {
  const Outcome plain = run(gpt(), language_loss<models::GptImpl>, "");
  const Outcome less = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*");
  const std::int64_t input = 8 * 32 * 64 * 4, layers = 6;
  EXPECT_EQ(plain.after_forward - less.after_forward, less.counts.released_bytes);
  EXPECT_GT(less.counts.released_bytes, layers * 10 * input);
  const Outcome shallow = run(
      [] {
        auto options = gpt_options();
        options.layers = 4;
        return models::Gpt(options).ptr();
      },
      language_loss<models::GptImpl>, "transformer.h.*");
  EXPECT_EQ(less.after_forward - shallow.after_forward, 2 * input);
  EXPECT_LT(less.peak, plain.peak / 2);
}

TEST(CheckpointActivations, EveryNthBlockIsComputedAgain) {
  const Outcome plain = run(gpt(), language_loss<models::GptImpl>, "");
  const Outcome all = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*");
  const Outcome half = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*", {.every = 2});
  expect_equal(half, plain);
  EXPECT_EQ(half.counts.blocks, 3);
  EXPECT_EQ(half.counts.recomputations, 3);
  EXPECT_EQ(2 * half.counts.released_bytes, all.counts.released_bytes);
}

TEST(CheckpointActivations, ChosenOperationsAreNotComputedAgain) {
  const Outcome plain = run(gpt(), language_loss<models::GptImpl>, "");
  const Outcome all = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*");
  const Outcome some = run(gpt(), language_loss<models::GptImpl>, "transformer.h.*",
                           {.keep = {"aten::addmm", "aten::mm"}});
  expect_equal(some, plain);
  EXPECT_LT(some.counts.operations, all.counts.operations);
  EXPECT_LT(some.counts.released_bytes, all.counts.released_bytes);
  EXPECT_GT(some.counts.released_bytes, 0);
}

// The blocks of a Llama begin with operations before the first parameter.
TEST(CheckpointActivations, ALlamaLearnsWhatIsUsedOutside) {
  const Make llama = [] {
    models::LlamaOptions options;
    options.heads = 4;
    options.key_value_heads = 2;
    options.hidden_size = 64;
    options.intermediate_size = 96;
    options.context_length = 32;
    options.vocabulary = 50;
    return models::Llama(options).ptr();
  };
  const Outcome plain = run(llama, language_loss<models::LlamaImpl>, "");
  const Outcome less = run(llama, language_loss<models::LlamaImpl>, "model.layers.*");
  expect_equal(less, plain);
  EXPECT_EQ(less.counts.recomputations, less.counts.blocks);
  EXPECT_LT(less.peak, plain.peak);
}

TEST(CheckpointActivations, BatchStatisticsAreCountedOnce) {
  const Make resnet = [] {
    return models::ResNet18(models::ResNetOptions{.classes = 10, .cifar_stem = true, .width = 8})
        .ptr();
  };
  const Loss loss = [](torch::nn::Module& module) {
    const at::Tensor images = (at::arange(2 * 3 * 16 * 16, at::kFloat) % 97).view({2, 3, 16, 16});
    auto& model = dynamic_cast<models::ResNet18Impl&>(module);
    return at::cross_entropy_loss(model.forward(images / 97), at::arange(2, at::kLong));
  };
  const Outcome plain = run(resnet, loss, "");
  const Outcome less = run(resnet, loss, "layer*.*");
  expect_equal(less, plain);
  EXPECT_GT(less.counts.recomputations, 0);
}

TEST(CheckpointActivations, ATransformerOfTorchIsTheSameBits) {
  const Make make = [] {
    return std::make_shared<torch::nn::TransformerImpl>(torch::nn::TransformerOptions(32, 4)
                                                            .num_encoder_layers(2)
                                                            .num_decoder_layers(2)
                                                            .dim_feedforward(64)
                                                            .dropout(0.1));
  };
  const Loss loss = [](torch::nn::Module& module) {
    const at::Tensor source = at::arange(7 * 2 * 32, at::kFloat).view({7, 2, 32}).sin();
    const at::Tensor target = at::arange(5 * 2 * 32, at::kFloat).view({5, 2, 32}).cos();
    return dynamic_cast<torch::nn::TransformerImpl&>(module)
        .forward(source, target)
        .square()
        .mean();
  };
  const Outcome plain = run(make, loss, "");
  const Outcome less = run(make, loss, "*coder.layers.*");
  expect_equal(less, plain);
  EXPECT_GE(less.counts.recomputations, 4);
}

// A write to a buffer outside of the block keeps the activations that were computed before the
// write.
struct CountingBlockImpl : torch::nn::Module {
  CountingBlockImpl()
      : linear(register_module("linear", torch::nn::Linear(8, 8))),
        seen(register_buffer("seen", torch::zeros({8}))) {}
  at::Tensor forward(at::Tensor x) {
    at::Tensor y = linear->forward(x).relu();
    seen.add_(y.detach().sum(0));
    y = y * seen;
    y.mul_(2);
    return y.tanh() + x;
  }
  torch::nn::Linear linear;
  at::Tensor seen;
};
TORCH_MODULE(CountingBlock);

TEST(CheckpointActivations, WritesInPlaceAreThoseOfForward) {
  const Make make = [] {
    torch::nn::Sequential model;
    for (int i = 0; i < 3; ++i) model->push_back(CountingBlock());
    return model.ptr();
  };
  const Loss loss = [](torch::nn::Module& module) {
    const at::Tensor x = at::arange(5 * 8, at::kFloat).view({5, 8}).sin();
    return dynamic_cast<torch::nn::SequentialImpl&>(module).forward(x).square().mean();
  };
  expect_equal(run(make, loss, "*"), run(make, loss, ""));
}

// Such a write is no part of the graph, but what follows it reads the written values.
struct ClampingBlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first->forward(x);
    {
      at::NoGradGuard no_grad;
      y.clamp_(-0.1, 0.1);
    }
    return second->forward(y).tanh() + x;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 8));
};
TORCH_MODULE(ClampingBlock);

TEST(CheckpointActivations, WritesWithoutGradientsAreThoseOfForward) {
  const Make make = [] {
    torch::nn::Sequential model;
    for (int i = 0; i < 3; ++i) model->push_back(ClampingBlock());
    return model.ptr();
  };
  const Loss loss = [](torch::nn::Module& module) {
    const at::Tensor x = at::arange(5 * 8, at::kFloat).view({5, 8}).sin();
    return dynamic_cast<torch::nn::SequentialImpl&>(module).forward(x).square().mean();
  };
  expect_equal(run(make, loss, "*"), run(make, loss, ""));
}

// With a probability of 0, these operations draw numbers that do not change their results.
struct ZeroProbabilityBlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear->forward(x);
    const at::Tensor noise = at::empty_like(y).bernoulli_(0.0);
    return (std::get<0>(at::native_dropout(y, 0.0, true)) * (noise + 1)).tanh() + x;
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 8));
};
TORCH_MODULE(ZeroProbabilityBlock);

TEST(CheckpointActivations, BackwardDoesNotAdvanceTheGenerator) {
  const Make make = [] {
    torch::nn::Sequential model;
    for (int i = 0; i < 3; ++i) model->push_back(ZeroProbabilityBlock());
    return model.ptr();
  };
  const Loss loss = [](torch::nn::Module& module) {
    const at::Tensor x = at::arange(5 * 8, at::kFloat).view({5, 8}).sin();
    return dynamic_cast<torch::nn::SequentialImpl&>(module).forward(x).square().mean();
  };
  const Outcome plain = run(make, loss, "");
  const at::Tensor expected = at::detail::getDefaultCPUGenerator().get_state();
  const Outcome less = run(make, loss, "*");
  expect_equal(less, plain);
  EXPECT_GT(less.counts.recomputations, 0);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(expected));
}

TEST(CheckpointActivations, ARetainedGraphGivesTheSameAgain) {
  torch::manual_seed(3);
  auto model = models::Gpt(gpt_options(0.1));
  checkpoint_activations(*model, {"transformer.h.*"});
  at::Tensor loss = model->loss(token_ids(1), token_ids(2));
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = model->transformer->wpe->weight.grad().clone();
  model->zero_grad();
  loss.backward();
  EXPECT_TRUE(model->transformer->wpe->weight.grad().equal(first));
}

TEST(CheckpointActivations, TakesSeveralPatterns) {
  const auto blocks_of = [](const std::vector<std::string>& patterns) {
    auto model = models::Gpt(gpt_options());
    auto checkpoints = checkpoint_activations(model, patterns);
    (void)model->loss(token_ids(1), token_ids(2));
    return checkpoints.counts().blocks;
  };
  const std::int64_t all = blocks_of({"transformer.h.*"});
  EXPECT_GT(all, 1);
  EXPECT_EQ(blocks_of({"transformer.h.0"}), 1);
  EXPECT_EQ(blocks_of({"transformer.h.0", "transformer.h.*"}), all);
  EXPECT_EQ(blocks_of({"transformer.h.*", "transformer.h.*.mlp"}), all);  // the outermost modules
  EXPECT_EQ(blocks_of({}), 0);
}

TEST(CheckpointActivations, EvaluationKeepsNothing) {
  auto model = models::Gpt(gpt_options());
  auto checkpoints = checkpoint_activations(*model, {"transformer.h.*"});
  at::NoGradGuard no_grad;
  (void)model->loss(token_ids(1), token_ids(2));
  EXPECT_EQ(checkpoints.counts().blocks, 0);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CheckpointActivations, WhatCannotBeIsOneLine) {
  auto model = models::Gpt(gpt_options());
  EXPECT_EQ(refusal([&] { checkpoint_activations(*model, {"transformer.h.*"}, {.every = 0}); }),
            "checkpoint_activations: expected every to be at least 1, found 0");
  EXPECT_EQ(refusal([&] { checkpoint_activations(*model, {"transformer.h.*"}, {.keep = {"mm"}}); }),
            "checkpoint_activations: keep: expected the name of an operation, such as aten::mm, "
            "found mm");
  EXPECT_NE(
      refusal([&] { checkpoint_activations(*model, {"transformer.g.*"}); }).find("transformer.g.*"),
      std::string::npos);
  EXPECT_NE(refusal([&] {
              checkpoint_activations(*model, {"transformer.h.*", "transformer.g.*"});
            }).find("transformer.g.*"),
            std::string::npos);
  checkpoint_activations(*model, {"transformer.h.*"});
  EXPECT_NE(refusal([&] {
              checkpoint_activations(*model, {"transformer.h.*"});
            }).find("found a second one"),
            std::string::npos);
}

// Like the step of an optimizer with the sparse gradient of an embedding.
TEST(CheckpointActivations, ASparseOperandIsOneLine) {
  auto model = models::Gpt(gpt_options());
  checkpoint_activations(*model, {"transformer.h.*"});
  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) {
    const at::Tensor sparse = at::ones_like(parameter).to_sparse();
    const std::string text = refusal([&] { parameter.add_(sparse, -0.1); });
    EXPECT_EQ(text,
              "aten::add_: a sparse tensor beside a global, sharded, deferred or recomputed one is "
              "not supported: make it dense first, by to_dense()");
    EXPECT_EQ(refusal([&] { parameter.add_(sparse.to_dense(), -0.1); }), "");
  }
}

}  // namespace
}  // namespace lockstep
