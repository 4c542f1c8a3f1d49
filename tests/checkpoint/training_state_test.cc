#include <lockstep/checkpoint/training_state.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "base/format.h"
#include "checkpoint/folders.h"
#include "checkpoint/rank_tensors.h"
#include "checkpoint/small_training.h"
#include "support/fuzz.h"
#include "support/messages.h"
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

// Saves a checkpoint of one rank.
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
  for (const char* text : {"", "{", "{\"format\": 1}", "{\"format\": 4, \"step\": \"x\"}"}) {
    std::ofstream(out / "step-00000001/layout.json") << text;
    EXPECT_THROW((void)read_training_state(out / "step-00000001"), BadInput) << text;
  }
}

// Returns a valid layout.json with one value changed.
std::string json_with(const std::string& key, const std::string& value) {
  std::map<std::string, std::string> members{{"format", "4"}, {"step", "1"},      {"epoch", "0"},
                                             {"ranks", "1"},  {"progress", "{}"}, {"config", "{}"},
                                             {"files", "{}"}, {"mesh", "[]"},     {"parts", "{}"}};
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
    std::ofstream(folder / "layout.json") << json_with(key, value);
    EXPECT_EQ(refusal_of(folder), (folder / "layout.json").string() + ": " + words);
  };
  std::ofstream(folder / "layout.json") << json_with("step", "1");
  EXPECT_EQ(refusal_of(folder), (folder / "layout.json").string() + ": has no crc32");
  const std::string integer = "expected an integer from 0 to 999999999999999999, found ";
  for (const char* value :
       {"-1", "1.5", "1e3", "1000000000000000000", "18446744073709551615", "\"1\"", "null", "true"})
    expect("step", value,
           "step: " + integer + (value == std::string("1e3") ? "1000.0" : std::string(value)));
  expect("step", "[]", "step: " + integer + "a list");
  expect("step", "2", "step: expected 1, as in the name of the folder, found 2");
  expect("epoch", "-1", "epoch: " + integer + "-1");
  expect("format", "3.9", "expected format 4, found 3.9");
  expect("format", "4.0", "expected format 4, found 4.0");
  const std::string end =
      " version of Lockstep; this version reads format 4: continue with the version that saved it";
  expect("format", "3", "has format 3, of an older" + end);
  expect("format", "5", "has format 5, of a newer" + end);
  expect("files", "[]", "files: expected an object of strings, found a list");
  std::ofstream(folder / "layout.json") << json_with("crc32", "1");
  EXPECT_EQ(refusal_of(folder).find((folder / "layout.json").string() +
                                    ": is damaged: expected crc32 1, found "),
            0u);
  expect("ranks", "4294967298", "ranks: expected an integer from 0 to 1048576, found 4294967298");
  expect("config", "[]", "config: expected an object of strings, found a list");
  expect("numbers", R"({"a":"1x"})", "numbers.a: expected a number, found '1x'");
  expect("scaler", R"({"a":1})", "scaler.a: expected a string, found 1");
  expect("config", R"({"a\u001b":1})", "config.a\\x1b: expected a string, found 1");
  expect("config", R"({"a":"1","a":"2"})", "has 'a' twice in one object");
  expect("mesh", "{}", "mesh: expected a list of axes, found an object");
  expect("mesh", R"([{"axis":"dp"}])",
         R"(mesh: expected {"axis": NAME, "size": 1 to 1048576}, found {"axis":"dp"})");
  expect("parts", R"({"a":"all"})", R"(parts.a: expected a list of strings, found "all")");
  expect("parts", R"({"a":[1]})", "parts.a: expected a list of strings, found other values in it");
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ""})
    expect("files", std::string("{\"") + name + "\":\"00000000\"}",
           std::string("files: expected names of files in this folder, found '") + name + "'");
}

TEST(TrainingState, JsonEndsWhereTheFileEnds) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  std::ofstream(folder / "layout.json") << json_with("step", "1") << '\0' << "{}";
  EXPECT_NE(refusal_of(folder).find("a NUL at byte "), std::string::npos) << refusal_of(folder);
  std::ofstream(folder / "layout.json") << json_with("step", "1") << "{}";
  EXPECT_NE(refusal_of(folder), "was read");
  for (const char* opened : {"[", "{\"a\":"}) {
    std::ofstream file(folder / "layout.json");
    for (int i = 0; i < 1'000'000; ++i) file << opened;
    file.close();
    EXPECT_EQ(refusal_of(folder),
              (folder / "layout.json").string() + ": nests too deeply or holds too much");
  }
}

