// lockstep-checkpoint as started by users, on runs of lockstep-train.
#include "apps/shell.h"
#include "base/format.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using test::program;
using test::shell;
using test::ShellResult;

class SavedCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-train")))
      GTEST_SKIP() << "lockstep-train was not built";
    const ShellResult trained =
        run("train mlp --out mine --steps 6 --save-every 2 --keep-checkpoints 0 --layers 2 --width "
            "8 --threads 1 "
            "--async-save --ranks 2");
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
  }

  ShellResult run(const std::string& words) const {
    return shell("cd " + folder_.path().string() + " && " + LOCKSTEP_PROGRAM_DIR "/lockstep " +
                 words + " 2>&1");
  }
  ShellResult checkpoint(const std::string& words) const { return run("checkpoint " + words); }
  void expect(const std::string& words, int code, const std::vector<std::string>& said) const {
    const ShellResult result = checkpoint(words);
    EXPECT_EQ(result.exit_code, code) << result.output;
    for (const std::string& text : said)
      EXPECT_NE(result.output.find(text), std::string::npos) << text << "\nin\n" << result.output;
  }
  void damage(const char* file) const {
    std::fstream bytes(folder_ / file, std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(-3, std::ios::end).put('\x55').put('\xaa');
  }

  test::TemporaryFolder folder_;
};

TEST_F(SavedCheckpoints, AreListedAndShown) {
  const std::string listed = checkpoint("ls mine").output;
  EXPECT_EQ(test::count_lines(listed), 3) << listed;
  EXPECT_EQ(listed.find("step-00000002  "), 0u) << listed;
  EXPECT_NE(listed.find("ranks=2 epoch=0\n"), std::string::npos) << listed;
  expect("show mine", 0,
         {"mine/step-00000006: ", "step = 6\n", "ranks = 2\n", "config.width = 8\n",
          "model.safetensors: ", "metadata.task = mlp\n", " F32 [8",
          "random.safetensors: ", "rank1 U8 ["});
  expect("show mine/model.safetensors", 0, {"metadata.step = 6\n"});
  expect("show nowhere", 1, {"nowhere: expected a run, a checkpoint or a file, found nothing"});
  expect("ls .", 1, {"expected a checkpoint in this folder, found none"});
}

TEST_F(SavedCheckpoints, AreVerifiedEachByItself) {
  expect("verify mine mine/model.safetensors", 0,
         {"mine/step-00000002: whole\n", "mine/step-00000006: whole\n",
          "mine/model.safetensors: whole\n"});
  damage("mine/step-00000004/optimizer.safetensors");
  expect("verify mine", 1,
         {"mine/step-00000002: whole\n", "mine/step-00000006: whole\n",
          "lockstep checkpoint: mine/step-00000004/optimizer.safetensors: tensor ",
          "is damaged: expected"});
  std::filesystem::remove(folder_ / "mine/step-00000002/layout.json");
  std::filesystem::create_directory(folder_ / "mine/step-00000001");
  expect("ls mine", 1, {"step-00000004  ", "step-00000006  ", "mine/step-00000002/layout.json"});
}

// A checkpoint has the state of each rank; other formats cannot store it.
TEST_F(SavedCheckpoints, HaveTensorsOfRanksOwnInThem) {
  const ShellResult trained =
      run("train mlp --out copies --steps 4 --layers 2 --width 8 --threads 1 --local-sgd 2 -n 2");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string own = "copies/step-00000004/own.safetensors";
  expect("show copies", 0, {"own.safetensors: ", "rank1."});
  expect("convert copies all.pt", 0, {"without the tensors of ranks' own in " + own});
  expect("reshard copies two --shards 2", 0, {"two: "});
  expect("diff copies two", 0, {"the same "});
  expect("verify two", 0, {"two: whole\n"});
  damage(own.c_str());
  expect("verify copies", 1, {own + ": tensor ", "is damaged"});
}

// PyTorch writes no checksums, so damage to a byte cannot be detected.
TEST_F(SavedCheckpoints, WithoutChecksumsAreNotCalledWhole) {
  const std::string header = R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )";
  std::ofstream(folder_ / "plain.safetensors", std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << "abc";
  const ShellResult found = checkpoint("verify plain.safetensors mine/model.safetensors");
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_EQ(found.output.find("plain.safetensors: whole"), std::string::npos) << found.output;
  for (const char* text :
       {"plain.safetensors: expected a checksum for each tensor, found none for 1 of 1 tensors",
        "mine/model.safetensors: whole\n"})
    EXPECT_NE(found.output.find(text), std::string::npos) << text << "\nin\n" << found.output;
}

