// Folders with the layout of the model hubs, compared with plain GPT-2 and Llama in Python
// (reference.py).
#include <lockstep/hub/language_model.h>

#include "base/text.h"
#include "support/python.h"
#include "support/temporary_folder.h"
#include "sys/files.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/module/state_dict.h>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string ask(const std::vector<std::string>& words) {
  std::vector<std::string> arguments{LOCKSTEP_SOURCE_DIR "/tests/hub/reference.py"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  auto result = test::run_python(
      "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
      "run_name='__main__')",
      arguments);
  EXPECT_EQ(result.exit_code, 0);
  return result.output;
}

void make(const std::string& kind, const fs::path& folder) {
  ask({"make", kind, folder.string(), "7"});
}

std::vector<double> numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<double> all;
  for (double one = 0; stream >> one;) all.push_back(one);
  return all;
}

std::string greedy(hub::LanguageModel model, const std::vector<std::int64_t>& ids,
                   std::int64_t count) {
  const at::Tensor found = std::visit(
      [&](auto& model) {
        return model->generate(torch::tensor(ids, at::kLong).unsqueeze(0), count,
                               {.temperature = 0});
      },
      model);
  std::string text;
  for (std::int64_t i = 0; i < found.size(1); ++i)
    text += (i > 0 ? "," : "") + std::to_string(found[0][i].item<std::int64_t>());
  return text + "\n";
}

at::Tensor last_logits(hub::LanguageModel model, const std::vector<std::int64_t>& ids) {
  c10::NoGradGuard no_grad;
  return std::visit(
      [&](auto& model) {
        return model->forward(torch::tensor(ids, at::kLong).unsqueeze(0)).select(1, -1).squeeze(0);
      },
      model);
}

class Hub : public testing::TestWithParam<std::string> {
 protected:
  test::TemporaryFolder folder;
};

TEST_P(Hub, GreedyTokensEqualPlainPython) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  make(GetParam(), folder / "model");
  const hub::LanguageModel model = hub::load_language_model(folder / "model");
  const std::string path = (folder / "model").string();
  EXPECT_EQ(greedy(model, {1, 2, 3}, 40), ask({"generate", path, "1,2,3", "40"}));
  const std::vector<double> expected = numbers(ask({"logits", path, "5,0,60,17"}));
  const at::Tensor found = last_logits(model, {5, 0, 60, 17});
  ASSERT_EQ(static_cast<std::size_t>(found.size(0)), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found[static_cast<std::int64_t>(i)].item<double>(), expected[i], 2e-4);
}

// Python can read a saved model, and loading it again gives bitwise equal values.
TEST_P(Hub, ASavedModelIsTheSame) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  make(GetParam(), folder / "model");
  const hub::LanguageModel model = hub::load_language_model(folder / "model");
  hub::save_language_model(folder / "saved", model);
  // A vocabulary of 61 tokens has no token that begins or ends a text.
  const std::string config = sys::read_file(folder / "saved" / "config.json");
  EXPECT_NE(config.find("\"bos_token_id\": null"), std::string::npos) << config;
  EXPECT_NE(config.find("\"eos_token_id\": null"), std::string::npos) << config;
  const hub::LanguageModel again = hub::load_language_model(folder / "saved");
  ASSERT_EQ(model.index(), again.index());
  auto tensors = [](const hub::LanguageModel& of) {
    return std::visit([](const auto& model) { return state_dict(*model); }, of);
  };
  const auto first = tensors(model), second = tensors(again);
  ASSERT_EQ(first.size(), second.size());
  for (const auto& [name, tensor] : first) EXPECT_TRUE(tensor.equal(second.at(name))) << name;
  EXPECT_EQ(ask({"generate", (folder / "saved").string(), "1,2,3", "40"}),
            greedy(model, {1, 2, 3}, 40));
}

