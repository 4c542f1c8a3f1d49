// Compares each model with the same module in Python (reference.py): names, outputs, loss and
// gradients, with weights exchanged in both directions.
#include "models/tensor_file.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <lockstep/models/conv_net.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/resnet.h>
#include <lockstep/module/state_dict.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <sstream>

namespace lockstep {
namespace {

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

void expect_close(const std::string& what, const at::Tensor& expected, const at::Tensor& found) {
  ASSERT_EQ(expected.sizes(), found.sizes()) << what;
  const double bound = 1e-5 * std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((expected - found).abs().max().item<double>(), bound) << what;
}

std::map<std::string, at::Tensor> with_prefix(const std::map<std::string, at::Tensor>& all,
                                              const std::string& prefix) {
  std::map<std::string, at::Tensor> some;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) some[name.substr(prefix.size())] = tensor;
  }
  return some;
}

// Returns Python's results with this model's weights; also compares the parameter names.
std::map<std::string, at::Tensor> ask_python(const std::string& name, const std::string& options,
                                             const torch::nn::Module& model, const Batch& batch) {
  test::TemporaryFolder folder;
  test::NamedTensors in = {{"input", batch.input}, {"target", batch.target}};
  std::vector<std::string> names;
  for (const NamedTensor& item : named_tensors(model)) {
    in.emplace_back("state/" + item.name, item.tensor);
    names.push_back(item.name);
  }
  test::write_tensors(folder / "in", in);
  const std::string run =
      "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
      "run_name='__main__')";
  const auto result =
      test::run_python(run, {LOCKSTEP_SOURCE_DIR "/tests/models/reference.py", name, options,
                             (folder / "in").string(), (folder / "out").string()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines(result.output), names);
  return test::read_tensors(folder / "out");
}

template <class Model, class Loss>
std::map<std::string, at::Tensor> expect_parity(const std::string& name, const std::string& options,
                                                Model& model, const Batch& batch, Loss loss) {
  model->eval();
  auto python = ask_python(name, options, *model, batch);
  expect_close("output", python.at("output"), model->forward(batch.input));
  const at::Tensor own_loss = loss(batch);
  expect_close("loss", python.at("loss"), own_loss);
  own_loss.backward();
  auto gradients = with_prefix(python, "grad/");
  const auto parameters = model->named_parameters();
  EXPECT_EQ(gradients.size(), parameters.size());
  for (const auto& item : parameters)
    expect_close(item.key(), gradients.at(item.key()), item.value().grad());
  return python;
}

// Expects that Python's own weights can be loaded by name.
template <class Model>
void expect_loads(const std::map<std::string, at::Tensor>& python, Model model,
                  const at::Tensor& input) {
  model->eval();
  load_state_dict(*model, with_prefix(python, "own/"));
  expect_close("output with Python's weights", python.at("own_output"), model->forward(input));
}

TEST(Parity, Mlp) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  torch::manual_seed(1);
  const models::MlpOptions options{.sizes = {12, 31, 17, 5}};
  models::Mlp model(options);
  const Batch batch{at::randn({7, 3, 4}), at::randint(5, {7}, at::kLong)};
  auto python =
      expect_parity("Mlp", R"({"sizes": [12, 31, 17, 5]})", model, batch, [&](const Batch& b) {
        return torch::nn::functional::cross_entropy(model->forward(b.input), b.target);
      });
  expect_loads(python, models::Mlp(options), batch.input);
}

TEST(Parity, ConvNet) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  torch::manual_seed(2);
  models::ConvNet model;
  const Batch batch{at::randn({5, 1, 28, 28}), at::randint(10, {5}, at::kLong)};
  auto python = expect_parity("ConvNet", "{}", model, batch, [&](const Batch& b) {
    return torch::nn::functional::nll_loss(model->forward(b.input), b.target);
  });
  expect_loads(python, models::ConvNet(), batch.input);
}

void check_resnet(bool cifar_stem) {
  torch::manual_seed(4);
  const models::ResNetOptions options{.classes = 7, .cifar_stem = cifar_stem, .width = 8};
  models::ResNet18 model(options);
  // Random running statistics and gains, as after training.
  at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters())
    if (parameter.dim() == 1) parameter.add_(at::rand_like(parameter), 0.2);
  for (auto& buffer : model->buffers())
    if (buffer.is_floating_point()) buffer.add_(at::rand_like(buffer), 0.2);
  at::AutoGradMode with_grad(true);
  const std::int64_t side = cifar_stem ? 16 : 64;
  const Batch batch{at::randn({3, 3, side, side}), at::randint(7, {3}, at::kLong)};
  auto python = expect_parity("ResNet18",
                              std::string(R"({"classes": 7, "width": 8, "cifar_stem": )") +
                                  (cifar_stem ? "true}" : "false}"),
                              model, batch, [&](const Batch& b) {
                                return torch::nn::functional::cross_entropy(model->forward(b.input),
                                                                            b.target);
                              });
  expect_loads(python, models::ResNet18(options), batch.input);
}

