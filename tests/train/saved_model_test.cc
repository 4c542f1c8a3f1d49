#include <lockstep/train/saved_model.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/module/state_dict.h>

#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST(SavedModel, AFileAloneSaysWhatItIs) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.25;
  run(1, options);
  fs::path alone = folder / "alone.safetensors";
  fs::copy(fs::path(options.out) / "model.safetensors", alone);
  SavedModel saved = read_model(alone);
  for (const auto& [name, value] : {std::pair("layers", "2"),
                                    {"heads", "2"},
                                    {"width", "16"},
                                    {"block", "8"},
                                    {"dropout", "0.25"},
                                    {"vocabulary", "chars"}})
    EXPECT_EQ(setting_of(*saved.task, name), value) << name;
  EXPECT_TRUE(paths_of_run(saved).empty());
  EXPECT_EQ(saved.step, 8);
  EXPECT_EQ(saved.metadata.at("characters"), "\n abcnsu");
  models::Gpt model = gpt_of(saved);
  EXPECT_FALSE(model->is_training());
  for (const auto& [name, tensor] : named_tensors(*model))
    EXPECT_TRUE(tensor.equal(saved.tensors.at(name))) << name;
  EXPECT_EQ(paths_of_run(read_model(options.out)).at("data"), options.data);
}

TEST(SavedModel, MayBeARunACheckpointOrAFile) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 4;
  run(1, options);
  fs::path out = options.out;
  EXPECT_EQ(model_file(out), out / "model.safetensors");
  EXPECT_EQ(model_file(out / "step-00000004"), out / "step-00000004/model.safetensors");
  EXPECT_EQ(model_file(out / "best.safetensors"), out / "best.safetensors");
  SavedModel checkpoint = read_model(out / "step-00000004");
  EXPECT_EQ(paths_of_run(checkpoint).at("data"), options.data);
  EXPECT_EQ(checkpoint.step, 4);
  (void)gpt_of(checkpoint);
  // In a resumed run, the final model is older than the newest checkpoint.
  EXPECT_EQ(checkpoint.metadata.at("width"), "16");
  fs::copy(out / "step-00000004", out / "step-00000006");
  EXPECT_EQ(model_file(out), out / "step-00000006/model.safetensors");
  fs::remove(out / "model.safetensors");
  EXPECT_EQ(model_file(out), out / "step-00000006/model.safetensors");
  EXPECT_NE(test::message_of([&] { (void)model_file(folder.path()); }).find("found neither"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { (void)model_file(out / "no"); }).find("found nothing"),
            std::string::npos);
}

TEST(SavedModel, MayBeTheIndexOfShards) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 4;
  run(1, options);
  const checkpoint::Safetensors whole =
      checkpoint::read_safetensors(fs::path(options.out) / "model.safetensors");
  const fs::path shards = folder / "shards", index = shards / "model.safetensors.index.json";
  checkpoint::write_sharded_safetensors(shards, whole.tensors, whole.metadata,
                                        {.shard_bytes = 2000});
  ASSERT_TRUE(fs::exists(index));
  EXPECT_EQ(model_file(index), shards / "model.safetensors");
  const SavedModel saved = read_model(index);
  EXPECT_EQ(saved.step, 4);
  EXPECT_EQ(saved.tensors.size(), whole.tensors.size());
  (void)gpt_of(saved);
}

TEST(SavedModel, APathThatLeadsNowhereIsASystemError) {
  TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW((void)model_file(folder / "loop"), SystemError);
}

TEST(SavedModel, EveryTaskIsDescribed) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.layers = 3;
  options.width = 24;
  options.seed = 5;
  run(1, options);
  SavedModel saved = read_model(options.out);
  EXPECT_EQ(saved.task->name(), "mlp");
  EXPECT_EQ(setting_of(*saved.task, "layers"), "3");
  EXPECT_EQ(setting_of(*saved.task, "width"), "24");
  EXPECT_EQ(saved.metadata.at("seed"), "5");
  EXPECT_NE(test::message_of([&] { (void)gpt_of(saved); }).find("expected a gpt, found a model of"),
            std::string::npos);
  options = tiny_mnist(folder);
  options.out += "-mnist";
  options.epochs = 1;
  run(1, options);
  EXPECT_EQ(read_model(options.out).task->name(), "mnist");
}

