#include <lockstep/parallel/pipeline/stage.h>

#include <lockstep/module/state_dict.h>

#include "parallel/pipeline/support.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

std::vector<std::string> names_in(const Stage& stage) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*stage.module)) names.push_back(name);
  return names;
}

at::Tensor through(const std::vector<Stage>& stages, const at::Tensor& x) {
  Tensors values{x};
  for (const Stage& stage : stages) values = stage.forward(values);
  return values.front();
}

TEST(Split, CutsASequentialBeforeItsPoints) {
  auto model = blocks(5);
  const std::vector<Stage> stages = split(model, {"1", "4"});
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].name, "0");
  EXPECT_EQ(stages[1].name, "1..3");
  EXPECT_EQ(stages[2].name, "4");
  EXPECT_EQ(names_in(stages[2]),
            (std::vector<std::string>{"4.down.bias", "4.down.weight", "4.factor", "4.norm.bias",
                                      "4.norm.weight", "4.up.bias", "4.up.weight"}));
  const at::Tensor x = values({3, block_width}, 1);
  EXPECT_TRUE(same_bits(through(stages, x), model->forward(x)));
  EXPECT_EQ(split(model, {}).size(), 1u);
}

TEST(Split, ModulesKeepTheirModeAndTheirTensors) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  const std::vector<Stage> stages = split(model, {"1"});
  model->eval();
  EXPECT_FALSE(stages[1].module->named_children()["1"]->is_training());
  EXPECT_TRUE(stages[0].module->parameters()[0].is_same(model->parameters()[0]));
  EXPECT_EQ(names_in(stages[1]).size(), 5u);
}

struct TwoOutputsImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x + 1, x * 2}; }
};
TORCH_MODULE(TwoOutputs);
struct TwoInputsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return a - b; }
};
TORCH_MODULE(TwoInputs);

TEST(Split, StagesPassSeveralTensors) {
  torch::nn::Sequential model{TwoOutputs(), TwoInputs()};
  const at::Tensor x = values({3}, 1);
  EXPECT_TRUE(same_bits(through(split(model, {"1"}), x), (x + 1) - x * 2));
  const std::vector<Stage> stages{stage_of("two", TwoOutputs()), stage_of("one", TwoInputs())};
  EXPECT_TRUE(same_bits(through(stages, x), (x + 1) - x * 2));
  EXPECT_EQ(message_of<InvalidArgument>([&] { (void)stages[1].forward({x}); }),
            "stage of " + TwoInputs()->name() + ": expected 2 tensors, found 1");
}

TEST(Split, PointsThatCannotBeMeantAreOneLine) {
  auto model = blocks(4);
  const auto refused = [&](const std::vector<std::string>& points) {
    return message_of<InvalidArgument>([&] { (void)split(model, points); });
  };
  expect_contains(refused({"7"}), "split: unknown point '7'; ");
  EXPECT_EQ(refused({"0"}),
            "split: point 0: expected something between it and the beginning, found nothing");
  EXPECT_EQ(refused({"2", "2"}),
            "split: point 2: expected something between it and the point before it, found nothing");
  EXPECT_EQ(refused({"2", "1"}),
            "split: point 1: expected something between it and the point before it, found nothing");
  EXPECT_EQ(message_of<InvalidArgument>([] { (void)split(torch::nn::Sequential(), {}); }),
            "split: the model has nothing to be cut");
}

// A model whose forward() is code, with a weight that both the first and the last piece use.
std::vector<ModelPiece> pieces_of(const models::Gpt& model) {
  std::vector<ModelPiece> pieces;
  auto body = model->transformer;
  pieces.push_back({"embedding",
                    {"transformer.wte", "transformer.wpe", "transformer.drop"},
                    [body](const Tensors& in) mutable {
                      const at::Tensor positions = at::arange(in[0].size(1), at::kLong);
                      return Tensors{body->drop(body->wte(in[0]) + body->wpe(positions))};
                    }});
  for (std::size_t i = 0; i < body->h->size(); ++i) {
    const std::string name = "transformer.h." + std::to_string(i);
    pieces.push_back({name, {name}, [body, i](const Tensors& in) mutable {
                        return Tensors{body->h->ptr(i)->as<models::GptBlockImpl>()->forward(in[0])};
                      }});
  }
  pieces.push_back(
      {"head", {"transformer.ln_f", "transformer.wte"}, [body](const Tensors& in) mutable {
         return Tensors{at::linear(body->ln_f->forward(in[0]), body->wte->weight)};
       }});
  return pieces;
}

TEST(Split, CutsAModelThatIsToldInPieces) {
  torch::manual_seed(3);
  models::Gpt model(models::GptOptions{
      .layers = 3, .heads = 2, .hidden_size = 8, .context_length = 6, .vocabulary = 11});
  const std::vector<Stage> stages =
      split(*model, pieces_of(model), {"transformer.h.1", "transformer.h.2"});
  const at::Tensor ids = at::arange(12).reshape({2, 6}).remainder(11);
  EXPECT_TRUE(same_bits(through(stages, ids), model->forward(ids)));
  const auto last = state_dict(*stages[2].module);
  EXPECT_TRUE(last.contains("transformer.wte.weight"));
  EXPECT_TRUE(last.contains("lm_head.weight"));
  EXPECT_TRUE(last.contains("transformer.ln_f.weight"));
  EXPECT_FALSE(last.contains("transformer.h.1.ln_1.weight"));
}

TEST(Split, PiecesThatCannotBeMeantAreOneLine) {
  models::Gpt model(models::GptOptions{
      .layers = 2, .heads = 2, .hidden_size = 8, .context_length = 6, .vocabulary = 11});
  auto pieces = pieces_of(model);
  pieces[1].modules = {"transformer.h.7"};
  expect_contains(message_of<InvalidArgument>([&] { (void)split(*model, pieces, {}); }),
                  "split: piece transformer.h.0: unknown module 'transformer.h.7'; did you mean");
  pieces.erase(pieces.begin() + 1);
  expect_contains(message_of<InvalidArgument>([&] { (void)split(*model, pieces, {}); }),
                  "expected it in a piece, found it in none; name its module there");
}

}  // namespace
}  // namespace lockstep