TEST(Parity, ResNet18) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_resnet(/*cifar_stem=*/false);
}

TEST(Parity, ResNet18ForSmallImages) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_resnet(/*cifar_stem=*/true);
}

void check_gpt(bool bias) {
  torch::manual_seed(3);
  const models::GptOptions options{.layers = 2,
                                   .heads = 3,
                                   .hidden_size = 24,
                                   .context_length = 9,
                                   .vocabulary = 13,
                                   .bias = bias};
  models::Gpt model(options);
  // Weights as large as after training, so that attention and gradients are far from their
  // symmetric initial values.
  for (auto& parameter : model->parameters()) parameter.data().add_(at::randn_like(parameter), 0.2);
  Batch batch{at::randint(13, {4, 9}, at::kLong), at::randint(13, {4, 9}, at::kLong)};
  batch.target[1].narrow(0, 5, 4).fill_(-1);
  const std::string json =
      std::string(
          R"({"layers": 2, "heads": 3, "width": 24, "block": 9, "vocabulary": 13, "bias": )") +
      (bias ? "true}" : "false}");
  auto python = expect_parity("Gpt", json, model, batch,
                              [&](const Batch& b) { return model->loss(b.input, b.target); });
  const at::Tensor generated = model->generate(
      batch.input.narrow(1, 0, 3), 12,
      {.temperature = 0.8, .top_k = 5, .generator = at::detail::createCPUGenerator(7)});
  EXPECT_TRUE(generated.equal(python.at("generated"))) << generated << python.at("generated");
  expect_loads(python, models::Gpt(options), batch.input);
}

TEST(Parity, Gpt) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_gpt(/*bias=*/false);
}

TEST(Parity, GptWithBias) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_gpt(/*bias=*/true);
}

void check_llama(const models::LlamaOptions& options, const std::string& json) {
  torch::manual_seed(4);
  models::Llama model(options);
  for (auto& parameter : model->parameters()) parameter.data().add_(at::randn_like(parameter), 0.2);
  Batch batch{at::randint(13, {4, 9}, at::kLong), at::randint(13, {4, 9}, at::kLong)};
  batch.target[1].narrow(0, 5, 4).fill_(-1);
  auto python = expect_parity("Llama", json, model, batch,
                              [&](const Batch& b) { return model->loss(b.input, b.target); });
  expect_loads(python, models::Llama(options), batch.input);
}

TEST(Parity, LlamaWithGroupedQueries) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_llama(
      {.layers = 2,
       .heads = 6,
       .key_value_heads = 2,
       .hidden_size = 24,
       .intermediate_size = 40,
       .context_length = 9,
       .vocabulary = 13,
       .rotary_base = 100},
      R"({"layers": 2, "heads": 6, "key_value_heads": 2, "width": 24, "head_width": 4, "hidden": 40,
                  "block": 9, "vocabulary": 13, "base": 100, "scaling": [],
                  "bias": false, "tied": false})");
}

TEST(Parity, LlamaTiedWithBiasesAndScaledPositions) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  check_llama(
      {.layers = 1,
       .heads = 3,
       .key_value_heads = 3,
       .hidden_size = 20,
       .head_width = 8,
       .intermediate_size = 33,
       .context_length = 9,
       .vocabulary = 13,
       .rotary_scaling = {.factor = 8,
                          .by_wave = models::RotaryScaling::ByWave{.low_frequency_factor = 1,
                                                                   .high_frequency_factor = 4,
                                                                   .trained_tokens = 100}},
       .attention_bias = true,
       .feed_forward_bias = true,
       .tied = true},
      R"({"layers": 1, "heads": 3, "key_value_heads": 3, "width": 20, "head_width": 8,
                  "hidden": 33, "block": 9, "vocabulary": 13, "base": 10000,
                  "scaling": [8, 1, 4, 100], "bias": true, "tied": true})");
}

}  // namespace
}  // namespace lockstep
