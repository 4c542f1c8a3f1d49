#include <lockstep/models/gpt.h>

#include <lockstep/base/error.h>

#include "support/messages.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <set>

namespace lockstep::models {
namespace {

constexpr GptOptions small{
    .layers = 2, .heads = 2, .hidden_size = 16, .context_length = 8, .vocabulary = 11};

at::Tensor ids(std::initializer_list<std::int64_t> sizes) {
  return at::randint(small.vocabulary, sizes, at::kLong);
}

TEST(Gpt, ListsEachParameterOnce) {
  Gpt model(small);
  std::set<const void*> different;
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    different.insert(parameter.unsafeGetTensorImpl());
    elements += parameter.numel();
  }
  EXPECT_EQ(different.size(), model->parameters().size());
  const std::int64_t w = small.hidden_size;
  const std::int64_t block = 2 * w + 12 * w * w;  // two normalisations, and 3 + 1 + 4 + 4 matrices
  EXPECT_EQ(elements, (small.vocabulary + small.context_length) * w + small.layers * block + w);
}

TEST(Gpt, InitialWeightsHaveTheScaleOfNanoGpt) {
  torch::manual_seed(4);
  Gpt model(GptOptions{.layers = 2,
                       .heads = 4,
                       .hidden_size = 128,
                       .context_length = 64,
                       .vocabulary = 65,
                       .bias = true});
  for (const auto& item : model->named_parameters()) {
    const double deviation = item.value().std(/*unbiased=*/false).item<double>();
    if (item.key().ends_with(".bias")) {
      EXPECT_EQ(item.value().abs().max().item<double>(), 0.0) << item.key();
    } else if (item.value().dim() == 1) {
      EXPECT_TRUE(item.value().equal(at::ones({128}))) << item.key();
    } else {
      const double expected = item.key().ends_with("c_proj.weight") ? 0.02 / std::sqrt(4.0) : 0.02;
      EXPECT_NEAR(deviation, expected, 0.05 * expected) << item.key();
    }
  }
}

TEST(Gpt, NoLaterTokenChangesAnEarlierLogit) {
  Gpt model(small);
  const at::Tensor whole = ids({2, 8});
  const at::Tensor logits = model->forward(whole);
  at::Tensor changed = whole.clone();
  changed.select(1, 5).add_(1).remainder_(small.vocabulary);
  const at::Tensor other = model->forward(changed);
  EXPECT_TRUE(other.narrow(1, 0, 5).allclose(logits.narrow(1, 0, 5)));
  EXPECT_FALSE(other.narrow(1, 5, 3).allclose(logits.narrow(1, 5, 3)));
}

TEST(Gpt, DropoutActsInTrainingOnly) {
  GptOptions options = small;
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor batch = ids({3, 8});
  EXPECT_FALSE(model->forward(batch).equal(model->forward(batch)));
  model->eval();
  EXPECT_TRUE(model->forward(batch).equal(model->forward(batch)));
}

TEST(Gpt, LossLeavesOutWhatHasNoTarget) {
  Gpt model(small);
  const at::Tensor batch = ids({1, 8});
  at::Tensor targets = ids({1, 8});
  targets.narrow(1, 3, 5).fill_(-1);
  const at::Tensor expected = model->loss(batch.narrow(1, 0, 3), targets.narrow(1, 0, 3));
  EXPECT_NEAR(model->loss(batch, targets).item<float>(), expected.item<float>(), 1e-6);
}

TEST(Gpt, LearnsARow) {
  torch::manual_seed(5);
  Gpt model(small);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor row = ids({4, 9});
  const at::Tensor batch = row.narrow(1, 0, 8), targets = row.narrow(1, 1, 8);
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    model->loss(batch, targets).backward();
    optimizer.step();
  }
  EXPECT_LT(model->loss(batch, targets).item<float>(), 0.5);
  EXPECT_TRUE(model->generate(batch.narrow(1, 0, 4), 5, {.temperature = 0})
                  .narrow(1, 4, 5)
                  .equal(row.narrow(1, 4, 5)));
}