// Saves over a model with other shards and next to other files; the new model is itself sharded.
TEST_P(Hub, ASavedModelReplacesAnother) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  make(GetParam(), folder / "model");
  make("llama-shards", folder / "saved");
  sys::AtomicFile::write(folder / "saved" / "tokenizer.json", "{}");
  const hub::LanguageModel model = hub::load_language_model(folder / "model");
  for (const std::uint64_t shard_bytes : {1u << 30, 5000u, 1u, 5000u}) {
    hub::save_language_model(folder / "saved", model, {.shard_bytes = shard_bytes});
    int shards = 0, others = 0;
    for (const auto& entry : fs::directory_iterator(folder / "saved"))
      ++(entry.path().extension() == ".safetensors" ? shards : others);
    EXPECT_EQ(shards > 1, shard_bytes < 1u << 30);
    EXPECT_EQ(others, shards > 1 ? 3 : 2);  // tokenizer, config and the index of shards
    EXPECT_EQ(ask({"generate", (folder / "saved").string(), "1,2,3", "10"}),
              greedy(hub::load_language_model(folder / "saved"), {1, 2, 3}, 10));
  }
}

// A Gpt without biases, as `lockstep train gpt` makes it.
TEST(HubBiases, OfAGptWithoutThemAreZero) {
  const test::TemporaryFolder folder;
  torch::manual_seed(3);
  models::Gpt model(models::GptOptions{.layers = 2,
                                       .heads = 2,
                                       .hidden_size = 8,
                                       .context_length = 8,
                                       .vocabulary = 11,
                                       .bias = false});
  model->eval();
  hub::save_language_model(folder / "m", model);
  auto found = std::get<models::Gpt>(hub::load_language_model(folder / "m"));
  EXPECT_TRUE(found->options().bias);
  EXPECT_EQ(greedy(model, {1, 2, 3}, 20), greedy(found, {1, 2, 3}, 20));
  const at::Tensor ids = torch::tensor({1, 2, 3}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(model->forward(ids).allclose(found->forward(ids)));
}

// If a process is killed at any moment, the folder holds the old model, the new model or no model.
TEST(HubKills, LeaveOneModelOrNone) {
  const test::TemporaryFolder folder;
  const models::LlamaOptions options{.layers = 1,
                                     .heads = 2,
                                     .key_value_heads = 2,
                                     .hidden_size = 8,
                                     .intermediate_size = 8,
                                     .context_length = 8,
                                     .vocabulary = 11};
  std::vector<hub::LanguageModel> two;
  for (const double base : {10000.0, 500.0}) {
    models::LlamaOptions other = options;
    other.rotary_base = base;
    models::Llama model(other);
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(base);
    two.emplace_back(model);
  }
  hub::save_language_model(folder / "m", two[0], {.shard_bytes = 300});
  std::size_t none = 0, old = 0, killed = 0;
  for (int round = 0; round < 40; ++round) {
    const int child = ::fork();
    if (child == 0) {
      for (std::size_t turn = 1;; ++turn)
        hub::save_language_model(folder / "m", two[turn % 2],
                                 {.shard_bytes = turn % 3 == 0 ? 1u << 20 : 300u});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 977 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ++killed;
    if (!fs::exists(folder / "m" / "config.json")) {
      ++none;
      EXPECT_THROW((void)hub::load_language_model(folder / "m"), SystemError);
      continue;
    }
    const auto found = std::get<models::Llama>(hub::load_language_model(folder / "m"));
    for (const auto& parameter : found->parameters())
      EXPECT_TRUE(parameter.eq(found->options().rotary_base).all().item<bool>());
    ++old;
  }
  EXPECT_GT(old, 0u) << "of " << killed << " folders " << none << " hold no model";
  hub::save_language_model(folder / "m", two[1]);  // files of the last kill do not prevent saving
  EXPECT_EQ(std::get<models::Llama>(hub::load_language_model(folder / "m"))->options().rotary_base,
            500.0);
}

INSTANTIATE_TEST_SUITE_P(Folders, Hub,
                         testing::Values("gpt2", "llama", "llama-tied", "llama-shards"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Each error is one line that gives the problem and its position.
class Refused : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::python()) GTEST_SKIP() << test::no_python;
    make("llama-shards", folder.path());
  }

  void replace(const char* file, const std::string& from, const std::string& to) {
    std::string text = sys::read_file(folder / file);
    ASSERT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
    sys::AtomicFile::write(folder / file, text);
  }

  void expect(const std::string& message) {
    try {
      (void)hub::load_language_model(folder.path());
      FAIL() << "expected: " << message;
    } catch (const BadInput& error) {
      const std::string found = error.what();
      EXPECT_NE(found.find(message), std::string::npos) << found;
      EXPECT_EQ(found.find('\n'), std::string::npos);
    }
  }

  test::TemporaryFolder folder;
};

TEST_F(Refused, AnotherKindOfModel) {
  replace("config.json", "\"llama\"", "\"mamba\"");
  expect("config.json: model_type: expected gpt2 or llama, found 'mamba'");
}

TEST_F(Refused, AScalingOfPositionsThatIsNotKnown) {
  replace("config.json", "\"rope_scaling\": null",
          R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})");
  expect("rope_scaling: rope_type: expected default, linear or llama3, found 'yarn'");
}