TEST_F(SavedCheckpoints, AreWrittenInOtherFiles) {
  expect("reshard mine three --shards 3", 0, {"three: "});
  expect("verify three three/model.safetensors.index.json", 0,
         {"three: whole\n", "three/model.safetensors.index.json: whole\n"});
  expect("diff mine three", 0, {"the same "});
  expect("diff mine/step-00000006/model.safetensors three/model.safetensors.index.json", 0,
         {"the same "});
  expect("show three", 0,
         {"model.safetensors.index.json: ", " tensors in 3 shards\n",
          "  model-00003-of-00003.safetensors: ", "metadata.task = mlp\n", "ranks = 2\n"});
  expect("reshard three one", 0, {"one: "});
  EXPECT_EQ(shell("cmp " + (folder_ / "one/model.safetensors").string() + " " +
                  (folder_ / "mine/step-00000006/model.safetensors").string())
                .exit_code,
            0);
  damage("three/model-00002-of-00003.safetensors");
  expect("verify three", 1, {"three/model-00002-of-00003.safetensors: tensor ", "is damaged"});
  expect("reshard three four", 1, {"three/model-00002-of-00003.safetensors: tensor "});
  std::filesystem::remove(folder_ / "three/model-00001-of-00003.safetensors");
  expect("verify three", 1, {"model-00001-of-00003.safetensors", "No such file or directory"});
  expect("reshard mine one", 1, {"one: exists already"});
  expect("reshard mine", 2, {"reshard: expected two paths, found 1"});
  expect("reshard mine/model.safetensors five", 1,
         {"expected a checkpoint or a run's folder, found a file"});
  expect("show mine --shards 2", 2, {"--shards is an option of reshard, not of show"});
}

// Writes a safetensors file with one tensor, w.
void write_tensor(const std::filesystem::path& file, const std::string& dtype,
                  std::int64_t elements, const std::string& bytes) {
  std::string header = formatted(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})",
                                 dtype, elements, bytes.size());
  header.append((8 - header.size() % 8) % 8, ' ');
  std::ofstream(file, std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << bytes;
}

// Converted to double, they would be equal.
TEST_F(SavedCheckpoints, LargeIntegersDifferByOne) {
  const auto write = [&](const char* name, const char* dtype, const std::string& bytes) {
    write_tensor(folder_ / name, dtype, 2, bytes);
  };
  const std::string zero(8, '\0');
  const std::string large("\0\0\0\0\0\0\x20\0", 8), next("\1\0\0\0\0\0\x20\0", 8);
  const std::string least("\0\0\0\0\0\0\0\x80", 8), most("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  write("a", "I64", zero + large);
  write("b", "I64", zero + next);
  expect("diff a b", 1, {"w: 1 of 2 elements differ, by at most 1"});
  write("a", "I64", least + zero);
  write("b", "I64", most + zero);
  expect("diff a b", 1, {"w: 1 of 2 elements differ, by at most 18446744073709551615"});
  write("a", "U64", least + zero);
  write("b", "U64", most + zero);
  expect("diff a b", 1, {"w: 1 of 2 elements differ, by at most 1"});
}

TEST_F(SavedCheckpoints, DifferInWhatIsSaid) {
  expect("diff mine mine/step-00000006", 0, {"the same "});
  expect("diff mine/step-00000002 mine/step-00000004", 1,
         {"model.safetensors: ", " elements differ, by ", "optimizer.safetensors: optimizer."});
  expect("diff mine/model.safetensors mine/step-00000006/model.safetensors", 0, {"the same "});
  const ShellResult wider = run("train mlp --out wider --steps 2 --layers 2 --width 9 --threads 1");
  ASSERT_EQ(wider.exit_code, 0) << wider.output;
  expect("diff mine wider", 1, {"F32 [8", " and F32 [9", "rank1: only in mine/step-00000006"});
  expect("diff mine mine/model.safetensors", 1, {"expected two folders or two files"});
}

// All ranks fail together: one reports the reason, and none looks as if it had been lost.
TEST(FailedSaves, AreOneLineOfAllRanks) {
  if (!std::filesystem::exists(program("lockstep-train")))
    GTEST_SKIP() << "lockstep-train was not built";
  for (const char* how : {"", "--async-save"}) {
    test::TemporaryFolder folder;
    std::filesystem::create_directories(folder / "mine" / ".saving.lock");  // cannot be locked
    const ShellResult run =
        shell("cd " + folder.path().string() + " && " + LOCKSTEP_PROGRAM_DIR +
              "/lockstep train mlp --out mine --steps 6 --save-every 2 --eval-every 0 --layers 2 "
              "--width 8 --threads 1 --ranks 2 " +
              how + " 2>&1 | grep -v ^step");
    EXPECT_EQ(test::count_lines(run.output), 1) << how << "\n" << run.output;
    EXPECT_NE(run.output.find("mine/.saving.lock: Is a directory"), std::string::npos)
        << run.output;
  }
}

TEST_F(SavedCheckpoints, NaNIsTheLargestDifference) {
  const auto write = [&](const char* name, float first, float last) {
    constexpr std::int64_t elements = 300'000;  // compared in two pieces
    std::vector<float> values(elements);
    values.front() = first;
    values.back() = last;
    write_tensor(folder_ / name, "F32", elements,
                 {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  };
  write("a", 0, 0);
  write("b", std::numeric_limits<float>::quiet_NaN(), 1);
  expect("diff a b", 1, {"w: 2 of 300000 elements differ, by at most nan"});
}

}  // namespace
}  // namespace lockstep