TEST(GptGenerate, GoesOnBehindTheBlock) {
  Gpt model(small);
  const at::Tensor prompt = ids({2, 3});
  const at::Tensor all =
      model->generate(prompt, 20, {.generator = at::detail::createCPUGenerator(1)});
  EXPECT_EQ(all.sizes(), (std::vector<std::int64_t>{2, 23}));
  EXPECT_TRUE(all.narrow(1, 0, 3).equal(prompt));
  EXPECT_TRUE(
      all.equal(model->generate(prompt, 20, {.generator = at::detail::createCPUGenerator(1)})));
  EXPECT_FALSE(
      all.equal(model->generate(prompt, 20, {.generator = at::detail::createCPUGenerator(2)})));
}

TEST(GptGenerate, TakesAPromptLongerThanTheBlock) {
  Gpt model(small);
  const at::Tensor prompt = ids({1, 12});
  const at::Tensor from_all = model->generate(prompt, 1, {.temperature = 0});
  const at::Tensor from_last = model->generate(prompt.narrow(1, 4, 8), 1, {.temperature = 0});
  EXPECT_EQ(from_all.select(1, 12).item<std::int64_t>(),
            from_last.select(1, 8).item<std::int64_t>());
}

TEST(GptGenerate, TheLikeliestOfOneIsGreedy) {
  Gpt model(small);
  const at::Tensor prompt = ids({3, 4});
  EXPECT_TRUE(model->generate(prompt, 10, {.top_k = 1})
                  .equal(model->generate(prompt, 10, {.temperature = 0})));
}

TEST(GptGenerate, LeavesModeAndGradientsAlone) {
  GptOptions options = small;
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor prompt = ids({1, 2});
  EXPECT_TRUE(model->generate(prompt, 6, {.temperature = 0})
                  .equal(model->generate(prompt, 6, {.temperature = 0})));
  EXPECT_TRUE(model->is_training());
  EXPECT_ANY_THROW((void)model->generate(at::full({1, 2}, 99, at::kLong), 1));
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(model->generate(prompt, 0).equal(prompt));
  EXPECT_TRUE(model->forward(prompt).requires_grad());
}

TEST(GptGenerate, TakesAModelInNoSharedPointer) {
  GptImpl model(small);
  EXPECT_EQ(model.generate(ids({1, 2}), 3).size(1), 5);
  EXPECT_TRUE(model.is_training());
}

TEST(Gpt, RefusesWhatMakesNoSense) {
  Gpt model(small);
  EXPECT_EQ(test::message_of<InvalidArgument>([&] {
              (void)model->forward(ids({2, 9}));
            }),
            "Gpt::forward: expected ids of [rows, at most 8 tokens (the block)], found [2, 9]");
  EXPECT_EQ(test::message_of<InvalidArgument>([&] {
              (void)model->generate(ids({2, 0}), 1);
            }),
            "generate: expected ids of [rows, one token or more], found [2, 0]");
  EXPECT_EQ(test::message_of<InvalidArgument>(
                [] { Gpt wrong(GptOptions{.heads = 3, .hidden_size = 16}); }),
            "Gpt: expected a width divisible by heads, 3, found 16");
  EXPECT_EQ(test::message_of<InvalidArgument>([] { Gpt wrong(GptOptions{.layers = 0}); }),
            "Gpt: expected layers >= 1, found 0");
  EXPECT_EQ(test::message_of<InvalidArgument>([] { Gpt wrong(GptOptions{.dropout = 1.0}); }),
            "Gpt: expected dropout in [0, 1), found 1");
}

// generate() restores the mode of every module, also in a model that is not held by a shared
// pointer.
TEST(Gpt, GeneratingKeepsTheModeOfEachModule) {
  models::GptImpl model(
      {.layers = 1, .heads = 1, .hidden_size = 4, .context_length = 4, .vocabulary = 5});
  model.transformer->ln_f->eval();
  (void)model.generate(at::zeros({1, 1}, at::kLong), 3);
  EXPECT_TRUE(model.is_training());
  EXPECT_TRUE(model.transformer->is_training());
  EXPECT_FALSE(model.transformer->ln_f->is_training());
}

}  // namespace
}  // namespace lockstep::models
