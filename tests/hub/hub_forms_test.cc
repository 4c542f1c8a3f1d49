// Other layouts in which folders of the model hubs come.
#include <lockstep/hub/language_model.h>

#include "support/messages.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/module/state_dict.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

models::Llama small_llama(bool tied) {
  return models::Llama(models::LlamaOptions{.layers = 1,
                                            .heads = 2,
                                            .key_value_heads = 2,
                                            .hidden_size = 8,
                                            .intermediate_size = 12,
                                            .context_length = 16,
                                            .vocabulary = 11,
                                            .tied = tied});
}

// The layout of LlamaModel.save_pretrained() in transformers: no head, and no prefix "model.".
TEST(HubForms, ALlamaWithoutItsHeadLoadsIfTheHeadIsTied) {
  for (const bool tied : {true, false}) {
    test::TemporaryFolder folder;
    const models::Llama model = small_llama(tied);
    hub::save_language_model(folder.path(), model);
    const fs::path file = folder / "model.safetensors";
    checkpoint::NamedTensors below;
    const checkpoint::Safetensors whole = checkpoint::read_safetensors(file);
    for (const auto& [name, tensor] : whole.tensors)
      if (name.starts_with("model.")) below.emplace(name.substr(6), tensor);
    checkpoint::write_safetensors(file, below, {{"format", "pt"}});
    if (!tied) {
      EXPECT_NE(test::message_of<BadInput>([&] {
                  (void)hub::load_language_model(folder.path());
                }).find("has no tensor 'lm_head.weight', which config.json requires"),
                std::string::npos);
      continue;
    }
    const hub::LanguageModel loaded = hub::load_language_model(folder.path());
    const auto expected = state_dict(*model);
    for (const auto& [name, tensor] : state_dict(*std::get<models::Llama>(loaded)))
      EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
  }
}

TEST(HubForms, TiedWeightsMayHaveANaN) {
  test::TemporaryFolder folder;
  hub::save_language_model(folder.path(), small_llama(true));
  const fs::path file = folder / "model.safetensors";
  checkpoint::NamedTensors tensors;
  const checkpoint::Safetensors whole = checkpoint::read_safetensors(file);
  for (const auto& [name, tensor] : whole.tensors) tensors.emplace(name, tensor.clone());
  at::Tensor embedding = tensors.at("model.embed_tokens.weight");
  embedding[0][0] = std::numeric_limits<float>::quiet_NaN();
  tensors.emplace("lm_head.weight", embedding.clone());
  checkpoint::write_safetensors(file, tensors, {{"format", "pt"}});
  const hub::LanguageModel loaded = hub::load_language_model(folder.path());
  const auto found = state_dict(*std::get<models::Llama>(loaded));
  EXPECT_TRUE(found.at("lm_head.weight")[0][0].isnan().item<bool>());
}

TEST(HubForms, WeightsOfPicklesAreNamed) {
  test::TemporaryFolder folder;
  hub::save_language_model(folder.path(), small_llama(true));
  fs::remove(folder / "model.safetensors");
  std::ofstream(folder / "pytorch_model.bin.index.json") << "{}";
  auto said = [&] {
    return test::message_of<BadInput>([&] { (void)hub::load_language_model(folder.path()); });
  };
  EXPECT_EQ(said(), folder.path().string() +
                        ": has shards of pytorch_model.bin, but no safetensors: write them with "
                        "save_pretrained() of transformers");
  std::ofstream(folder / "pytorch_model.bin") << "PK";
  EXPECT_EQ(said(), folder.path().string() +
                        ": has pytorch_model.bin, but no safetensors: write them with `lockstep "
                        "checkpoint convert " +
                        folder.path().string() + " NEW`");
}

}  // namespace
}  // namespace lockstep
