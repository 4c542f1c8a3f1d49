// Agents of several nodes: how a run proceeds and ends.
#include "launch/run_nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <lockstep/store/secret.h>
#include <lockstep/store/tcp_store.h>
#include "launch/round_store.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "sys/topology.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;

// Every node runs the same number of ranks and the same script.
std::vector<WorkerSpec> same_nodes(int nodes, int ranks, const std::string& script) {
  const auto port = test::free_port();
  std::vector<WorkerSpec> specs;
  for (int node = 0; node < nodes; ++node)
    specs.push_back(node_spec(nodes, node, port, ranks, script));
  return specs;
}

std::set<std::string> words_of(const std::vector<NodeRan>& nodes) {
  std::set<std::string> words;
  for (const NodeRan& node : nodes) {
    std::istringstream lines(node.output);
    for (std::string line; std::getline(lines, line);)
      words.insert(line.substr(line.find("] ") + 2));
  }
  return words;
}

std::size_t times(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// The agent of the last node starts first, and the ranks expect no other round.
TEST(Nodes, RanksAreNumberedByNode) {
  const test::TemporaryFolder folder;
  auto specs = same_nodes(
      3, 1,
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
      "$ROLE_RANK/$ROLE_WORLD_SIZE $MASTER_ADDR$LOCKSTEP_ROUND$LOCKSTEP_WORKER");
  specs[0].ranks = 2;
  specs[2].ranks = 3;
  const auto ran = run_nodes(specs, last_one_first(3, folder));
  for (const NodeRan& node : ran) {
    EXPECT_EQ(node.exit_code, 0) << node.problem;
    EXPECT_EQ(node.error, "");
  }
  EXPECT_EQ(words_of(ran),
            (std::set<std::string>{"0/6 0/2 0/3 0/6 127.0.0.1", "1/6 1/2 0/3 1/6 127.0.0.1",
                                   "2/6 0/1 1/3 2/6 127.0.0.1", "3/6 0/3 2/3 3/6 127.0.0.1",
                                   "4/6 1/3 2/3 4/6 127.0.0.1", "5/6 2/3 2/3 5/6 127.0.0.1"}));
  EXPECT_NE(ran[2].output.find("[rank 5] 5/6"), std::string::npos) << ran[2].output;
}

TEST(Nodes, AllRanksMeetAtTheSamePlaceWithTheSameSecret) {
  const auto specs = same_nodes(2, 2,
                                "echo $LOCKSTEP_STORE $MASTER_PORT $TORCHELASTIC_RUN_ID "
                                "$(od -An -tx1 < /proc/self/fd/$LOCKSTEP_SECRET_FD)");
  const auto ran = run_nodes(specs);
  const auto words = words_of(ran);
  ASSERT_EQ(words.size(), 1u) << *words.begin() << *words.rbegin();
  EXPECT_TRUE(words.begin()->starts_with("tcp://" + specs[0].nodes.rendezvous + " "));
  EXPECT_NE(words, words_of(run_nodes(specs))) << "another run, another name";
}

TEST(Nodes, TheFirstFailureIsReportedByEveryAgentOnce) {
  const auto ran = run_nodes(
      same_nodes(3, 2, "if [ $RANK = 3 ]; then echo some words >&2; exit 3; fi; exec sleep 60"));
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(ran[node].exit_code, 3) << ran[node].problem;
    EXPECT_EQ(times(ran[node].error, "rank 3 of 6 (node 1, host " + sys::host_name() + ", pid "),
              1u)
        << ran[node].error;
    EXPECT_EQ(times(ran[node].error, "ended with exit code 3 at "), 1u) << ran[node].error;
    EXPECT_EQ(times(ran[node].error, "lockstep run:   | some words\n"), 1u) << ran[node].error;
    EXPECT_LT(ran[node].took, far_too_long);
  }
  expect_words(ran[1].error,
               {"rank 3 has failed (exit code 3); ending the others",
                "the ranks of this node ended after it: rank 2: killed by signal 15"});
  expect_words(ran[2].error, {"rank 3 on node 1 (host ", "has failed (exit code 3); ending",
                              "ended after it: ranks 4, 5: killed by signal 15 (SIGTERM)"});
}

// Any of the failures may be shown.
TEST(Nodes, OfFailuresAtTheSameTimeAllAgentsShowTheSame) {
  for (int round = 0; round < 3; ++round) {
    const auto ran = run_nodes(same_nodes(4, 1, "exit $((10 + RANK))"));
    const int code = ran[0].exit_code;
    EXPECT_TRUE(code >= 10 && code < 14) << code << ran[0].problem;
    const std::string first = "rank " + std::to_string(code - 10) + " of 4 (node " +
                              std::to_string(code - 10) + ", host ";
    for (const NodeRan& node : ran) {
      EXPECT_EQ(node.exit_code, code) << node.problem;
      EXPECT_EQ(times(node.error, first), 1u) << node.error;
      EXPECT_EQ(times(node.error, " of 4 (node "), 1u) << node.error;
    }
  }
}

