// Runs with rounds over several nodes; each node is an agent in its own process on this machine.
#include "launch/elastic_nodes.h"

#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <thread>

#include "support/messages.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;

TEST(RoundsOfNodes, AFailureStartsTheRanksOfAllNodesAnew) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(3, 0, 2,
                             where + all_come(6, folder.path().string()) +
                                 "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 3 ] && exit 7; "
                                 "exec sleep 60",
                             folder);
  for (WorkerSpec& spec : specs) spec.max_restarts = 1;
  const auto ran = run_nodes(specs);
  for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(count(ran, "0: " + std::to_string(rank) + "/6 0"), 1U);
    EXPECT_EQ(count(ran, "1: " + std::to_string(rank) + "/6 1"), 1U);
  }
  for (const NodeRan& node : ran)
    expect_words(node.error, {"round 1 begins: 6 ranks on 3 nodes, 1 of 1 restarts used\n"});
}

TEST(RoundsOfNodes, RestartsThatAreUsedUpAreReportedByAllNodes) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(2, 0, 1,
                             "[ $RANK = 1 ] && { echo some words; sleep 0.2; exit 7; }; "
                             "exec sleep 60",
                             folder);
  for (WorkerSpec& spec : specs) spec.max_restarts = 1;
  const auto ran = run_nodes(specs);
  for (const NodeRan& node : ran) {
    EXPECT_EQ(node.exit_code, 7) << node.problem << node.error;
    expect_words(node.error,
                 {"rank 1 of 2 (node ", ") ended with exit code 7 at ", "| some words"});
  }
}

// Node 0 serves the store; the order of the other two agents is random.
TEST(RoundsOfNodes, ARunGoesOnWithoutANodeWhoseAgentWasKilled) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(3, 1, 1,
                             std::string(where) +
                                 "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $0 = victim ] && { sleep "
                                 "0.3; kill -9 $PPID; }; exec sleep 60",
                             folder);
  for (std::string& word : specs[2].arguments)
    if (word == "sh") word = "victim";
  const auto ran = run_nodes(specs);
  EXPECT_EQ(ran[2].process.signal, SIGKILL);
  for (int node : {0, 1}) {
    EXPECT_EQ(ran[node].exit_code, 0) << ran[node].problem << ran[node].error;
    expect_words(ran[node].error,
                 {"round 0 ends: node ", ") has left: its agent is gone: it was killed",
                  "round 1 begins: 2 ranks on 2 nodes, 0 of 0 restarts used\n"});
  }
  EXPECT_EQ(count(ran, "1: 0/2 0") + count(ran, "1: 1/2 0"), 2U);
}

// The rank that stays fails because of the loss, and its agent may learn of the failure first.
TEST(RoundsOfNodes, AFailureAfterTheLossOfANodeIsNoRestart) {
  const test::TemporaryFolder folder;
  auto specs =
      elastic_nodes(2, 1, 1,
                    "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $0 = victim ] && { echo $PPID > "
                    "$1/part; mv $1/part $1/agent; kill -9 $PPID; exec sleep 60; }; " +
                        until("[ -e $1/agent ]") +
                        until("! grep -qs '^State:.[^ZX]' /proc/$(cat $1/agent)/status") + "exit 1",
                    folder);
  for (std::string& word : specs[1].arguments)
    if (word == "sh") word = "victim";
  const auto ran = run_nodes(specs);
  EXPECT_EQ(ran[1].process.signal, SIGKILL);
  EXPECT_EQ(ran[0].exit_code, 0) << ran[0].problem << ran[0].error;
  expect_words(ran[0].error, {"round 0 ends: node ", ") has left: its agent is gone",
                              "round 1 begins: 1 rank on 1 node, 0 of 0 restarts used\n"});
}

