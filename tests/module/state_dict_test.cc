#include <lockstep/module/state_dict.h>

#include <lockstep/base/error.h>
#include <lockstep/models/gpt.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <limits>

namespace lockstep {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

using models::Gpt;

Gpt small_model() {
  return Gpt(models::GptOptions{
      .layers = 1, .heads = 1, .hidden_size = 4, .context_length = 3, .vocabulary = 5});
}

Tensors copies(const torch::nn::Module& module) {
  Tensors tensors;
  for (const NamedTensor& item : named_tensors(module)) tensors[item.name] = item.tensor.clone();
  return tensors;
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const NamedTensor& item : named_tensors(module)) names.push_back(item.name);
  return names;
}

// A Gpt in a larger module, next to a module with buffers.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    register_module("norm", norm);
    register_module("inner", inner);
    scale = register_parameter("scale", at::ones({1}));
  }
  torch::nn::BatchNorm1d norm{2};
  Gpt inner = small_model();
  at::Tensor scale;
};

void expect_refused(const Tensors& tensors, const std::string& message) {
  Gpt model = small_model();
  const Tensors before = copies(*model);
  try {
    load_state_dict(*model, tensors);
    FAIL() << "expected BadInput: " << message;
  } catch (const BadInput& error) {
    EXPECT_EQ(error.what(), message);
  }
  for (const auto& [name, tensor] : copies(*model))
    EXPECT_TRUE(tensor.equal(before.at(name))) << name;
}

TEST(StateDict, ComeInTheOrderOfPython) {
  EXPECT_EQ(names_of(*std::make_shared<OuterImpl>()),
            (std::vector<std::string>{
                "scale", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
                "norm.num_batches_tracked", "inner.transformer.wte.weight",
                "inner.transformer.wpe.weight", "inner.transformer.h.0.ln_1.weight",
                "inner.transformer.h.0.attn.c_attn.weight",
                "inner.transformer.h.0.attn.c_proj.weight", "inner.transformer.h.0.ln_2.weight",
                "inner.transformer.h.0.mlp.c_fc.weight", "inner.transformer.h.0.mlp.c_proj.weight",
                "inner.transformer.ln_f.weight", "inner.lm_head.weight"}));
}

TEST(StateDict, HasEveryNameAndLoadsAgain) {
  auto from = std::make_shared<OuterImpl>(), to = std::make_shared<OuterImpl>();
  Tensors tensors = state_dict(*from);
  EXPECT_EQ(tensors.size(), 16U);
  for (const NamedTensor& item : named_tensors(*from))
    EXPECT_EQ(tensors.at(item.name).data_ptr(), item.tensor.data_ptr()) << item.name;
  load_state_dict(*to, tensors);
  for (const auto& [name, tensor] : state_dict(*to)) EXPECT_TRUE(tensor.equal(tensors.at(name)));
}

// One tensor that is registered twice, without a HasAliases interface that reports it.
TEST(StateDict, ATensorThatIsRegisteredTwiceIsTied) {
  auto model = std::make_shared<torch::nn::Module>();
  model->register_parameter("a", at::zeros({2}));
  model->register_parameter("b", model->named_parameters()["a"]);
  load_state_dict(*model, {{"b", at::ones({2})}});
  EXPECT_EQ(model->named_parameters()["a"].sum().item<float>(), 2);
  EXPECT_THROW(load_state_dict(*model, {{"a", at::zeros({2})}, {"b", at::ones({2})}}), BadInput);
  EXPECT_EQ(model->named_parameters()["a"].sum().item<float>(), 2);
}

TEST(StateDict, TiedTensorsShareMemory) {
  Gpt model = small_model();
  for (const NamedTensor& item : named_tensors(*model)) {
    EXPECT_FALSE(item.tensor.requires_grad()) << item.name;
    if (item.name == "lm_head.weight") {
      EXPECT_EQ(item.tensor.data_ptr(), model->transformer->wte->weight.data_ptr());
    }
  }
}