TEST(Nodes, AKilledRankGives128PlusTheSignalEverywhere) {
  const auto ran = run_nodes(same_nodes(2, 1, "[ $RANK = 0 ] && kill -9 $$; exec sleep 60"));
  for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 137) << node.problem;
  expect_words(ran[1].error, {"rank 0 of 2 (node 0, ", "was killed by signal 9 (SIGKILL)"});
}

TEST(Nodes, ARankThatEndsWellWaitsForTheOtherNodes) {
  const auto ran = run_nodes(same_nodes(2, 1, "[ $RANK = 0 ] || { sleep 0.5; echo still here; }"));
  for (const NodeRan& node : ran) {
    EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
    EXPECT_GT(node.took, 450ms);
  }
  EXPECT_EQ(ran[1].output, "[rank 1] still here\n");
}

// Rank `rank` of 3 kills its agent when all ranks have started.
std::string killing_agent_of(int rank, const test::TemporaryFolder& folder) {
  return all_come(3, folder.path().string()) + "if [ $RANK = " + std::to_string(rank) +
         " ]; then kill -9 $PPID; fi; exec sleep 60";
}

TEST(Nodes, AKilledAgentEndsTheRun) {
  const test::TemporaryFolder folder;
  const auto ran = run_nodes(same_nodes(3, 1, killing_agent_of(1, folder)));
  EXPECT_EQ(ran[1].process.signal, SIGKILL);
  for (int node : {0, 2}) {
    EXPECT_EQ(ran[node].exit_code, 1) << ran[node].problem;
    EXPECT_EQ(
        times(
            ran[node].error,
            "node 1 (host " + sys::host_name() +
                ") has failed: its agent is gone: it was killed, or its host cannot be reached\n"),
        1u)
        << ran[node].error;
    EXPECT_LT(ran[node].took, far_too_long);
  }
}

TEST(Nodes, AKilledAgentOfNode0EndsTheRun) {
  const test::TemporaryFolder folder;
  const auto ran = run_nodes(same_nodes(3, 1, killing_agent_of(0, folder)));
  EXPECT_EQ(ran[0].process.signal, SIGKILL);
  for (int node : {1, 2}) {
    EXPECT_EQ(ran[node].exit_code, 1) << ran[node].problem;
    expect_words(ran[node].error,
                 {"node 0 (host ", ") has failed: its agent, which serves the store, is gone"});
    EXPECT_LT(ran[node].took, far_too_long);
  }
}

// Longer than a busy machine delays a heartbeat.
constexpr auto lost_after = 6s;

// Rank `rank` of 3 stops its agent when all ranks have started, and runs `then`. The agent
// continues a second after the other ranks have ended; by then the other agents consider it lost.
std::string stopping_agent_of(int rank, const test::TemporaryFolder& folder,
                              const std::string& then) {
  const auto place = folder.path().string();
  std::string others_have_ended;
  for (int other = 0; other < 3; ++other)
    if (other != rank)
      others_have_ended +=
          until("! kill -0 $(cat " + place + "/pid" + std::to_string(other) + ") 2>/dev/null");
  return "echo $$ > " + place + "/pid$RANK; " + all_come(3, place) +
         "if [ $RANK = " + std::to_string(rank) + " ]; then kill -STOP $PPID; (" +
         others_have_ended + "sleep 1; kill -CONT $PPID) & " + then + "; fi; exec sleep 60";
}

TEST(Nodes, AStoppedAgentEndsTheRunOnTheOthers) {
  const test::TemporaryFolder folder;
  auto specs = same_nodes(3, 1, stopping_agent_of(1, folder, "exit 3"));
  for (WorkerSpec& spec : specs) spec.nodes.lost_after = lost_after;
  const auto ran = run_nodes(specs);
  for (int node : {0, 2}) {
    EXPECT_EQ(ran[node].exit_code, 1) << ran[node].problem;
    EXPECT_EQ(times(ran[node].error, "node 1 (host " + sys::host_name() +
                                         ") has failed: its agent has not answered for 6s: it is "
                                         "stopped, or its host cannot be reached\n"),
              1u)
        << ran[node].error;
  }
  EXPECT_GT(ran[1].exit_code, 0) << "its rank's, or 1 where the others' word is still to be had";
  expect_words(ran[1].error, {"exit code 3"});
}

TEST(Nodes, AStoppedAgentOfNode0EndsTheRunOnTheOthers) {
  const test::TemporaryFolder folder;
  auto specs = same_nodes(3, 1, stopping_agent_of(0, folder, "wait"));
  for (WorkerSpec& spec : specs) spec.nodes.lost_after = lost_after;
  const auto ran = run_nodes(specs);
  const std::string why =
      "its agent, which serves the store, has not answered for 6s: it is stopped, or its host "
      "cannot be reached";
  for (int node : {1, 2}) {
    EXPECT_EQ(ran[node].exit_code, 1) << ran[node].problem;
    EXPECT_EQ(
        times(ran[node].error, "node 0 (host " + sys::host_name() + ") has failed: " + why + "\n"),
        1u)
        << ran[node].error;
  }
  EXPECT_EQ(ran[0].exit_code, 1);
  expect_words(ran[0].error, {"the other nodes have excluded this one (" + why + ")"});
}

