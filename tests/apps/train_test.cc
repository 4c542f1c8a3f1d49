// lockstep-train as its users start it.
#include "apps/shell.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

using test::count_lines;
using test::last_line;
using test::program;
using test::shell;
using test::ShellResult;

class TrainProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-train")))
      GTEST_SKIP() << "lockstep-train was not built";
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 200; ++i) text << "abacus banana cab\n";
  }

  [[nodiscard]] std::string out() const { return folder_ / "out"; }
  [[nodiscard]] std::string tiny_gpt(const std::string& end_of_out = {}) const {
    return " gpt --data " + (folder_ / "text.txt").string() + " --out " + out() + end_of_out +
           " --layers 1 --heads 2 --width 16 --block 8 --steps 10 --eval-every 5 --log-every 1 "
           "--threads 1";
  }
  [[nodiscard]] std::string long_mlp() const {
    return " mlp --out " + out() + " --steps 10000000 --ranks 2 --threads 1 --log-every 1";
  }
  // Shell words that wait until the run has written metrics.
  [[nodiscard]] std::string until_running() const {
    return "for i in $(seq 1200); do [ -s " + out() +
           "/metrics.jsonl ] && break; sleep 0.05; done; ";
  }

  test::TemporaryFolder folder_;
};

TEST_F(TrainProgram, TrainsAloneAndOnRanksOfItsOwn) {
  ShellResult alone = shell(program("lockstep-train") + tiny_gpt() + " --sample 20");
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_TRUE(last_line(alone.output).starts_with("done: val_loss=")) << alone.output;
  EXPECT_NE(last_line(alone.output).find(" bigram="), std::string::npos);
  EXPECT_NE(last_line(alone.output).find(" steps=10 seconds="), std::string::npos);
  ShellResult two = shell(program("lockstep-train") + tiny_gpt("2") + " --ranks 2");
  EXPECT_EQ(two.exit_code, 0) << two.output;
  auto loss = [](const std::string& output) {
    return last_line(output).substr(0, last_line(output).find(" bigram"));
  };
  EXPECT_EQ(loss(two.output), loss(alone.output));
}

TEST_F(TrainProgram, TrainsUnderTheLauncherByTheDispatcher) {
  ShellResult run =
      shell(program("lockstep") + " run -n 2 " + program("lockstep") + " train" + tiny_gpt());
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NE(run.output.find("[rank 0] done: val_loss="), std::string::npos) << run.output;
  EXPECT_EQ(run.output.find("[rank 1]"), std::string::npos) << run.output;
}

TEST_F(TrainProgram, TrainsUnderTorchrun) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  // As --standalone, on machines too where no hosts file knows localhost.
  ShellResult run = shell("OMP_NUM_THREADS=1 " + test::python()->string() +
                          " -m torch.distributed.run --no-python --nnodes 1 --rdzv-backend c10d"
                          " --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1"
                          " --nproc-per-node 2 " +
                          program("lockstep-train") + tiny_gpt() + " 2>&1");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NE(run.output.find("done: val_loss="), std::string::npos) << run.output;
}

TEST_F(TrainProgram, BadInputIsOneLineAndLeavesNothing) {
  auto expect_line = [&](int code, const std::string& words, const std::string& named) {
    ShellResult result = shell(program("lockstep-train") + words + " 2>&1");
    EXPECT_EQ(result.exit_code, code) << words;
    EXPECT_EQ(count_lines(result.output), 1) << result.output;
    EXPECT_NE(result.output.find(named), std::string::npos) << result.output;
    EXPECT_FALSE(std::filesystem::exists(out()));
  };
  expect_line(1, " gpt --data " + out() + "/missing.txt --out " + out() + " --ranks 2",
              "missing.txt");
  expect_line(2, " gpt --laers 3", "'--layers'");
  expect_line(2, " gpt --data x --out " + out() + " --ranks 5", "--batch 12");
  expect_line(1, " mnist --data " + folder_.path().string() + " --out " + out(),
              "train-images-idx3-ubyte");
  expect_line(2, " mlp", "--out");
}

TEST_F(TrainProgram, AnInterruptSavesAndTheRunGoesOn) {
  ShellResult run = shell(program("lockstep-train") + long_mlp() + " & " + until_running() +
                          "kill -TERM $!; wait $!");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=15 ")) << run.output;
  std::string resume =
      program("lockstep-train") + " mlp --resume --out " + out() + " --ranks 1 --steps 1";
  ShellResult resumed = shell(resume);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed at step "), std::string::npos) << resumed.output;
  EXPECT_TRUE(last_line(resumed.output).starts_with("done: ")) << resumed.output;
}

TEST_F(TrainProgram, AKilledRankIsNamedByTheOther) {
  const char* kill_rank_1 =
      "for p in $(cat /proc/$agent/task/$agent/children); do "
      "tr '\\0' '\\n' < /proc/$p/environ | grep -qx RANK=1 && kill -KILL $p; done; wait $agent";
  ShellResult run = shell(program("lockstep-train") + long_mlp() + " 2>&1 & agent=$!; " +
                          until_running() + kill_rank_1);
  EXPECT_EQ(run.exit_code, 137) << run.output;
  EXPECT_NE(run.output.find("the group failed: rank 1 of 2 was lost: "), std::string::npos)
      << run.output;
}

TEST_F(TrainProgram, HelpIsForTheTask) {
  ShellResult help = shell(program("lockstep-train") + " mnist --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.output.find("--momentum"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