TEST(TrainingState, APipeOrADeviceInPlaceOfAFileIsRefusedAtOnce) {
  for (const char* name :
       {"layout.json", "model.safetensors", "optimizer.safetensors", "random.safetensors"}) {
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
    test::reseal(folder);
    return refusal_of(folder);
  };
  const std::string words = ": rank0: expected a generator's state as bytes, U8 [n], found ";
  EXPECT_EQ(with(torch::ones(4)), place + words + "Float [4]");
  EXPECT_EQ(with(torch::ones({2, 2}, at::kByte)), place + words + "Byte [2, 2]");
  const at::Tensor own = own_random_state();  // LibTorch also accepts states of older generators
  EXPECT_EQ(with(own.narrow(0, 0, own.numel() - 8).clone()),
            place + formatted(": rank0: expected a generator's state of {} bytes, found {}",
                              own.numel(), own.numel() - 8));
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

// A value that was changed by hand, whatever the whitespace.
TEST(TrainingState, AChangedValueIsFound) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto file = out / "step-00000001/layout.json";
  std::ifstream opened(file);
  std::string text((std::istreambuf_iterator<char>(opened)), {});
  std::string same = text;
  std::erase(same, '\n');
  std::ofstream(file) << same;
  EXPECT_EQ(refusal_of(out / "step-00000001"), "was read");
  text.replace(text.find("\"0.1\""), 5, "\"0.2\"");
  std::ofstream(file) << text;
  EXPECT_EQ(refusal_of(out / "step-00000001").find(file.string() + ": is damaged: expected crc32 "),
            0u);
}

// Each file is valid, but the files do not belong together.
TEST(TrainingState, AFileOfAnotherCheckpointIsFound) {
  for (const char* name : {"model.safetensors", "random.safetensors"}) {
    test::TemporaryFolder out;
    torch::manual_seed(1);
    save_example(out.path(), 1);
    save_example(out.path(), 2);  // with other initial weights
    const auto folder = out / "step-00000002";
    std::filesystem::copy_file(out / "step-00000001" / name, folder / name,
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(refusal_of(folder).find((folder / name).string() +
                                      ": is not the file that layout.json was saved with: "),
              0u)
        << refusal_of(folder);
  }
}

// As after an edit of the file: the tensor is changed and its checksum removed.
TEST(TrainingState, ATensorWithoutItsChecksumIsFound) {
  test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto file = out / "step-00000001/model.safetensors";
  write_safetensors(file, read_safetensors(file).tensors, {}, {.checksums = false});
  EXPECT_EQ(refusal_of(out / "step-00000001")
                .find(file.string() + ": is not the file that layout.json was saved with: "),
            0u);
}

// An unreadable folder must not be treated like an empty one: the run would restart at step 0.
TEST(TrainingState, AFolderThatCannotBeReadIsNoEmptyOne) {
  test::TemporaryFolder out;
  std::ofstream(out / "file") << "x";
  EXPECT_THROW((void)list_checkpoints(out / "file"), SystemError);
  EXPECT_THROW((void)latest_checkpoint(out / "file"), SystemError);
  std::filesystem::create_symlink(out / "loop", out / "loop");
  EXPECT_THROW((void)list_checkpoints(out / "loop"), SystemError);
}

// Names of checkpoints that are not folders: a file, and a link to a disk that is not mounted.
TEST(TrainingState, WhatIsCalledAsACheckpointAndIsNoneIsNotPassedOver) {
  test::TemporaryFolder out;
  const auto name = out / "step-00000009";
  const auto refusal = [&] {
    return test::message_of<BadInput>([&] { (void)latest_checkpoint(out.path()); });
  };
  std::ofstream(name) << "no folder";
  EXPECT_EQ(refusal(), name.string() + ": expected the folder of a checkpoint, found a file");
  std::filesystem::remove(name);
  std::filesystem::create_symlink(out / "elsewhere", name);
  EXPECT_EQ(refusal(),
            name.string() + ": expected the folder of a checkpoint, found a broken link");
  std::filesystem::create_directory(out / "elsewhere");
  EXPECT_EQ(latest_checkpoint(out.path()), name);
  std::filesystem::remove(name);
  EXPECT_FALSE(latest_checkpoint(out.path()));
  std::ofstream(out / "LATEST") << "step-00000009\n";
  EXPECT_EQ(refusal(), (out / "LATEST").string() +
                           ": names 'step-00000009', but there is no such checkpoint beside it: "
                           "restore it, or remove this file to start from the beginning");
  // Names that no save produces are not checkpoints.
  std::filesystem::remove(out / "LATEST");
  for (const char* other : {"step-9", "step--0000009", "step-000000009", "step-x"})
    std::filesystem::create_directory(out / other);
  EXPECT_FALSE(latest_checkpoint(out.path()));
}

TEST(TrainingState, NamesOfWhatIsBeingWrittenAreKnownToTheLetter) {
  EXPECT_EQ(named_in_partial(partial_name("step-00000001", random_word())), "step-00000001");
  EXPECT_EQ(named_in_partial(".a.0123456789abcdef.partial"), "a");
  for (const char* name :
       {".a.0123456789abcde.partial", ".a.0123456789abcdeF.partial", "a.0123456789abcdef.partial",
        ".0123456789abcdef.partial", ".a.0123456789abcdef.partial2", ".partial", ""})
    EXPECT_EQ(named_in_partial(name), "") << name;
}

TEST(TrainingStateFuzz, LayoutJsonIsReadOrRefused) {
  const test::TemporaryFolder out;
  save_example(out.path(), 1);
  const auto folder = out / "step-00000001";
  std::ifstream file(folder / "layout.json");
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t read = 0;
  test::FuzzRounds rounds("layout.json");
  while (rounds.next()) {
    std::ofstream(folder / "layout.json", std::ios::binary) << test::mutated(good, rounds.random());
    try {
      EXPECT_EQ(read_training_state(folder).step, 1);
      ++read;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find("layout.json"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  if (rounds.enough()) EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
