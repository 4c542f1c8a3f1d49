// The program `lockstep` as started by users.
#include "apps/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include <sys/stat.h>
#include <unistd.h>

#include "support/free_port.h"
#include "support/python.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

using namespace std::chrono_literals;

TEST(LockstepRun, StartsAProgramAsRanks) {
  const Finished run = lockstep_command({"run", "-n", "2", "--prefix", "none", "sh", "-c",
                                         "echo $RANK/$WORLD_SIZE $*", "sh", "-n", "x"});
  EXPECT_EQ(run.status, sys::ExitStatus{});
  EXPECT_TRUE(run.output == "0/2 -n x\n1/2 -n x\n" || run.output == "1/2 -n x\n0/2 -n x\n")
      << run.output;
  EXPECT_EQ(run.error, "");
}

TEST(LockstepRun, GivesEachRankGpusOfItsOwn) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string echo =
      "echo $RANK: $CUDA_VISIBLE_DEVICES, ${LOCKSTEP_SHARE_GPUS:-not} shared >&2; sleep 0.1";
  const auto lines_of = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"sh", "-c", echo});
    const Finished run = lockstep_command(words);
    EXPECT_EQ(run.status, sys::ExitStatus{});
    return run.error;
  };
  const std::string each = lines_of({"run", "-n", "2", "--gpus-per-rank", "2"});
  EXPECT_NE(each.find("0: 0,1, not shared"), std::string::npos) << each;
  EXPECT_NE(each.find("1: 2,3, not shared"), std::string::npos) << each;
  const std::string all = lines_of({"run", "-n", "1", "--share-gpus"});
  EXPECT_NE(all.find("0: , 1 shared"), std::string::npos) << all;
}

TEST(LockstepRun, ReturnsTheExitCodeOfTheFirstFailure) {
  const Finished run =
      lockstep_command({"run", "-n", "2", "sh", "-c", "[ $RANK = 0 ] || exit 42; sleep 0.2"});
  EXPECT_EQ(run.status.code, 42);
  EXPECT_NE(run.error.find("lockstep run: rank 1 of 2"), std::string::npos) << run.error;
  EXPECT_EQ(lockstep_command({"run", "sh", "-c", "kill -SEGV $$"}).status.code, 128 + SIGSEGV);
}

TEST(LockstepRun, MistakesAreOneLineAndCode2) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-n", "0", "true"}, "--ranks: expected an integer from 1 to 10000, found '0'"},
      {{"-n", "two", "true"}, "--ranks: expected an integer from 1 to 10000, found 'two'"},
      {{"--rnaks", "2", "true"}, "unknown option '--rnaks'; did you mean '--ranks'?"},
      {{"--gpus-per-rank", "-1", "true"},
       "--gpus-per-rank: expected an integer from 0 to 1024, found '-1'"},
      {{"--grace", "soon", "true"},
       "--grace: expected a time such as 10, 2.5s or 1m, found 'soon'"},
      {{"--prefix", "rnak", "true"}, "--prefix: unknown value 'rnak'; did you mean 'rank'?"},
      {{"--nnodes", "0", "true"}, "--nnodes: expected an integer from 1 to 10000, found '0'"},
      {{"--nnodes", "3:2", "true"},
       "--nnodes: expected a number, or MIN:MAX with 1 <= MIN <= MAX <= 10000, found '3:2'"},
      {{"--nnodes", "0:2", "true"},
       "--nnodes: expected a number, or MIN:MAX with 1 <= MIN <= MAX <= 10000, found '0:2'"},
      {{"--nnodes", "1:", "true"},
       "--nnodes: expected a number, or MIN:MAX with 1 <= MIN <= MAX <= 10000, found '1:'"},
      {{"--nnodes", "1:2", "true"},
       "--rendezvous is missing: --nnodes 1:2 needs it on each node, such as --rendezvous "
       "HOST:29400"},
      {{"--nnodes", "1:2", "--store", "a:1", "--rendezvous", "a:1", "true"},
       "give --store or --rendezvous, not both"},
      {{"--store", "here", "true"}, "--store: expected HOST:PORT, found 'here'"},
      {{"--max-restarts", "-1", "true"},
       "--max-restarts: expected an integer from 0 to 1000000, found '-1'"},
      {{"--max-restarts", "many", "true"},
       "--max-restarts: expected an integer from 0 to 1000000, found 'many'"},
      {{"--hung-after", "10ms", "true"},
       "--hung-after: expected 1 second or more, or 0, found '10ms'"},
      {{"--last-call", "never", "true"},
       "--last-call: expected a time such as 10, 2.5s or 1m, found 'never'"},
      {{"--nnodes", "2", "true"}, "--node-rank is missing: --nnodes 2 needs it on each node"},
      {{"--nnodes", "2", "--node-rank", "0", "true"},
       "--rendezvous is missing: --nnodes 2 needs it on each node, such as --rendezvous "
       "HOST:29400"},
      {{"--nnodes", "2", "--node-rank", "2", "--rendezvous", "a:1", "true"},
       "--node-rank: expected an integer from 0 to 1, found '2'"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "here", "true"},
       "--rendezvous: expected HOST:PORT, found 'here'"},
      {{"--rendezvous", "a:1", "true"},
       "--rendezvous and --secret-file are for several nodes, but --nnodes is 1"},
      {{"--lost-after", "1s", "true"}, "--lost-after: expected 3 seconds or more, found '1s'"},
      {{"--join-timeout", "0s", "true"}, "--join-timeout: expected more than 0s, found '0s'"},
      {{"-n"}, "--ranks needs a value"},
      {{"-n", "2"}, "no program was named: lockstep run -n 2 PROGRAM"}};
  for (auto [words, problem] : cases) {
    words.insert(words.begin(), "run");
    const Finished run = lockstep_command(words);
    EXPECT_EQ(run.status.code, 2) << problem;
    EXPECT_EQ(run.error, "lockstep run: " + problem + "\n");
    EXPECT_EQ(run.output, "");
  }
}