// A rank has the secret and can write anything. The counter of changes is read when a node
// announces that its ranks are done.
TEST(Nodes, NonsenseInTheAgentsOwnKeysIsOneTrueLineEverywhere) {
  const test::TemporaryFolder folder;
  const std::string secret = folder / "secret";
  std::ofstream(secret) << "correct horse battery";
  ::chmod(secret.c_str(), 0600);
  int runs = 0;
  for (const std::string& key :
       {std::string(round_key::result), std::string(round_key::epoch), round_key::heartbeat(1)}) {
    const std::string written = folder / ("written" + std::to_string(++runs));
    auto specs = same_nodes(
        2, 1, key == round_key::epoch ? until("[ -e " + written + " ]") : "exec sleep 60");
    for (WorkerSpec& spec : specs) {
      spec.nodes.secret_file = secret;
      spec.nodes.lost_after = lost_after;
    }
    test::RankProcesses writer(1, [&](int) {
      const sys::HostPort at = endpoint_of(specs[0].nodes);
      TcpStore store({.host = at.host,
                      .port = at.port,
                      .secret = read_secret_file(secret),
                      .connect_timeout = 20s});
      static_cast<void>(store.get(round_key::plan(0), Deadline::after(20s)));
      std::this_thread::sleep_for(200ms);
      store.set(key, "non\x1bsense");
      std::ofstream(written).flush();
    });
    for (const NodeRan& node : run_nodes(specs)) {
      EXPECT_EQ(node.exit_code, 1) << key << node.problem;
      EXPECT_EQ(
          times(node.error, "lockstep run: the store's key " + key + " has a value that no agent "),
          times(node.error, "begin with lockstep-run/ are reserved for agents; ending") + 1)
          << node.error;
      EXPECT_EQ(times(node.error, "its agent"), 0u) << node.error;
      EXPECT_EQ(times(node.error, "\x1b"), 0u) << node.error;
      EXPECT_LT(node.took, far_too_long);
    }
  }
}

TEST(Nodes, AStopReachesAllNodes) {
  const test::TemporaryFolder folder;
  auto specs = same_nodes(2, 1,
                          "trap 'echo saved; exit 0' TERM; " + all_come(2, folder.path().string()) +
                              "[ $RANK = 1 ] && kill -TERM $PPID; while :; do sleep 0.02; done");
  for (WorkerSpec& spec : specs) spec.forward_signals = true;
  const auto stopped = run_nodes(specs);
  for (const NodeRan& node : stopped) {
    EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
    EXPECT_NE(node.output.find("saved"), std::string::npos);
  }
  expect_words(stopped[0].error, {"node 1 (host ", ") was asked to stop (SIGTERM)"});
}

// A signal stops the run even if it arrives after the node's own ranks have succeeded.
TEST(Nodes, AStopIsNoGoodEndOfANodeWhoseRanksHaveEnded) {
  const test::TemporaryFolder folder;
  const std::string pids = folder / "pids";
  auto specs = same_nodes(
      2, 1,
      "[ $RANK = 0 ] && { echo $PPID $$ > " + pids + ".new; mv " + pids + ".new " + pids +
          "; exit 0; }; " + until("[ -e " + pids + " ]") + "read agent rank < " + pids + "; " +
          until("! kill -0 $rank 2>/dev/null") + "kill -TERM $agent; exec sleep 60");
  for (WorkerSpec& spec : specs) spec.forward_signals = true;
  for (const NodeRan& node : run_nodes(specs))
    EXPECT_EQ(node.exit_code, 128 + SIGTERM) << node.problem << node.error;
}

TEST(Nodes, AProgramThatOneNodeLacksEndsTheRun) {
  auto specs = same_nodes(2, 1, "exec sleep 60");
  specs[1].program = "no-such-program";
  const auto ran = run_nodes(specs);
  for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 127) << node.problem << node.error;
  expect_words(ran[0].error,
               {"node 1 (host ", "has failed: program 'no-such-program' was not found"});
  EXPECT_EQ(times(ran[1].error, "was not found"), 1u) << ran[1].error;
}

TEST(Nodes, AnAgentThatCannotWriteItsLogsEndsTheRun) {
  auto specs = same_nodes(2, 1, "exec sleep 60");
  specs[1].log_folder = "/dev/null/logs";
  const auto ran = run_nodes(specs);
  expect_words(ran[1].problem, {"log folder"});
  EXPECT_EQ(ran[0].exit_code, 1);
  expect_words(ran[0].error, {"node 1 (host ", "making the log folder /dev/null/logs"});
}

}  // namespace
}  // namespace lockstep::launch
