#include <lockstep/checkpoint/training_state.h>

#include <lockstep/base/error.h>

#include "checkpoint/small_disk.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace lockstep::checkpoint {
namespace {

TrainingState example(std::int64_t step) {
  return {.step = step,
          .epoch = 3,
          .model = {{"w", torch::full({2}, static_cast<double>(step))}},
          .optimizer = {{"optimizer.w.step", torch::tensor(step)}},
          .random = {torch::arange(4, at::kByte), torch::arange(5, at::kByte)},
          .progress = {{"best", "inf"}},
          .config = {{"lr", "0.1"}}};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(TrainingState, ComesBackAsItWas) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(100));
  TrainingState read = load_training_state(out / "step-00000100");
  EXPECT_EQ(read.step, 100);
  EXPECT_EQ(read.epoch, 3);
  EXPECT_TRUE(at::equal(read.model.at("w"), torch::full({2}, 100.0)));
  EXPECT_EQ(read.optimizer.at("optimizer.w.step").item<std::int64_t>(), 100);
  ASSERT_EQ(read.random.size(), 2u);
  EXPECT_TRUE(at::equal(read.random[1], torch::arange(5, at::kByte)));
  EXPECT_EQ(read.progress, (Metadata{{"best", "inf"}}));
  EXPECT_EQ(read.config, (Metadata{{"lr", "0.1"}}));
}

TEST(TrainingState, NewestIsFoundByNumberAndOldOnesGo) {
  test::TemporaryFolder out;
  EXPECT_FALSE(latest_checkpoint(out.path()));
  EXPECT_FALSE(latest_checkpoint(out / "nowhere"));
  for (std::int64_t step : {5, 30, 200}) save_training_state(out.path(), example(step), 2);
  std::filesystem::create_directory(out / "step-latest");
  EXPECT_EQ(latest_checkpoint(out.path()), out / "step-00000200");
  EXPECT_EQ(names_in(out.path()),
            (std::vector<std::string>{"step-00000030", "step-00000200", "step-latest"}));
}

TEST(TrainingState, AStepIsNeverOverwritten) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(5));
  EXPECT_THROW(save_training_state(out.path(), example(5)), BadInput);
  EXPECT_EQ(load_training_state(out / "step-00000005").step, 5);
}

TEST(TrainingState, WhatAKilledRunLeftIsNoCheckpointAndIsInNobodysWay) {
  test::TemporaryFolder out;
  std::filesystem::create_directory(out / ".step-00000005.partial");
  std::ofstream(out / ".step-00000005.partial/model.safetensors") << "half";
  EXPECT_FALSE(latest_checkpoint(out.path()));
  save_training_state(out.path(), example(5));
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000005"});
}

TEST(TrainingState, AWriteThatFailsKeepsTheOldCheckpointAndLeavesNothing) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1), 1);
  TrainingState large = example(2);
  large.optimizer["z"] = torch::ones(100'000);
  {
    test::SmallDisk disk(10'000);
    EXPECT_THROW(save_training_state(out.path(), large, 1), SystemError);
  }
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000001"});
  EXPECT_THROW(save_training_state(out / "nowhere", example(2)), SystemError);
}

TEST(TrainingState, AMissingFileIsNamed) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  std::filesystem::remove(out / "step-00000001/random.safetensors");
  try {
    (void)load_training_state(out / "step-00000001");
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("random.safetensors"), std::string::npos)
        << error.what();
  }
}

TEST(TrainingState, BrokenJsonIsNamed) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  for (const char* text : {"", "{", "{\"format\": 2}", "{\"format\": 1, \"step\": \"x\"}"}) {
    std::ofstream(out / "step-00000001/training.json") << text;
    EXPECT_THROW((void)load_training_state(out / "step-00000001"), BadInput) << text;
  }
}

// What training.json may say, with one thing changed.
std::string json_with(const std::string& key, const std::string& value) {
  std::map<std::string, std::string> members{{"format", "1"}, {"step", "1"},      {"epoch", "0"},
                                             {"ranks", "2"},  {"progress", "{}"}, {"config", "{}"}};
  members[key] = value;
  std::string text;
  for (const auto& [name, what] : members)
    text += (text.empty() ? "{\"" : ",\"") + name + "\":" + what;
  return text + "}";
}