TEST(LockstepRun, ProgramsThatCannotRunGiveTheShellsCodes) {
  EXPECT_EQ(lockstep_command({"run", "-n", "2", "no-such-program"}).status.code, 127);
  EXPECT_EQ(lockstep_command({"run", "-n", "2", "/etc/passwd"}).status.code, 126);
}

TEST(LockstepRun, SeveralNodesAreOneRun) {
  const test::TemporaryFolder home;
  const std::string secret = home / "secret", port = std::to_string(test::free_port());
  std::ofstream(secret) << "correct horse battery";
  ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
  std::vector<Started> nodes;
  for (const char* node : {"0", "1"})
    nodes.push_back(start_lockstep({"run", "--nnodes", "2", "--node-rank", node, "--rendezvous",
                                    "127.0.0.1:" + port, "--secret-file", secret, "-n", "2", "sh",
                                    "-c", "[ $RANK = 2 ] || { sleep 0.5; exit 0; }; exit 9"}));
  for (Started& node : nodes) {
    const Finished run = finish(std::move(node));
    EXPECT_EQ(run.status.code, 9);
    EXPECT_NE(run.error.find("lockstep run: rank 2 of 4 (node 1, host "), std::string::npos)
        << run.error;
  }
}

// Waits until a program has printed these words on standard error.
void await_error(const Started& run, const std::string& words) {
  const Deadline limit = Deadline::after(20s);
  while (content(run.error).find(words) == std::string::npos && !limit.passed())
    std::this_thread::sleep_for(5ms);
}

TEST(LockstepRun, ASignalWhileNodesAreMissingSaysWhatItWaitedFor) {
  const test::TemporaryFolder home;
  const std::string secret = home / "secret", at = "127.0.0.1:" + std::to_string(test::free_port());
  std::ofstream(secret) << "correct horse battery";
  ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
  for (const auto& [node, signal, what] :
       {std::tuple("0", SIGINT, "1 of 2 nodes to arrive at " + at + ": node 1"),
        std::tuple("1", SIGTERM, "node 0 at " + at)}) {
    Started run = start_lockstep({"run", "--nnodes", "2", "--node-rank", node, "--rendezvous", at,
                                  "--secret-file", secret, "true"});
    await_error(run, "waiting for");
    run.process.send(signal);
    const Finished end = finish(std::move(run));
    EXPECT_EQ(end.status.signal, signal);
    EXPECT_EQ(end.error, "lockstep run: waiting for " + what +
                             "\nlockstep run: " + sys::signal_name(signal) +
                             " came while waiting for " + what + "; no rank has been started\n");
  }
}

