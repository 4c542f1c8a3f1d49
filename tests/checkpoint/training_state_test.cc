#include <lockstep/checkpoint/training_state.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "checkpoint/small_training.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace lockstep::checkpoint {
namespace {

// A checkpoint of one rank.
void save_example(const std::filesystem::path& out, std::int64_t step) {
  torch::nn::Linear model(2, 3);
  DistributedDataParallel handle(model, Group());
  torch::optim::Adam adam(handle.parameters(), torch::optim::AdamOptions(0.1));
  model->forward(torch::ones({1, 2})).sum().backward();
  adam.step();
  save(out, handle, adam,
       {.step = step, .epoch = 3, .progress = {{"best", "inf"}}, .config = {{"lr", "0.1"}}});
}

TEST(TrainingState, NewestIsFoundByNumber) {
  test::TemporaryFolder out;
  EXPECT_FALSE(latest_checkpoint(out.path()));
  EXPECT_FALSE(latest_checkpoint(out / "nowhere"));
  for (std::int64_t step : {5, 30, 200}) save_example(out.path(), step);
  std::filesystem::create_directory(out / "step-latest");
  EXPECT_EQ(latest_checkpoint(out.path()), out / "step-00000200");
  EXPECT_EQ(test::names_in(out.path()), (std::vector<std::string>{"step-00000005", "step-00000030",
                                                                  "step-00000200", "step-latest"}));
  EXPECT_EQ(list_checkpoints(out.path()).front(), out / "step-00000005");
}

TEST(TrainingState, AMissingFileIsNamed) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  std::filesystem::remove(out / "step-00000001/random.safetensors");
  try {
    verify(out / "step-00000001");
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("random.safetensors"), std::string::npos)
        << error.what();
  }
}

TEST(TrainingState, BrokenJsonIsNamed) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  for (const char* text : {"", "{", "{\"format\": 2}", "{\"format\": 1, \"step\": \"x\"}"}) {
    std::ofstream(out / "step-00000001/training.json") << text;
    EXPECT_THROW((void)read_training_state(out / "step-00000001"), BadInput) << text;
  }
}

// What training.json may say, with one thing changed.
std::string json_with(const std::string& key, const std::string& value) {
  std::map<std::string, std::string> members{{"format", "1"}, {"step", "1"},      {"epoch", "0"},
                                             {"ranks", "1"},  {"progress", "{}"}, {"config", "{}"}};
  members[key] = value;
  std::string text;
  for (const auto& [name, what] : members)
    text += (text.empty() ? "{\"" : ",\"") + name + "\":" + what;
  return text + "}";
}

std::string refusal_of(const std::filesystem::path& folder) {
  try {
    verify(folder);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "was read";
}

TEST(TrainingState, NumbersThatAreNoneOrOutOfRangeAreRefused) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  auto expect = [&](const std::string& key, const std::string& value, const std::string& words) {
    std::ofstream(folder / "training.json") << json_with(key, value);
    EXPECT_EQ(refusal_of(folder), (folder / "training.json").string() + ": " + words);
  };
  std::ofstream(folder / "training.json") << json_with("step", "1");
  EXPECT_EQ(read_training_state(folder).step, 1);
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
  expect("numbers", R"({"a":"1x"})", "numbers.a: expected a number, found '1x'");
  expect("scaler", R"({"a":1})", "scaler.a: expected a text, found 1");
  expect("config", R"({"a\u001b":1})", "config.a\\x1b: expected a text, found 1");
}

TEST(TrainingState, JsonEndsWhereTheFileEnds) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  std::ofstream(folder / "training.json") << json_with("step", "1") << '\0' << "{}";
  EXPECT_NE(refusal_of(folder).find("a NUL at byte "), std::string::npos) << refusal_of(folder);
  std::ofstream(folder / "training.json") << json_with("step", "1") << "{}";
  EXPECT_NE(refusal_of(folder), "was read");
  for (const char* opened : {"[", "{\"a\":"}) {
    std::ofstream file(folder / "training.json");
    for (int i = 0; i < 1'000'000; ++i) file << opened;
    file.close();
    EXPECT_EQ(refusal_of(folder),
              (folder / "training.json").string() + ": nests too deeply or holds too much");
  }
}

TEST(TrainingState, APipeOrADeviceInPlaceOfAFileIsRefusedAtOnce) {
  for (const char* name :
       {"training.json", "model.safetensors", "optimizer.safetensors", "random.safetensors"}) {
    test::TemporaryFolder out;
    save_example(out.path(), 1);
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
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  const std::string place = (folder / "random.safetensors").string();
  auto with = [&](const at::Tensor& first) {
    write_safetensors(place, {{"rank0", first}});
    return refusal_of(folder);
  };
  const std::string words = ": rank0: expected a generator's state as bytes, U8 [n], found ";
  EXPECT_EQ(with(torch::ones(4)), place + words + "Float [4]");
  EXPECT_EQ(with(torch::ones({2, 2}, at::kByte)), place + words + "Byte [2, 2]");
}

TEST(TrainingState, OverwrittenBytesOfAnyFileAreFound) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "random.safetensors"}) {
    test::TemporaryFolder out;
    save_example(out.path(), 1);
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
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  std::ifstream file(folder / "training.json");
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t read = 0;
  test::FuzzRounds rounds("training.json");
  while (rounds.next()) {
    std::ofstream(folder / "training.json", std::ios::binary)
        << test::mutated(good, rounds.random());
    try {
      EXPECT_EQ(read_training_state(folder).step, 1);
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
