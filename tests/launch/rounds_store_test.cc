// Runs with rounds whose store is a separate process: `lockstep store`.
#include "launch/elastic_nodes.h"
#include "launch/survivor.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/store/open.h>
#include <lockstep/store/secret.h>
#include <lockstep/store/store_server.h>
#include "support/cuttable_relay.h"
#include "support/messages.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::expect_words;

// The store is separate, so the run does not depend on any particular node.
class RoundsWithAStore : public testing::Test {
 protected:
  RoundsWithAStore() {
    std::ofstream(secret_) << "correct horse battery";
    ::chmod(secret_.c_str(), 0600);
  }

  std::vector<WorkerSpec> specs(int nodes, int least, const std::string& script) {
    auto specs = elastic_nodes(nodes, least, 1, script, folder_);
    for (WorkerSpec& spec : specs) {
      spec.nodes.rendezvous.clear();
      spec.nodes.node = nodes;
      spec.nodes.store = "127.0.0.1:" + std::to_string(port_);
      spec.nodes.secret_file = secret_;
    }
    return specs;
  }

  static void wait_for_file(const std::string& file) {
    while (!std::filesystem::exists(file)) std::this_thread::sleep_for(10ms);
  }

  // The agent of this process waits while lose_later() and interrupt_later() act after `time`.
  void lose_later(Duration time) {
    std::thread([file = folder_ / "lost", time] {
      std::this_thread::sleep_for(time);
      std::ofstream(file).flush();
    }).detach();
  }
  static void interrupt_later(Duration time) {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the agent handles the signal
    std::thread([time] {
      std::this_thread::sleep_for(time);
      ::kill(::getpid(), SIGINT);
    }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[nodiscard]] StoreServerOptions server() const {
    return {.port = port_, .secret = read_secret_file(secret_), .log = folder_ / "store.log"};
  }

  test::TemporaryFolder folder_;
  std::string secret_ = folder_ / "secret";
  std::uint16_t port_ = test::free_port();
};

TEST_F(RoundsWithAStore, EachNodeMayBeLostTheFirstOneToo) {
  test::RankProcesses store(1, [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(3, 1,
                     std::string(where) +
                         "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 0 ] && { sleep 0.3; kill -9 "
                         "$PPID; }; exec sleep 60");
  const auto ran = run_nodes(nodes);
  int killed = 0;
  for (const NodeRan& node : ran) {
    killed += node.process.signal == SIGKILL;
    if (node.process.signal == 0) EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
  }
  EXPECT_EQ(killed, 1);
  EXPECT_EQ(count(ran, "1: 0/2 0") + count(ran, "1: 1/2 0"), 2U);
}

TEST_F(RoundsWithAStore, TheStoreMayBeKilledAndStartedAnew) {
  const auto serve = [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  };
  test::RankProcesses first(1, serve);
  auto nodes = specs(2, 1,
                     std::string(where) +
                         "[ $LOCKSTEP_ROUND = 1 ] && exit 0; touch $1/begun$RANK; while [ ! -e "
                         "$1/anew ]; do sleep 0.05; done; [ $RANK = 1 ] && exit 5; exec sleep 60");
  for (WorkerSpec& spec : nodes) spec.max_restarts = 2;
  test::RankProcesses survivor(1, [&](int) {
    while (!std::filesystem::exists(folder_ / "begun0") ||
           !std::filesystem::exists(folder_ / "begun1"))
      std::this_thread::sleep_for(10ms);
    first.kill(0, SIGKILL);
    std::this_thread::sleep_for(500ms);
    const StoreServer serves(server());
    std::ofstream(folder_ / "anew").flush();
    std::this_thread::sleep_for(60s);
  });
  const auto ran = run_nodes(nodes);
  for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
  EXPECT_EQ(count(ran, "1: 0/2 1") + count(ran, "1: 1/2 1"), 2U);
}

// The store is the same after it was started anew, because it has read its log.
TEST_F(RoundsWithAStore, AStoreWhoseRunIsOverTakesNoOther) {
  for (const char* script : {"exit 0", "touch $1/second; exit 0"}) {
    test::RankProcesses store(1, [&](int) {
      const StoreServer serves(server());
      std::this_thread::sleep_for(60s);
    });
    const auto ran = run_nodes(specs(1, 1, script));
    const bool is_first = script == std::string("exit 0");
    EXPECT_EQ(ran[0].exit_code == 0, is_first) << ran[0].problem << ran[0].error;
    if (!is_first)
      expect_words(ran[0].problem + ran[0].error, {"the run that met at this store is over"});
    store.kill(0, SIGKILL);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "second"));
}

TEST_F(RoundsWithAStore, AStoreWithoutItsLogIsAnother) {
  test::RankProcesses first(1, [&](int) {
    StoreServerOptions options = server();
    options.log.clear();
    const StoreServer serves(options);
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(2, 1, "touch $1/begun$RANK; exec sleep 60");
  test::RankProcesses survivor(1, [&](int) {
    while (!std::filesystem::exists(folder_ / "begun0")) std::this_thread::sleep_for(10ms);
    first.kill(0, SIGKILL);
    StoreServerOptions options = server();
    options.log.clear();
    std::this_thread::sleep_for(200ms);
    const StoreServer serves(options);
    std::this_thread::sleep_for(60s);
  });
  const auto ran = run_nodes(nodes);
  for (const NodeRan& node : ran) {
    EXPECT_EQ(node.exit_code, 1);
    expect_words(node.error, {"the agents' store is lost: ", "started again without the log"});
  }
}

// If no round has been planned without a node, the marks that the store has set are withdrawn.
TEST_F(RoundsWithAStore, ACutOfTheStoreCostsNothing) {
  for (const int count : {1, 2}) {
    const test::TemporaryFolder folder;
    const std::string begun = folder / "begun", healed = folder / "healed";
    const std::uint16_t port = test::free_port();
    test::RankProcesses link(1, [&](int) {
      StoreServerOptions options = server();
      options.log.clear();
      const StoreServer serves(options);
      test::CuttableRelay relay(port_, port);
      for (int rank = 0; rank < count; ++rank) wait_for_file(begun + std::to_string(rank));
      relay.cut();
      std::this_thread::sleep_for(500ms);
      relay.heal();
      // The ranks continue until the agents have read the current state of the store.
      std::this_thread::sleep_for(1500ms);
      std::ofstream(healed).flush();
      std::this_thread::sleep_for(60s);
    });
    auto nodes =
        specs(count, 1,
              std::string(where) + "touch " + begun + "$RANK; " + until("[ -e " + healed + " ]"));
    for (WorkerSpec& spec : nodes) spec.nodes.store = "127.0.0.1:" + std::to_string(port);
    const auto ran = run_nodes(nodes);
    for (const NodeRan& node : ran) EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
    EXPECT_EQ(lines_of(ran).size(), static_cast<std::size_t>(count)) << ran[0].error;
  }
}

TEST_F(RoundsWithAStore, ASpareOfARunOfOneNodeTakesOver) {
  test::RankProcesses store(1, [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(1, 1,
                     std::string(where) + "touch $1/begun; [ $LOCKSTEP_ROUND = 1 ] && exit 0; " +
                         until("[ -e $1/lost ]") + "kill -9 $PPID; exec sleep 60");
  nodes.push_back(nodes.front());
  const auto ran = run_nodes(nodes, {.before =
                                         [&](int agent) {
                                           if (agent == 1) wait_for_file(folder_ / "begun");
                                           if (agent == 1) lose_later(2500ms);
                                         },
                                     .after = {}});
  EXPECT_EQ(ran[0].process.signal, SIGKILL);
  EXPECT_EQ(ran[1].exit_code, 0) << ran[1].problem << ran[1].error;
  expect_words(ran[1].error, {"round 0 runs on 1 node; this node waits until one leaves\n",
                              "round 1 begins: 1 rank on 1 node"});
}

// A spare node that is asked to stop leaves, however many nodes the run needs.
TEST_F(RoundsWithAStore, ASpareLeavesAlone) {
  test::RankProcesses store(1, [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(1, 1, std::string(where) + "touch $1/begun; " + until("[ -e $1/left ]"));
  nodes.push_back(nodes.front());
  nodes[1].forward_signals = true;
  const auto ran = run_nodes(
      nodes, {.before =
                  [&](int agent) {
                    if (agent == 0) return;
                    wait_for_file(folder_ / "begun");
                    interrupt_later(2500ms);
                  },
              .after = [&](const std::string&) { std::ofstream(folder_ / "left").flush(); }});
  EXPECT_EQ(ran[0].exit_code, 0) << ran[0].problem << ran[0].error;
  EXPECT_EQ(ran[1].exit_code, 128 + SIGINT) << ran[1].problem << ran[1].error;
}

TEST_F(RoundsWithAStore, ANodeLeavesWhenItIsAskedToStop) {
  test::RankProcesses store(1, [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(2, 1,
                     std::string(where) +
                         "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 0 ] && { sleep 0.3; kill "
                         "-TERM $PPID; }; exec sleep 60");
  for (WorkerSpec& spec : nodes) spec.forward_signals = true;
  const auto ran = run_nodes(nodes);
  std::multiset<int> codes;
  for (const NodeRan& node : ran) codes.insert(node.exit_code);
  EXPECT_EQ(codes, (std::multiset<int>{0, 128 + SIGTERM})) << ran[0].error << ran[1].error;
  EXPECT_EQ(count(ran, "1: 0/1 0"), 1U);
}

// Returns true if a join request for round 1 offers the worker.
bool is_offered(Store& store, const std::string& worker) {
  for (const std::string& key : store.keys("lockstep-run/joins/1/"))
    if (contains(store.try_get(key).value_or(""), "\"" + worker + "\"")) return true;
  return false;
}

constexpr const char* lost_worker = "test/lost-worker";

// In round 0, rank 1 kills its agent. Rank 0 leaves the round, and is killed as soon as its agent
// has offered it for round 1.
TEST(RoundsWithAStoreProgram, DISABLED_IsKilledWhileItWaits) {
  Survivor survivor;
  if (survivor.round == 1) std::_Exit(0);
  survivor.survive();
  survivor.wait_for_survivors();
  if (survivor.rank() == 1) {
    ::kill(::getppid(), SIGKILL);
    std::this_thread::sleep_for(60s);
  }
  survivor.leave();
  while (!is_offered(*survivor.store, survivor.name)) std::this_thread::sleep_for(5ms);
  survivor.store->set(lost_worker, survivor.name);
  ::kill(::getpid(), SIGKILL);
}

// The round needs two nodes, so it begins only when a third agent has come.
TEST_F(RoundsWithAStore, AWorkerThatIsLostBetweenTwoRoundsIsReplaced) {
  test::RankProcesses serving(1, [&](int) {
    const StoreServer serves(server());
    std::this_thread::sleep_for(60s);
  });
  auto nodes = specs(2, 2, "");
  nodes.push_back(nodes.front());
  for (WorkerSpec& spec : nodes) {
    spec.program = "/proc/self/exe";
    spec.arguments = {"--gtest_filter=RoundsWithAStoreProgram.DISABLED_IsKilledWhileItWaits",
                      "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    spec.environment.erase("GTEST_OUTPUT");
  }
  const auto come_later = [&](int agent) {
    if (agent < 2) return;
    const auto store = open_store("tcp://" + nodes[2].nodes.store, read_secret_file(secret_), 20s);
    const std::string worker = store->get(lost_worker, Deadline::after(far_too_long));
    const Deadline limit = Deadline::after(5s);
    while (is_offered(*store, worker) && !limit.passed()) std::this_thread::sleep_for(10ms);
  };
  const auto ran = run_nodes(nodes, {.before = come_later, .after = {}});
  int killed = 0;
  for (const NodeRan& node : ran) {
    killed += node.process.signal == SIGKILL;
    if (node.process.signal != 0) continue;
    EXPECT_EQ(node.exit_code, 0) << node.problem << node.error;
    expect_words(node.error, {"round 1 begins: 2 ranks on 2 nodes, 0 of 0 restarts used\n"});
  }
  EXPECT_EQ(killed, 1);
}

}  // namespace
}  // namespace lockstep::launch
