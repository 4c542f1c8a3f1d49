// Errors of a plan before anything runs, and the description of a plan.
#include <lockstep/parallel/parallelize.h>

#include "parallel/tensor/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/transformer.h>

namespace lockstep {
namespace {

using namespace test;

std::string refused_plan(const TensorPlan& plan, const torch::nn::Module& model, int ranks = 2) {
  return message_of<InvalidArgument>([&] { (void)describe(plan, model, ranks); });
}

TEST(TensorPlan, WhatDoesNotFitIsOneLine) {
  models::Gpt gpt(small_gpt());
  EXPECT_EQ(refused_plan({{"transformer.h.*.attn.c_atn", Colwise(3)}}, *gpt).substr(0, 116),
            "parallelize: expected a pattern that names a parameter or its module, unknown pattern "
            "'transformer.h.*.attn.c_atn'; ");
  EXPECT_EQ(refused_plan({{"transformer.h.*", Colwise()}}, *gpt).substr(0, 20),
            "parallelize: expecte");
  EXPECT_EQ(refused_plan(gpt_tensor_plan(small_gpt()), *gpt, 5),
            "parallelize: transformer.h.0.attn.c_attn.weight: expected a number of heads divisible "
            "by tp, 5, found 12");
  EXPECT_EQ(refused_plan({{"transformer.wte", Colwise(2)}}, *gpt),
            "parallelize: transformer.wte.weight: expected a size divisible by its parts, 2, found "
            "37 in dim 0 of [37, 48]");
  EXPECT_EQ(refused_plan({{"transformer.h.*.mlp.c_fc", Colwise().heads(7)}}, *gpt, 7),
            "parallelize: transformer.h.0.mlp.c_fc.weight: expected a size divisible by parts x "
            "heads, 1 x 7, found 192 in dim 0");
  EXPECT_EQ(
      refused_plan(
          {{"transformer.h.*.mlp.c_fc", Colwise()}, {"transformer.h.1.mlp.c_fc", Rowwise()}}, *gpt),
      "parallelize: transformer.h.1.mlp.c_fc.weight: expected one style, found Colwise by "
      "pattern transformer.h.*.mlp.c_fc and Rowwise by pattern transformer.h.1.mlp.c_fc");
}

TEST(TensorPlan, OptionsThatDoNotFitAreOneLine) {
  run_group(BackendKind::local, 2, [](Group group) {
    auto gpt = made_alike([] { return models::Gpt(small_gpt()); }, at::kFloat);
    const Mesh mesh(group, {{"tp", 2}});
    const auto refused_by = [&](const ParallelOptions& options) {
      return message_of<InvalidArgument>([&] { (void)parallelize(gpt, mesh, options); });
    };
    EXPECT_EQ(refused_by({.sequence_parallel = true, .sequence_dim = 2}),
              "parallelize: expected sequence_dim 0 or 1, found 2");
    auto tp = parallelize(gpt, mesh);
    expect_contains(refused_by({}),
                    "transformer.wte.weight: expected a plain tensor, found a global one");
  });
}

TEST(TensorPlan, ItSaysBytesAndCollectives) {
  models::Gpt gpt(small_gpt(2, /*bias=*/false));
  EXPECT_EQ(describe(gpt_tensor_plan(small_gpt()), *gpt, 3),
            R"(tensor parallel on 3 ranks
  transformer.wte: Vocabulary: 1 parameter, 7104 bytes, 2496 per rank
  transformer.h.*.attn.c_attn: Colwise(3), 12 heads: 2 parameters, 55296 bytes, 18432 per rank
  transformer.h.*.attn.c_proj: Rowwise: 2 parameters, 18432 bytes, 6144 per rank
  transformer.h.*.mlp.c_fc: Colwise: 2 parameters, 73728 bytes, 24576 per rank
  transformer.h.*.mlp.c_proj: Rowwise: 2 parameters, 73728 bytes, 24576 per rank
  whole on every rank: 3456 bytes
parameters: 231744 bytes, 79680 per rank
collectives: 4 pairs of Colwise and Rowwise, each 1 all_reduce in forward, 1 in backward
             1 table sharded by vocabulary: a look-up is 1 all_reduce in forward
)");
}

TEST(TensorPlan, TheReadyOnesNameWhatThereIs) {
  torch::nn::Transformer model(
      torch::nn::TransformerOptions(24, 12, 1, 1).dim_feedforward(20).dropout(0.0));
  const std::string text = describe(transformer_tensor_plan(12), *model, 4, true);
  expect_contains(text, "tensor parallel on 4 ranks, sequence parallel");
  expect_contains(text, "decoder.layers.*.multihead_attn.out_proj: Rowwise: 2 parameters");
}

}  // namespace
}  // namespace lockstep
