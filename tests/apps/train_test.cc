// lockstep-train as its users start it.
#include "apps/shell.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using test::count_lines;
using test::last_line;
using test::program;
using test::shell;
using test::ShellResult;

// The word, or the rest of the line where `words` lead to a command, behind `words`.
std::string after(const std::string& words, const std::string& line) {
  const std::size_t place = line.find(words);
  if (place == std::string::npos) return {};
  const std::string rest = line.substr(place + words.size());
  return words.find("with") != std::string::npos ? rest : rest.substr(0, rest.find(' '));
}

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
  // One that prints often.
  [[nodiscard]] std::string long_alone() const {
    return " mlp --out " + out() + " --steps 10000000 --eval-every 20 --threads 1 --log-every 1";
  }
  // Shell words that wait until a command succeeds.
  [[nodiscard]] static std::string until(const std::string& command) {
    return "for i in $(seq 1200); do " + command + " && break; sleep 0.05; done; ";
  }
  // Until the run has written metrics.
  [[nodiscard]] std::string until_running() const {
    return until("[ -s " + out() + "/metrics.jsonl ]");
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

TEST_F(TrainProgram, TrainsOnServersAndOnDevices) {
  const std::string servers = " --strategy ps --servers 1 --workers 3";
  for (const std::string& how :
       {servers, servers + " --staleness 4", servers + " --consistency asynchronous",
        std::string(" --strategy dp --devices 2")}) {
    static int number = 0;
    ShellResult run =
        shell(program("lockstep-train") + tiny_gpt(std::to_string(++number)) + how + " 2>&1");
    EXPECT_EQ(run.exit_code, 0) << how << "\n" << run.output;
    EXPECT_TRUE(last_line(run.output).starts_with("done: val_loss=")) << run.output;
    EXPECT_EQ(run.output.find("warning"), std::string::npos) << run.output;
  }
}

TEST_F(TrainProgram, ASignalEndsARunOnServersInOrder) {
  ShellResult run = shell(program("lockstep-train") + " mlp --out " + out() +
                          " --steps 10000000 --strategy ps --workers 2 --threads 1 --log-every 1" +
                          " --staleness 2 & " + until_running() + "kill -TERM $!; wait $!");
  EXPECT_EQ(run.exit_code, 143) << run.output;
  EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=15 ")) << run.output;
  const auto steps = std::stoll(after(" steps=", last_line(run.output))) + 3;
  ShellResult resumed = shell(program("lockstep-train") + " mlp --resume --out " + out() +
                              " --steps " + std::to_string(steps) + " 2>&1");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed at step "), std::string::npos) << resumed.output;
  EXPECT_TRUE(last_line(resumed.output).starts_with("done: ")) << resumed.output;
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
  expect_line(1,
              " gpt --data " + out() + "/missing.txt --out " + out() + " --strategy ps --workers 2",
              "missing.txt");
  expect_line(2, " mlp --out " + out() + " --strategy ps", "no worker is left: give --workers");
  expect_line(2, " gpt --laers 3", "'--layers'");
  expect_line(2, " gpt --data x --out " + out() + " --ranks 5", "--batch 12");
  expect_line(1, " mnist --data " + folder_.path().string() + " --out " + out(),
              "train-images-idx3-ubyte");
  expect_line(2, " mlp", "--out");
}

TEST_F(TrainProgram, AnInterruptSavesAndTheRunGoesOn) {
  ShellResult run = shell(program("lockstep-train") + long_mlp() + " & " + until_running() +
                          "kill -TERM $!; wait $!");
  EXPECT_EQ(run.exit_code, 143) << run.output;
  EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=15 ")) << run.output;
  // The command of the last line is one to paste.
  const std::string command = after(" resume with: ", last_line(run.output));
  ShellResult resumed = shell("(" + until("grep -q resumed " + out() + ".log") +
                              "kill -TERM $$) & exec " + command + " > " + out() + ".log");
  EXPECT_EQ(resumed.exit_code, 143);
  const std::string log = shell("cat " + out() + ".log").output;
  EXPECT_NE(log.find("resumed at step "), std::string::npos) << log;
  EXPECT_EQ(after(" resume with: ", last_line(log)), command);
  const auto steps = std::stoll(after(" steps=", last_line(log))) + 1;
  resumed = shell(program("lockstep-train") + " mlp --resume --ranks 1 --out " + out() +
                  " --steps " + std::to_string(steps));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed at step "), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("changed since the checkpoint: "), std::string::npos);
  EXPECT_NE(resumed.output.find("ranks 2 -> 1"), std::string::npos) << resumed.output;
  EXPECT_TRUE(last_line(resumed.output).starts_with("done: ")) << resumed.output;
}

// The shell becomes the program, since one in its background would ignore SIGINT.
TEST_F(TrainProgram, EverySignalSavesAndIsTheExitCode) {
  for (const auto& [name, code] :
       std::vector<std::pair<std::string, int>>{{"INT", 130}, {"TERM", 143}, {"HUP", 129}}) {
    std::filesystem::remove_all(out());
    ShellResult run = shell("(" + until_running() + "kill -" + name + " $$) & exec " +
                            program("lockstep-train") + long_alone());
    EXPECT_EQ(run.exit_code, code) << run.output;
    EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=")) << run.output;
    EXPECT_TRUE(std::filesystem::exists(after(" weights=", last_line(run.output)))) << run.output;
  }
}

TEST_F(TrainProgram, AClosedOutputSavesAndSaysHowToGoOn) {
  for (const std::string& words : {long_alone(), long_alone() + " --ranks 2"}) {
    std::filesystem::remove_all(out());
    ShellResult run =
        shell("{ " + program("lockstep-train") + words + " 2> " + out() + ".err; echo code $? >> " +
              out() + ".err; } | head -c 1 > /dev/null; cat " + out() + ".err");
    EXPECT_NE(run.output.find("stopped: signal=13 "), std::string::npos) << run.output;
    EXPECT_EQ(last_line(run.output), "code 141") << run.output;
    EXPECT_TRUE(std::filesystem::exists(after(" weights=", run.output))) << run.output;
  }
}

// What two terminals may do.
TEST_F(TrainProgram, ASecondRunInTheFolderIsRefusedInOneLine) {
  ShellResult run =
      shell("(" + until_running() + program("lockstep-train") + " mlp --resume --out " + out() +
            " > " + out() + ".log 2>&1; echo code $? >> " + out() + ".log; kill -TERM $$) & exec " +
            program("lockstep-train") + long_alone());
  EXPECT_EQ(run.exit_code, 143) << run.output;
  const std::string second = shell("cat " + out() + ".log").output;
  EXPECT_TRUE(second.starts_with("lockstep train: " + out() + ": process ")) << second;
  EXPECT_EQ(last_line(second), "code 1");
  EXPECT_EQ(count_lines(second), 2) << second;
}

TEST_F(TrainProgram, RunsThatBeginTogetherAreOneRun) {
  const std::string one = program("lockstep-train") + " mlp --out " + out() +
                          " --steps 300 --threads 1 2>&1; echo code $?";
  ShellResult both = shell("(" + one + ") & (" + one + "); wait");
  EXPECT_NE(both.output.find("code 0"), std::string::npos) << both.output;
  EXPECT_NE(both.output.find("code 1"), std::string::npos) << both.output;
  EXPECT_EQ(count_lines(shell("cat " + out() + "/metrics.jsonl").output), 30);
}

TEST_F(TrainProgram, ConfigsAndDataThatAreNoFilesAreOneLine) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto expect_line = [&](const std::string& words, const std::string& line) {
    ShellResult result = shell("timeout 60 " + program("lockstep-train") + words + " 2>&1");
    EXPECT_EQ(result.output, "lockstep train: " + line + "\n");
    EXPECT_FALSE(std::filesystem::exists(out()));
  };
  const std::string place = " --out " + out() + " --data ";
  expect_line(" gpt --config " + pipe, "reading " + pipe + ": expected a file, found a named pipe");
  expect_line(" gpt --config /dev/zero", "reading /dev/zero: expected a file, found a device");
  expect_line(" gpt" + place + pipe, "reading " + pipe + ": expected a file, found a named pipe");
  expect_line(" gpt" + place + "/dev/zero", "reading /dev/zero: expected a file, found a device");
  std::ofstream(folder_ / "run.toml") << "task = 'gpt'\ndata = '" << pipe << "'\n";
  expect_line(" --out " + out() + " --config " + (folder_ / "run.toml").string(),
              "reading " + pipe + ": expected a file, found a named pipe (data is set in " +
                  (folder_ / "run.toml").string() + " line 2)");
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