TEST(LockstepRun, ARefusedSecretIsSaidOnBothSides) {
  const test::TemporaryFolder home;
  const std::string at = "127.0.0.1:" + std::to_string(test::free_port());
  std::vector<Started> nodes;
  for (const char* node : {"0", "1"}) {
    const std::string secret = home / node;
    std::ofstream(secret) << "the secret of node " << node;
    ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
    nodes.push_back(start_lockstep({"run", "--nnodes", "2", "--node-rank", node, "--rendezvous", at,
                                    "--secret-file", secret, "true"}));
  }
  const Finished refused = finish(std::move(nodes[1]));
  EXPECT_EQ(refused.status.code, 1);
  EXPECT_EQ(refused.error,
            "lockstep run: node 1 cannot join: store at " + at +
                " refused the secret: the server and its clients must have the same secret\n");
  await_error(nodes[0], "does not know the secret");
  nodes[0].process.send(SIGTERM);
  const Finished first = finish(std::move(nodes[0]));
  EXPECT_NE(first.error.find("warning: store at " + at +
                             ": refused a connection from 127.0.0.1: it does not know the secret"),
            std::string::npos)
      << first.error;
}

TEST(LockstepRun, HelpNamesEveryOptionWithItsDefault) {
  const Finished help = lockstep_command({"run", "--help"});
  EXPECT_EQ(help.status.code, 0);
  for (const char* words :
       {"-n, --ranks N", "--log-dir DIR", "--prefix STYLE", "[rank]\n", "--stdin RANK",
        "[rank-0]\n", "--grace TIME", "[30s]\n", "--failure-grace TIME", "[5s]\n", "--nnodes M",
        "--node-rank K", "--rendezvous HOST:PORT", "--secret-file FILE", "--join-timeout TIME",
        "[5m]\n", "--lost-after TIME", "[15s]\n", "lockstep run [OPTIONS] PROGRAM"})
    EXPECT_NE(help.output.find(words), std::string::npos) << words;
  EXPECT_EQ(lockstep_command({"help", "run"}).output, help.output);
}

TEST(LockstepRun, SignalsOfTheTerminalReachTheRanks) {
  const test::TemporaryFolder folder;
  const std::string script = "trap 'echo saved; exit 0' INT; touch " + folder.path().string() +
                             "/$RANK; while :; do sleep 0.02; done";
  Started run = start_lockstep({"run", "-n", "2", "sh", "-c", script});
  const Deadline limit = Deadline::after(20s);
  auto ready = [&] {
    return std::filesystem::exists(folder / "0") && std::filesystem::exists(folder / "1");
  };
  while (!ready() && !limit.passed()) std::this_thread::sleep_for(5ms);
  run.process.send(SIGINT);
  const Finished end = finish(std::move(run));
  EXPECT_EQ(end.status.code, 0) << end.error;
  EXPECT_NE(end.output.find("[rank 0] saved\n"), std::string::npos) << end.output;
  EXPECT_NE(end.output.find("[rank 1] saved\n"), std::string::npos) << end.output;
}

TEST(LockstepRun, PythonProgramsRunToo) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const test::TemporaryFolder folder;
  const std::string script = folder / "hello.py";
  std::ofstream(script) << "#!" << test::python()->string()
                        << "\nimport os, sys\nprint(os.environ['RANK'], sys.argv[1])\n";
  ::chmod(script.c_str(), 0755);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{test::python()->string(), script},
        std::vector<std::string>{script}}) {
    std::vector<std::string> command{"run", "-n", "2"};
    command.insert(command.end(), words.begin(), words.end());
    command.push_back("word");
    const Finished run = lockstep_command(command);
    EXPECT_EQ(run.status.code, 0) << run.error;
    EXPECT_NE(run.output.find("[rank 0] 0 word\n"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find("[rank 1] 1 word\n"), std::string::npos) << run.output;
  }
}

TEST(LockstepRun, TorchOfPythonMeetsAtItsOwnStore) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const test::TemporaryFolder folder;
  const std::string script = folder / "sum.py";
  std::ofstream(script)
      << "import torch, torch.distributed as d\nd.init_process_group('gloo')\n"
         "t = torch.tensor([d.get_rank() + 1])\nd.all_reduce(t)\nprint('sum', t.item())\n"
         "d.destroy_process_group()\n";
  const Finished run = lockstep_command({"run", "-n", "2", test::python()->string(), script});
  EXPECT_EQ(run.status.code, 0) << run.error;
  EXPECT_NE(run.output.find("[rank 0] sum 3\n"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("[rank 1] sum 3\n"), std::string::npos) << run.output;
}

TEST(LockstepRun, StartsInMilliseconds) {
  Duration best = 1h;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    EXPECT_EQ(lockstep_command({"run", "-n", "2", "true"}).status.code, 0);
    best = std::min<Duration>(best, Clock::now() - begin);
  }
  EXPECT_LT(best, 200ms);  // loading LibTorch alone would take longer
}

}  // namespace
}  // namespace lockstep::apps
