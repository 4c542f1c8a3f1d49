#include <lockstep/models/moe.h>

#include <lockstep/base/error.h>
#include <lockstep/models/gpt.h>
#include <lockstep/module/state_dict.h>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

namespace lockstep::models {
namespace {

MoeOptions small_moe() {
  MoeOptions options{
      .gpt = {.layers = 2, .heads = 2, .hidden_size = 16, .context_length = 8, .vocabulary = 11}};
  options.mixture.experts = 4;
  return options;
}

at::Tensor tokens_of(std::int64_t seed) {
  return (at::arange(24, at::kLong) * (2 * seed + 3)).remainder(11).view({3, 8});
}

// A mixture of one expert equals a feed-forward layer.
TEST(Moe, WithOneExpertItIsTheGpt) {
  MoeOptions options = small_moe();
  options.mixture = {.experts = 1, .top_k = 1};
  Moe moe(options);
  Gpt gpt(options.gpt);
  at::NoGradGuard no_grad;
  const auto from = state_dict(*gpt);
  for (auto& item : moe->named_parameters()) {
    const std::string& name = item.key();
    auto of_layer = [&](const char* end, const char* own) {
      return name.substr(0, name.size() - std::string(own).size()) + end;
    };
    if (name.ends_with("moe.up")) {
      item.value().copy_(from.at(of_layer("mlp.c_fc.weight", "moe.up")).unsqueeze(0));
    } else if (name.ends_with("moe.down")) {
      item.value().copy_(from.at(of_layer("mlp.c_proj.weight", "moe.down")).unsqueeze(0));
    } else if (!name.ends_with("router.weight")) {
      item.value().copy_(from.at(name));
    }
  }
  const at::Tensor ids = tokens_of(1);
  EXPECT_TRUE(moe->forward(ids).allclose(gpt->forward(ids), 1e-5, 1e-6));
  moe->eval();
  EXPECT_NEAR(moe->loss(ids, tokens_of(2)).item<double>(),
              gpt->loss(ids, tokens_of(2)).item<double>(), 1e-6);
}

TEST(Moe, HasMixturesInSomeBlocks) {
  MoeOptions options = small_moe();
  options.gpt.layers = 5;
  options.every = 2;
  Moe moe(options);
  EXPECT_EQ(moe->mixtures().size(), 2U);
  const auto names = state_dict(*moe);
  EXPECT_TRUE(names.contains("transformer.h.0.mlp.c_fc.weight"));
  EXPECT_TRUE(names.contains("transformer.h.1.moe.up"));
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_EQ(names.at("transformer.h.1.moe.down").sizes(), (at::IntArrayRef{4, 16, 64}));
}

TEST(Moe, LearnsAndWritesText) {
  torch::manual_seed(2);
  Moe moe(small_moe());
  torch::optim::AdamW adamw(moe->parameters(), torch::optim::AdamWOptions(0.01));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    adamw.zero_grad();
    const at::Tensor loss = moe->loss(tokens_of(1), tokens_of(1).roll(-1, 1));
    loss.backward();
    adamw.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
  EXPECT_EQ(moe->generate(tokens_of(1).narrow(1, 0, 2), 3).sizes(), (at::IntArrayRef{3, 5}));
}

TEST(Moe, RefusesOptionsThatMakeNoSense) {
  MoeOptions options = small_moe();
  options.every = 3;
  try {
    Moe moe(options);
    ADD_FAILURE() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "Moe: expected a mixture in every block, or in each of up to 2 blocks, found "
                 "every = 3");
  }
}

}  // namespace
}  // namespace lockstep::models