TEST(RoundsOfNodes, TooFewNodesThatAreLeftAreAFailure) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(2, 2, 1,
                             "[ $0 = victim ] && { sleep 0.3; kill -9 $PPID; }; exec "
                             "sleep 60",
                             folder);
  for (std::string& word : specs[1].arguments)
    if (word == "sh") word = "victim";
  for (WorkerSpec& spec : specs) {
    spec.max_restarts = 1;
    spec.nodes.join_timeout = 6s;
  }
  const auto ran = run_nodes(specs);
  EXPECT_EQ(ran[0].exit_code, 1);
  expect_words(ran[0].error,
               {"timed out after 6s waiting for nodes: 1 of at least 2 have arrived"});
}

TEST(RoundsOfNodes, ANodeThatComesLaterTakesPart) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(2, 1, 1,
                             std::string(where) +
                                 "touch $1/begun; [ $WORLD_SIZE = 2 ] && exit 0; "
                                 "exec sleep 60",
                             folder);
  for (WorkerSpec& spec : specs) spec.nodes.last_call = 0s;
  // The second agent starts while ranks of the first one run.
  specs[1].nodes.rendezvous = specs[0].nodes.rendezvous;
  const auto ran =
      run_nodes(specs, {.before =
                            [&](int agent) {
                              while (agent == 1 && !std::filesystem::exists(folder / "begun"))
                                std::this_thread::sleep_for(10ms);
                            },
                        .after = {}});
  for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
  EXPECT_EQ(lines_of(ran), (std::multiset<std::string>{"0: 0/1 0", "1: 0/2 0", "1: 1/2 0"}));
  expect_words(ran[0].error, {"round 0 ends: nodes join\n",
                              "round 1 begins: 2 ranks on 2 nodes, 0 of 0 restarts used\n"});
}

TEST(RoundsOfNodes, OneThatIsTooManyWaitsUntilItIsNeeded) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(3, 1, 1,
                             std::string(where) +
                                 "[ $0 = victim ] && { sleep 1; kill -9 $PPID; }; touch $1/begun; "
                                 "[ $LOCKSTEP_ROUND = 1 ] && exit 0; exec sleep 60",
                             folder);
  for (WorkerSpec& spec : specs) spec.nodes.nodes = 2;
  for (std::string& word : specs[1].arguments)
    if (word == "sh") word = "victim";
  specs[2].nodes.node = 1;
  const auto ran =
      run_nodes(specs, {.before =
                            [&](int agent) {
                              while (agent == 2 && !std::filesystem::exists(folder / "begun"))
                                std::this_thread::sleep_for(10ms);
                            },
                        .after = {}});
  for (int node : {0, 2}) EXPECT_EQ(ran[node].exit_code, 0) << ran[node].problem << ran[node].error;
  EXPECT_EQ(lines_of({ran[2]}).size(), 1U) << ran[2].output;
  EXPECT_EQ(count(ran, "1: 0/2 0") + count(ran, "1: 1/2 0"), 2U);
}

TEST(RoundsOfNodes, OtherNumbersAreRefused) {
  const test::TemporaryFolder folder;
  auto specs = elastic_nodes(2, 1, 1, "exec sleep 60", folder);
  specs[0].nodes.join_timeout = 8s;
  specs[0].nodes.least_nodes = 2;
  specs[0].max_restarts = 1;
  const auto ran = run_nodes(specs);
  const std::string two = "--nnodes 2:2 --max-restarts 1", one = "--nnodes 1:2 --max-restarts 0";
  const auto refusal = [](const std::string& other, const std::string& own) {
    return "all nodes must be started with the same options: another node has " + other +
           ", this one " + own;
  };
  // Either order is correct.
  EXPECT_TRUE(ran[1].problem == refusal(two, one) || ran[0].problem == refusal(one, two))
      << ran[0].problem << ran[1].problem;
  for (const NodeRan& node : ran) EXPECT_NE(node.exit_code, 0);
}

}  // namespace
}  // namespace lockstep::launch