std::string refusal_of(const std::filesystem::path& folder) {
  try {
    (void)load_training_state(folder);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "was read";
}

TEST(TrainingState, NumbersThatAreNoneOrOutOfRangeAreRefused) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  const auto folder = out / "step-00000001";
  auto expect = [&](const std::string& key, const std::string& value, const std::string& words) {
    std::ofstream(folder / "training.json") << json_with(key, value);
    EXPECT_EQ(refusal_of(folder), (folder / "training.json").string() + ": " + words);
  };
  std::ofstream(folder / "training.json") << json_with("step", "1");
  EXPECT_EQ(load_training_state(folder).step, 1);
  const std::string integer = "expected an integer from 0 to 999999999999999999, found ";
  for (const char* value :
       {"-1", "1.5", "1e3", "1000000000000000000", "18446744073709551615", "\"1\"", "null", "true"})
    expect("step", value,
           "step: " + integer + (value == std::string("1e3") ? "1000.0" : std::string(value)));
  expect("step", "[]", "step: " + integer + "a list");
  expect("step", "2", "step: expected 1, as the folder is called, found 2");
  expect("epoch", "-1", "epoch: " + integer + "-1");
  expect("format", "1.9", "expected format 1, found 1.9");
  expect("format", "1.0", "expected format 1, found 1.0");
  expect("format", "2", "expected format 1, found 2");
  expect("ranks", "4294967298", "ranks: expected an integer from 0 to 1048576, found 4294967298");
  expect("config", "[]", "config: expected an object of texts, found a list");
  expect("config", R"({"a\u001b":1})", "config.a\\x1b: expected a text, found 1");
}

TEST(TrainingState, JsonEndsWhereTheFileEnds) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  const auto folder = out / "step-00000001";
  std::ofstream(folder / "training.json") << json_with("step", "1") << '\0' << "{}";
  EXPECT_NE(refusal_of(folder).find("holds a NUL"), std::string::npos) << refusal_of(folder);
  std::ofstream(folder / "training.json") << json_with("step", "1") << "{}";
  EXPECT_NE(refusal_of(folder), "was read");
  std::ofstream(folder / "training.json") << std::string(1'000'000, '[');
  EXPECT_LT(refusal_of(folder).size(), 500u);
}

TEST(TrainingState, APipeOrADeviceInPlaceOfAFileIsRefusedAtOnce) {
  for (const char* name :
       {"training.json", "model.safetensors", "optimizer.safetensors", "random.safetensors"}) {
    test::TemporaryFolder out;
    save_training_state(out.path(), example(1));
    const auto folder = out / "step-00000001";
    std::filesystem::remove(folder / name);
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    EXPECT_EQ(refusal_of(folder),
              "reading " + (folder / name).string() + ": expected a file, found a named pipe");
    std::filesystem::remove(folder / name);
    std::filesystem::create_symlink("/dev/zero", folder / name);
    EXPECT_EQ(refusal_of(folder),
              "reading " + (folder / name).string() + ": expected a file, found a device");
  }
}

TEST(TrainingState, RandomStatesAreBytes) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  const auto folder = out / "step-00000001";
  const std::string place = (folder / "random.safetensors").string();
  auto with = [&](const at::Tensor& second) {
    write_safetensors(place, {{"rank0", torch::arange(4, at::kByte)}, {"rank1", second}});
    return refusal_of(folder);
  };
  const std::string words = ": rank1: expected a generator's state as bytes, U8 [n], found ";
  EXPECT_EQ(with(torch::ones(4)), place + words + "Float [4]");
  EXPECT_EQ(with(torch::ones({2, 2}, at::kByte)), place + words + "Byte [2, 2]");
}

TEST(TrainingState, OverwrittenBytesOfAnyFileAreFound) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "random.safetensors"}) {
    test::TemporaryFolder out;
    save_training_state(out.path(), example(1));
    const auto file = out / "step-00000001" / name;
    std::fstream(file, std::ios::binary | std::ios::in | std::ios::out)
        .seekp(-1, std::ios::end)
        .put('\x77');
    EXPECT_EQ(refusal_of(out / "step-00000001").find(file.string() + ": tensor '"), 0u)
        << refusal_of(out / "step-00000001");
  }
}

TEST(TrainingStateFuzz, TrainingJsonIsReadOrRefused) {
  const test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  const auto folder = out / "step-00000001";
  std::ifstream file(folder / "training.json");
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t read = 0;
  test::FuzzRounds rounds("training.json");
  while (rounds.next()) {
    std::ofstream(folder / "training.json", std::ios::binary)
        << test::mutated(good, rounds.random());
    try {
      EXPECT_EQ(load_training_state(folder).step, 1);
      ++read;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find("training.json"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  if (rounds.enough()) EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