class BrokenModel : public testing::Test {
 protected:
  void SetUp() override {
    options_ = tiny_gpt(folder_);
    options_.steps = 1;
    run(1, options_);
    good_ = checkpoint::read_safetensors(fs::path(options_.out) / "model.safetensors");
  }

  // Returns the message for a file with this change.
  std::string refusal(const std::function<void(checkpoint::Safetensors&)>& change) {
    checkpoint::Safetensors content = good_;
    change(content);
    fs::path file = folder_ / "broken.safetensors";
    checkpoint::write_safetensors(file, content.tensors, content.metadata);
    std::string message = test::message_of([&] { (void)gpt_of(read_model(file)); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with(file.string() + ": ")) << message;
    return message.substr(std::min(message.size(), file.string().size() + 2));
  }
  std::string refusal(const std::string& entry, const std::string& text) {
    return refusal([&](checkpoint::Safetensors& content) { content.metadata[entry] = text; });
  }

  TemporaryFolder folder_;
  RunSetup options_;
  checkpoint::Safetensors good_;
};

TEST_F(BrokenModel, AMissingEntryIsNamed) {
  for (const char* entry :
       {"task", "layers", "heads", "width", "block", "dropout", "vocabulary", "characters", "step"})
    EXPECT_EQ(refusal([&](checkpoint::Safetensors& content) { content.metadata.erase(entry); }),
              std::string("metadata: expected an entry '") + entry + "', found none");
}

TEST_F(BrokenModel, TheTensorThatAnEntryContradictsIsNamed) {
  const std::string wrong = "loading a model: ";
  EXPECT_EQ(refusal("layers", "3"),
            wrong + "expected a tensor named transformer.h.2.ln_1.weight, found none");
  EXPECT_EQ(refusal("width", "20"),
            wrong + "transformer.wte.weight: expected shape [8, 20], found [8, 16]");
  EXPECT_EQ(refusal("block", "9"),
            wrong + "transformer.wpe.weight: expected shape [9, 16], found [8, 16]");
  EXPECT_EQ(refusal("vocabulary", "bytes"),
            wrong + "transformer.wte.weight: expected shape [256, 16], found [8, 16]");
  EXPECT_EQ(refusal("characters", "abc"),
            wrong + "transformer.wte.weight: expected shape [3, 16], found [8, 16]");
  EXPECT_EQ(refusal("heads", "3"), "metadata: width 16 is not a multiple of heads 3");
}

TEST_F(BrokenModel, AnEntryThatMakesNoSenseIsNamed) {
  for (auto [entry, text] :
       {std::pair("layers", "two"), std::pair("heads", "0"), std::pair("dropout", "1.5"),
        std::pair("vocabulary", "words"), std::pair("task", "bert"), std::pair("step", "-1"),
        std::pair("characters", "ba"), std::pair("characters", "")}) {
    std::string message = refusal(entry, text);
    EXPECT_TRUE(message.starts_with("metadata: ")) << message;
    EXPECT_NE(message.find(std::string(entry) == "task" ? "bert" : entry), std::string::npos)
        << message;
  }
}

// Each entry agrees with its tensor, but the model would need terabytes.
TEST_F(BrokenModel, AModelThatTheFileCannotHoldIsRefusedBeforeItIsMade) {
  std::string message = refusal([](checkpoint::Safetensors& content) {
    content.metadata["width"] = "1000000";
    content.metadata["heads"] = "1";
    content.tensors["transformer.wte.weight"] = torch::zeros({8, 1'000'000});
  });
  EXPECT_NE(message.find("expected a model of the size of its tensors"), std::string::npos)
      << message;
}

TEST_F(BrokenModel, ATensorThatIsMissingOrNotFiniteIsNamed) {
  EXPECT_NE(refusal([](checkpoint::Safetensors& content) {
              content.tensors.erase("transformer.h.1.mlp.c_fc.weight");
            }).find("transformer.h.1.mlp.c_fc.weight"),
            std::string::npos);
  EXPECT_EQ(refusal([](checkpoint::Safetensors& content) {
              at::Tensor& tensor = content.tensors["transformer.ln_f.weight"];
              tensor = tensor.clone();
              tensor[3] = NAN;
            }),
            "tensor transformer.ln_f.weight: expected finite numbers, found inf or NaN");
}

}  // namespace
}  // namespace lockstep::train