TEST_F(Refused, OptionsThatChangeNumbers) {
  replace("config.json", "\"rope_theta\"", "\"partial_rotary_factor\": 0.5, \"rope_theta\"");
  expect("config.json: partial_rotary_factor: expected 1, found 0.5");
  replace("config.json", "\"partial_rotary_factor\": 0.5", "\"quantization_config\": {}");
  expect("config.json: quantization_config: expected weights in floating point");
  replace("config.json", "\"quantization_config\": {}", "\"rope_theta\": 1");
  expect("config.json: has 'rope_theta' twice in one object");
}

// If two keys have the same meaning, the version of transformers decides which one is used.
TEST_F(Refused, PositionsThatAreSaidTwice) {
  const std::string llama3 =
      R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 16})";
  replace("config.json", "\"rope_scaling\": null", llama3);
  (void)hub::load_language_model(folder.path());
  for (const auto& [addition, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("rope_parameters": {"rope_type": "default"})",
            "config.json: rope_scaling and rope_parameters differ"},
           {R"("original_max_position_embeddings": 32)",
            "original_max_position_embeddings: expected 16, as in the scaling of positions, found "
            "32"}}) {
    replace("config.json", "\"rope_scaling\"", addition + ", \"rope_scaling\"");
    expect(message);
    replace("config.json", addition + ", ", "");
  }
  replace("config.json", "\"rope_type\"", "\"rope_theta\": 77.0, \"rope_type\"");
  expect("rope_scaling: rope_theta: expected 500, as at the top level of config.json, found 77");
}

TEST_F(Refused, ScalingsThatWouldBePassedOver) {
  std::string last = "null";
  for (const auto& [scaling, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"factor": 2.0})", "rope_scaling: has a factor, but no rope_type"},
           {R"({"full_attention": {"rope_type": "linear", "factor": 2.0}})",
            "rope_scaling: expected one scaling for all layers, found one of full_attention"},
           {R"({"type": "linear", "factor": 1e-300})",
            "rope_scaling: factor: expected a number of at least 1, found 1e-300"}}) {
    replace("config.json", "\"rope_scaling\": " + last, "\"rope_scaling\": " + scaling);
    expect(message);
    last = scaling;
  }
}

TEST_F(Refused, AttentionThatDoesNotSeeAll) {
  const std::string before = "\"rope_scaling\"";
  std::string last;
  for (const auto& [addition, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("sliding_window": 4, )",
            "sliding_window: expected null or at least max_position_embeddings"},
           {R"("layer_types": ["full_attention", "sliding_attention"], )",
            "layer_types: expected full_attention only, found \"sliding_attention\""},
           {R"("compression_config": {}, )", "compression_config: expected weights in floating"}}) {
    replace("config.json", last + before, addition + before);
    expect(message);
    last = addition;
  }
  replace("config.json", last, R"("use_sliding_window": false, "sliding_window": 4, )");
  (void)hub::load_language_model(folder.path());
}

