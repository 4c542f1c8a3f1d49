// lockstep-train as started by users.
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

// Returns the text after the last occurrence of `words`, up to the next blank.
std::string after(const std::string& words, const std::string& output) {
  const std::size_t place = output.rfind(words);
  if (place == std::string::npos) return {};
  const std::string rest = output.substr(place + words.size());
  return rest.substr(0, rest.find_first_of(" \n"));
}

// Returns the command in the output that resumes the run.
std::string resume_command_in(const std::string& output) {
  const std::string words = "resume with: ";
  const std::size_t place = output.rfind(words);
  if (place == std::string::npos) return {};
  const std::string rest = output.substr(place + words.size());
  return rest.substr(0, rest.find('\n'));
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
  // Returns options of a run that prints often.
  [[nodiscard]] std::string long_alone() const {
    return " mlp --out " + out() + " --steps 10000000 --eval-every 20 --threads 1 --log-every 1";
  }
  // Returns shell words that wait until a command succeeds.
  [[nodiscard]] static std::string until(const std::string& command) {
    return "for i in $(seq 1200); do " + command + " && break; sleep 0.05; done; ";
  }
  // Returns shell words that wait until the run has written metrics.
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
        std::string(" --strategy threads --devices 2")}) {
    static int number = 0;
    ShellResult run =
        shell(program("lockstep-train") + tiny_gpt(std::to_string(++number)) + how + " 2>&1");
    EXPECT_EQ(run.exit_code, 0) << how << "\n" << run.output;
    EXPECT_TRUE(last_line(run.output).starts_with("done: val_loss=")) << run.output;
    EXPECT_EQ(run.output.find("warning"), std::string::npos) << run.output;
  }
}

// Returns shell words that signal a rank: the process whose variable RANK is `rank`, below process
// $agent.
std::string signal_rank(int rank, const std::string& signal = "KILL") {
  return "for p in $(cat /proc/$agent/task/$agent/children); do tr '\\0' '\\n' < /proc/$p/environ "
         "2>/dev/null | "
         "grep -qx RANK=" +
         std::to_string(rank) + " && kill -" + signal + " $p; done; ";
}

// Rank 2 is the server: a signal to it alone changes nothing, and it serves until the workers have
// saved.
TEST_F(TrainProgram, ASignalEndsARunOnServersInOrder) {
  ShellResult run = shell(program("lockstep-train") + " mlp --out " + out() +
                          " --steps 10000000 --strategy ps --workers 2 --threads 1 --log-every 1" +
                          " --staleness 2 & agent=$!; " + until_running() + signal_rank(2, "TERM") +
                          "sleep 0.5; kill -TERM $agent; wait $agent");
  EXPECT_EQ(run.exit_code, 143) << run.output;
  EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=SIGTERM ")) << run.output;
  const auto steps = std::stoll(after(" steps=", last_line(run.output))) + 3;
  ShellResult resumed = shell(program("lockstep-train") + " mlp --resume --out " + out() +
                              " --steps " + std::to_string(steps) + " 2>&1");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed at step "), std::string::npos) << resumed.output;
  EXPECT_TRUE(last_line(resumed.output).starts_with("done: ")) << resumed.output;
}

TEST_F(TrainProgram, TrainsUnderTorchrun) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  // Like --standalone, but also works on hosts without a hosts entry for localhost.
  ShellResult run = shell("OMP_NUM_THREADS=1 '" + test::python()->string() +
                          "' -m torch.distributed.run --no-python --nnodes 1 --rdzv-backend c10d"
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
  EXPECT_TRUE(last_line(run.output).starts_with("stopped: signal=SIGTERM ")) << run.output;
  // The command in the last line can be pasted.
  const std::string command = resume_command_in(run.output);
  ShellResult resumed = shell("(" + until("grep -q resumed " + out() + ".log") +
                              "kill -TERM $$) & exec " + command + " > " + out() + ".log");
  EXPECT_EQ(resumed.exit_code, 143);
  const std::string log = shell("cat " + out() + ".log").output;
  EXPECT_NE(log.find("resumed at step "), std::string::npos) << log;
  EXPECT_EQ(resume_command_in(log), command);
  const auto steps = std::stoll(after(" steps=", last_line(log))) + 1;
  resumed = shell(program("lockstep-train") + " mlp --resume --ranks 1 --out " + out() +
                  " --steps " + std::to_string(steps));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed at step "), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("changed since the checkpoint: "), std::string::npos);
  EXPECT_NE(resumed.output.find("ranks 2 -> 1"), std::string::npos) << resumed.output;
  EXPECT_TRUE(last_line(resumed.output).starts_with("done: ")) << resumed.output;
}

// The shell replaces itself by the program, because a background process would ignore SIGINT.
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
    EXPECT_NE(run.output.find("stopped: signal=SIGPIPE "), std::string::npos) << run.output;
    EXPECT_EQ(last_line(run.output), "code 141") << run.output;
    EXPECT_TRUE(std::filesystem::exists(after(" weights=", run.output))) << run.output;
  }
}

