// Damaged or malicious indexes of shards: the reader returns the right tensors or refuses them.
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_training.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

std::string index_with_other_words(std::string text, test::Random& random) {
  static const std::vector<std::pair<std::string, std::string>> changes{
      {"weight_map", "weight"},
      {"model-00001", "../model-00001"},
      {"model-00001", "model-00002"},
      {"\"model-0", "\"/model-0"},
      {": \"model", ": [\"model"},
      {"conv.bias", "conv.weight"},
      {"\"model", "null, \"model"},
      {".safetensors\"", "\""},
      {"{", "[{"},
      {"total_size", "total_size\": 1, \"total_size"},
      {"conv", "\\ud800"},
      {"conv", "\\u001b[31m"},
      {"}", std::string("}\0", 2)},
      {"00003", "99999"},
      {"model-0", "model-\\u007f0"},
      {"-of", "-\\u202eof"},
      {":", ":" + std::string(2000, '[')}};
  const auto& [from, to] = changes[test::below(random, changes.size())];
  if (auto place = text.find(from); place != std::string::npos)
    text.replace(place, from.size(), to);
  return text;
}

bool has_control(const std::string& line) {
  return std::ranges::any_of(line, [](unsigned char c) { return c < 32 || c == 127; });
}

TEST(IndexFuzz, AnIndexIsReadOrRefused) {
  TemporaryFolder out;
  const fs::path folder = test::save_in_files(out.path(), std::nullopt, 1, 3);
  const fs::path index = folder / "model.safetensors.index.json";
  const std::string good = test::text_of(index);
  const NamedTensors expected = read_safetensors(folder / "model.safetensors").tensors;
  std::uint64_t read = 0;
  test::FuzzRounds rounds("index.json");
  while (rounds.next()) {
    std::string text = good;
    if (test::one_in(rounds.random(), 2)) text = index_with_other_words(text, rounds.random());
    if (test::one_in(rounds.random(), 2)) text = test::mutated(text, rounds.random());
    std::ofstream(index, std::ios::binary) << text;
    try {
      const NamedTensors found = read_safetensors(folder / "model.safetensors").tensors;
      EXPECT_EQ(found.size(), expected.size());
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(found.at(name).equal(tensor)) << name;
      ++read;
    } catch (const Error& error) {  // SystemError, too: the file does not exist
      EXPECT_FALSE(has_control(error.what())) << error.what();
      EXPECT_LT(std::strlen(error.what()), 2000u);
      EXPECT_NE(std::string(error.what()).find(folder.string()), std::string::npos) << error.what();
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, rounds.count() / 50);
  EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