TEST_F(Refused, AGpt2WhoseOtherNamesSayOtherSizes) {
  fs::remove_all(folder.path());
  make("gpt2", folder.path());
  const std::string before = "\"n_layer\"";
  std::string last;
  for (const auto& [addition, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("num_attention_heads": 4, )",
            "num_attention_heads: expected 3, as in n_head, found 4"},
           {R"("pruned_heads": {"0": [1]}, )",
            "pruned_heads: expected an empty value, found an object"},
           {R"("quantization_config": {}, )",
            "quantization_config: expected weights in floating"}}) {
    replace("config.json", last + before, addition + before);
    expect(message);
    last = addition;
  }
  replace("config.json", last, R"("num_attention_heads": 3, "pruned_heads": {}, )");
  (void)hub::load_language_model(folder.path());
}

TEST_F(Refused, SizesThatDoNotFitTheTensors) {
  replace("config.json", "\"intermediate_size\": 40", "\"intermediate_size\": 41");
  expect(
      "tensor 'model.layers.1.mlp.gate_proj.weight' has shape [40, 24], config.json says [41, 24]");
}

TEST_F(Refused, HeadsThatDoNotDivide) {
  replace("config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4");
  expect("config.json: Llama: expected heads divisible by key_value_heads, 4, found 6");
}

TEST_F(Refused, ATensorThatIsMissingOrTooMuch) {
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  expect("has no tensor 'model.layers.2.self_attn.q_proj.weight', which config.json requires");
  replace("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
  expect("is not part of the model in config.json");
}

TEST_F(Refused, AnIndexThatLeadsOutOfTheFolder) {
  replace("model.safetensors.index.json", "model-00001-of-00003.safetensors", "../x.safetensors");
  expect("expected a file in this folder, found '../x.safetensors'");
}

TEST_F(Refused, AnIndexThatNamesAnotherShard) {
  replace("model.safetensors.index.json", "model-00001-of-00003.safetensors",
          "model-00002-of-00003.safetensors");
  expect(
      "weight_map.model.embed_tokens.weight: expected model-00001-of-00003.safetensors, which has "
      "it, found model-00002-of-00003.safetensors");
}

// Sizes are checked before memory for the model is allocated.
TEST_F(Refused, SizesBeyondAllMemory) {
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2147483647");
  expect("has no tensor 'model.layers.2147483646.self_attn.q_proj.weight'");
  replace("config.json", "\"num_hidden_layers\": 2147483647", "\"num_hidden_layers\": 2");
  replace("config.json", "\"vocab_size\": 61", "\"vocab_size\": 2147483647");
  expect(
      "tensor 'model.embed_tokens.weight' has shape [61, 24], config.json says [2147483647, 24]");
}

// The last of the layers is there, and those before it are not.
TEST_F(Refused, MoreLayersThanTensors) {
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2147483647");
  const std::vector<fs::path> files(fs::directory_iterator(folder.path()), {});
  for (const fs::path& file : files)
    if (file.filename() != "config.json") fs::remove(file);
  const std::string last = "model.layers.2147483646.";
  checkpoint::write_safetensors(folder / "model.safetensors",
                                {{"model.embed_tokens.weight", at::zeros({61, 24})},
                                 {last + "self_attn.q_proj.weight", at::zeros({24, 24})},
                                 {last + "mlp.gate_proj.weight", at::zeros({40, 24})}});
  expect("expected tensors of 2147483647 layers as in config.json, found 3 tensors in all");
}

// The folder that a process leaves if it is killed while it replaces the model (0086).
TEST_F(Refused, AFolderWithoutConfig) {
  fs::remove(folder / "config.json");
  EXPECT_THROW((void)hub::load_language_model(folder.path()), SystemError);
}

TEST_F(Refused, WhatIsNoJson) {
  replace("config.json", "{", "{{");
  expect("config.json: ");
}

TEST_F(Refused, ATiedHeadThatDiffers) {
  make("llama", folder / "one");
  std::string path = (folder / "one" / "config.json").string();
  std::string text = sys::read_file(path);
  text.replace(text.find("\"tie_word_embeddings\": false"), 28, "\"tie_word_embeddings\": true");
  sys::AtomicFile::write(path, text);
  EXPECT_THROW((void)hub::load_language_model(folder / "one"), BadInput);
}

}  // namespace
}  // namespace lockstep