// Simulates two terminals.
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
  // The code is 2 if the second run begins after the first one has ended.
  const bool one_failed = both.output.find("code 1") != std::string::npos ||
                          both.output.find("code 2") != std::string::npos;
  EXPECT_TRUE(one_failed) << both.output;
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

TEST_F(TrainProgram, ARestartedRoundGoesOnByItself) {
  const std::string words = " mlp --steps 1500 --save-every 50 --log-every 50 --threads 1 --out ";
  const std::string whole = out() + "-whole";
  ShellResult undisturbed =
      shell(program("lockstep") + " run -n 2 " + program("lockstep-train") + words + whole);
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.output;
  const auto until_lines = [&](int resumed) {
    return until("[ $(grep -c 'resumed at step' " + out() + ".log) -ge " + std::to_string(resumed) +
                 " ] && [ -e " + out() + "/LATEST ]");
  };
  ShellResult killed =
      shell(program("lockstep") + " run -n 2 --max-restarts 4 " + program("lockstep-train") +
            words + out() + " > " + out() + ".log 2>&1 & agent=$!; " + until_lines(0) +
            signal_rank(1) + until_lines(1) + signal_rank(0) + "wait $agent");
  const std::string log = shell("cat " + out() + ".log").output;
  EXPECT_EQ(killed.exit_code, 0) << log;
  EXPECT_NE(log.find("2 of 4 restarts used"), std::string::npos) << log;
  EXPECT_EQ(
      shell("cmp " + out() + "/model.safetensors " + whole + "/model.safetensors 2>&1").output, "")
      << log;
  const std::string of_each_step = "grep -o '\"step\":[0-9]*' ";
  EXPECT_EQ(shell(of_each_step + out() + "/metrics.jsonl").output,
            shell(of_each_step + whole + "/metrics.jsonl").output);
}

// Runs the example of README twice.
TEST_F(TrainProgram, ARunThatWasKilledYoungIsBegunAgain) {
  for (int time = 0; time < 2; ++time) {
    const std::string until_begun =
        until("[ $(ls -a " + out() + " 2>/dev/null | grep -c abandoned-metrics) -ge " +
              std::to_string(time) + " ] && [ -s " + out() + "/metrics.jsonl ]");
    ShellResult run = shell(program("lockstep-train") + long_mlp() + " 2>&1 & agent=$!; " +
                            until_begun + signal_rank(1) + "wait $agent");
    EXPECT_EQ(run.exit_code, 137) << run.output;
  }
  ShellResult again =
      shell(program("lockstep-train") + " mlp --steps 20 --threads 1 --out " + out() + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.output;
  ShellResult refused = shell(program("lockstep-train") +
                              " mlp --steps 20 --threads 1 -n 2 --out " + out() + " 2>&1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.output, "lockstep train: " + out() +
                                " holds a run already: pass --resume to continue it, --overwrite "
                                "to replace it, or another --out\n");
  for (const char* how : {" --overwrite", " --resume auto", " --resume"}) {
    ShellResult run = shell(program("lockstep-train") + " mlp --steps 20 --threads 1 -n 2 --out " +
                            out() + how + " 2>&1");
    EXPECT_EQ(run.exit_code, 0) << run.output;
  }
}

TEST_F(TrainProgram, ASignalWhileItEvaluatesSavesInTime) {
  {
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 60'000; ++i) text << "abacus banana cab, abacus banana cab\n";
  }
  for (const char* how : {" -n 2 --grace 20s", "", " --strategy threads --devices 2"}) {
    std::filesystem::remove_all(out());
    ShellResult run = shell(
        program("lockstep-train") + " gpt --data " + (folder_ / "text.txt").string() + " --out " +
        out() + " --layers 4 --width 256 --block 64 --steps 10 --eval-every 3 --eval-batches 0" +
        " --save-every 1000 --log-every 1 --threads 1" + how + " > " + out() +
        ".log 2>&1 & agent=$!; " +
        until("grep -q '\"step\":2' " + out() + "/metrics.jsonl 2>/dev/null") +
        "sleep 1; kill -TERM $agent; wait $agent");
    const std::string log = shell("cat " + out() + ".log").output;
    EXPECT_EQ(run.exit_code, 143) << log;
    EXPECT_NE(log.find("stopped: signal=SIGTERM steps=3 "), std::string::npos) << log;
    EXPECT_TRUE(std::filesystem::exists(after(" weights=", log))) << log;
  }
}

TEST_F(TrainProgram, ATimeOfGraceThatIsNoneIsOneLine) {
  ShellResult run =
      shell(program("lockstep-train") + " mlp -n 2 --grace soon --out " + out() + " 2>&1");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.output,
            "lockstep train: --grace: expected a time such as 10, 2.5s or 1m, found 'soon'\n");
}

TEST_F(TrainProgram, HelpIsForTheTask) {
  ShellResult help = shell(program("lockstep-train") + " mnist --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.output.find("--momentum"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