TEST(StateDict, AliasesHaveFullNames) {
  const auto aliases = aliases_of(*std::make_shared<OuterImpl>());
  ASSERT_EQ(aliases.size(), 1u);
  EXPECT_EQ(aliases[0].name, "inner.lm_head.weight");
  EXPECT_EQ(aliases[0].registered, "inner.transformer.wte.weight");
  EXPECT_TRUE(aliases_of(*torch::nn::Linear(1, 1)).empty());
}

TEST(LoadStateDict, MakesAnEqualModelInPlace) {
  Gpt from = small_model(), to = small_model();
  const void* memory = to->transformer->wpe->weight.data_ptr();
  load_state_dict(*to, copies(*from));
  const Tensors expected = copies(*from);
  for (const auto& [name, tensor] : copies(*to))
    EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
  EXPECT_EQ(to->transformer->wpe->weight.data_ptr(), memory);
}

TEST(LoadStateDict, TakesATiedTensorUnderEitherName) {
  Gpt from = small_model();
  for (const char* left_out : {"lm_head.weight", "transformer.wte.weight"}) {
    Gpt to = small_model();
    Tensors tensors = copies(*from);
    tensors.erase(left_out);
    load_state_dict(*to, tensors);
    EXPECT_TRUE(to->transformer->wte->weight.equal(from->transformer->wte->weight)) << left_out;
  }
}

TEST(LoadStateDict, TakesTiedTensorsWithANaN) {
  Tensors tensors = copies(*small_model());
  for (const char* name : {"lm_head.weight", "transformer.wte.weight"})
    tensors.at(name)[0][0] = std::numeric_limits<float>::quiet_NaN();
  Gpt to = small_model();
  load_state_dict(*to, tensors);
  const at::Tensor found = to->transformer->wte->weight.detach();
  EXPECT_TRUE(found[0][0].isnan().item<bool>());
  EXPECT_TRUE(found[1].equal(tensors.at("lm_head.weight")[1]));
  tensors.at("lm_head.weight")[1][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(load_state_dict(*to, tensors), BadInput);
}

TEST(LoadStateDict, ConvertsTheDtype) {
  Gpt from = small_model(), to = small_model();
  Tensors tensors = copies(*from);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kDouble);
  load_state_dict(*to, tensors);
  EXPECT_TRUE(to->transformer->wte->weight.equal(from->transformer->wte->weight));
  EXPECT_EQ(to->transformer->wte->weight.scalar_type(), at::kFloat);
}

TEST(LoadStateDict, RefusesAMissingTensor) {
  Tensors tensors = copies(*small_model());
  tensors.erase("transformer.ln_f.weight");
  expect_refused(tensors,
                 "loading a model: expected a tensor named transformer.ln_f.weight, found none");
}

TEST(LoadStateDict, RefusesAnUnknownTensor) {
  Tensors tensors = copies(*small_model());
  tensors["transformer.h.1.ln_1.weight"] = at::ones({4});
  expect_refused(tensors,
                 "loading a model: found a tensor named transformer.h.1.ln_1.weight that the model "
                 "does not have");
}

TEST(LoadStateDict, RefusesAnotherShape) {
  Tensors tensors = copies(*small_model());
  tensors["transformer.wpe.weight"] = at::ones({4, 4});
  expect_refused(tensors,
                 "loading a model: transformer.wpe.weight: expected shape [3, 4], found [4, 4]");
}

TEST(LoadStateDict, RefusesUnequalTiedTensors) {
  Tensors tensors = copies(*small_model());
  tensors["lm_head.weight"].add_(1);
  expect_refused(tensors,
                 "loading a model: lm_head.weight is tied to transformer.wte.weight: expected "
                 "equal values, found "
                 "different ones");
}

}  // namespace
}  // namespace lockstep
