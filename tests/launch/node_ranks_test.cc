// Agents whose rendezvous fails: each prints one line that says why.
#include "launch/run_nodes.h"

#include "launch/node_ranks.h"
#include "support/messages.h"
#include "support/torch/shared_object.h"
#include "sys/sockets.h"
#include "sys/topology.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;
using test::message_of;

std::string secret_file(const test::TemporaryFolder& folder, const char* name,
                        const std::string& content) {
  const auto file = folder / name;
  std::ofstream(file) << content;
  ::chmod(file.c_str(), 0600);
  return file;
}

TEST(NodeRanks, NodesThatNeverComeAreNamed) {
  const test::TemporaryFolder folder;
  auto first = node_spec(4, 0, test::free_port(), 1, "true");
  auto second = first;
  second.nodes.node = 2;
  first.nodes.join_timeout = 5s;
  const auto ran = run_nodes({first, second}, last_one_first(2, folder));
  for (const NodeRan& node : ran)
    EXPECT_EQ(node.problem,
              "node 0 timed out after 5s waiting for nodes 1, 3: no agent with --node-rank 1 or 3 "
              "arrived");
  // The line is printed after one second and names the nodes that have not joined by then.
  const std::string waits = "lockstep run: waiting for ", at = first.nodes.rendezvous;
  const std::string of_all = " of 4 nodes to arrive at " + at + ": nodes 1, ";
  EXPECT_TRUE(ran[0].error == waits + "2" + of_all + "3\n" ||
              ran[0].error == waits + "3" + of_all + "2, 3\n")
      << ran[0].error;
  EXPECT_TRUE(ran[1].error == waits + "the other nodes to arrive at " + at + "\n" ||
              ran[1].error == waits + "node 0 at " + at + "\n")
      << ran[1].error;
}

TEST(NodeRanks, WithoutNode0) {
  auto spec = node_spec(2, 1, test::free_port(), 1, "true");
  spec.nodes.join_timeout = 4s;
  const auto ran = run_nodes({spec});
  EXPECT_EQ(ran[0].error, "lockstep run: waiting for node 0 at " + spec.nodes.rendezvous + "\n");
  expect_words(ran[0].problem,
               {"node 1 timed out after 4s waiting for node 0 at " + spec.nodes.rendezvous});
}

// A run that lasts until an agent has been refused.
struct UntilRefused {
  [[nodiscard]] std::string script() const { return until("[ -e " + refused + " ]"); }
  [[nodiscard]] AroundAgent around() const {
    return {.before = {}, .after = [*this](const std::string& problem) {
              if (!problem.empty()) std::ofstream(refused).flush();
            }};
  }
  std::string refused;
};

TEST(NodeRanks, TwoAgentsWithTheSameNumber) {
  const test::TemporaryFolder folder;
  const UntilRefused run{folder / "refused"};
  const auto port = test::free_port();
  const auto second = node_spec(2, 1, port, 1, run.script());
  const auto ran =
      run_nodes({node_spec(2, 0, port, 1, run.script()), second, second}, run.around());
  EXPECT_EQ(ran[0].exit_code, 0) << ran[0].problem << ran[0].error;
  const bool first_stayed = ran[1].problem.empty();
  EXPECT_EQ(ran[first_stayed ? 1 : 2].exit_code, 0);
  expect_words(ran[first_stayed ? 2 : 1].problem,
               {"another agent has --node-rank 1 already: pid ", " on host "});
}

TEST(NodeRanks, TwoAgentsThatAreNode0) {
  const test::TemporaryFolder folder;
  const UntilRefused run{folder / "refused"};
  const auto port = test::free_port();
  const auto first = node_spec(2, 0, port, 1, "true");
  const auto ran = run_nodes({first, first, node_spec(2, 1, port, 1, run.script())}, run.around());
  EXPECT_EQ(ran[2].exit_code, 0) << ran[2].problem << ran[2].error;
  const bool first_stayed = ran[0].problem.empty();
  expect_words(ran[first_stayed ? 1 : 0].problem,
               {"127.0.0.1:" + std::to_string(port), "the port is in use by another process"});
}

TEST(NodeRanks, ANodeThatLeavesEndsTheWaitOfTheOthers) {
  const auto port = test::free_port();
  const auto ran = run_nodes({node_spec(3, 0, port, 1, "true"), node_spec(3, 1, port, 1, "true")},
                             {.before =
                                  [](int agent) {
                                    if (agent == 1)
                                      std::thread([] {
                                        std::this_thread::sleep_for(1500ms);
                                        ::kill(::getpid(), SIGKILL);
                                      }).detach();
                                  },
                              .after = {}});
  EXPECT_EQ(ran[1].process.signal, SIGKILL);
  EXPECT_EQ(ran[0].problem, "node 1 (host " + sys::host_name() + ") left before the run began");
}

TEST(NodeRanks, DifferentNumbersOfNodes) {
  const auto port = test::free_port();
  for (int node : {1, 2}) {
    const auto ran =
        run_nodes({node_spec(2, 0, port, 1, "true"), node_spec(3, node, port, 1, "true")});
    for (const NodeRan& agent : ran)
      EXPECT_EQ(agent.problem, "--nnodes must be the same on all nodes: node 0 has 2, node " +
                                   std::to_string(node) + " has 3");
  }
}

TEST(NodeRanks, DifferentSecrets) {
  const test::TemporaryFolder folder;
  const auto port = test::free_port();
  auto first = node_spec(2, 0, port, 1, "true"), second = node_spec(2, 1, port, 1, "true");
  first.nodes.secret_file = secret_file(folder, "first", "correct horse battery");
  second.nodes.secret_file = secret_file(folder, "second", "correct horse staple!");
  first.nodes.join_timeout = 4s;
  const auto ran = run_nodes({first, second}, last_one_first(2, folder));
  EXPECT_EQ(ran[1].problem,
            "node 1 cannot join: store at " + first.nodes.rendezvous +
                " refused the secret: the server and its clients must have the same secret");
  expect_words(ran[0].problem, {" for node 1: no agent"});

  second.nodes.secret_file = first.nodes.secret_file;
  first.nodes.join_timeout = far_too_long;
  for (const NodeRan& node : run_nodes({first, second}))
    EXPECT_EQ(node.exit_code, 0) << node.problem;
}

// Errors that are found before anything is sent.
TEST(NodeRanks, MistakesOfOneAgent) {
  const test::TemporaryFolder folder;
  const auto problem = [](const WorkerSpec& spec) {
    return message_of<BadInput>([&] { (void)run_agent(spec); });
  };
  auto spec = node_spec(2, 0, 1, 1, "true");
  spec.nodes.rendezvous = "192.0.2.1:29400";
  expect_words(problem(spec), {"--secret-file is missing", "192.0.2.1:29400", "mode 600"});
  spec.nodes.secret_file = secret_file(folder, "secret", "correct horse battery");
  expect_words(problem(spec), {"192.0.2.1:29400", "not an address of this host"});
  ::chmod(spec.nodes.secret_file.c_str(), 0644);
  expect_words(problem(spec), {"mode 600", "found mode 644"});
}

TEST(NodeRanks, ARendezvousThatIsNoEndpointIsBadInput) {
  auto spec = node_spec(2, 1, 1, 1, "true");
  EXPECT_NO_THROW(Agent{spec});
  spec.nodes.rendezvous = "";
  EXPECT_THROW(Agent{spec}, BadInput);
}

// A peer without the secret is rejected, and a peer that only holds a connection open delays no
// agent. Node 1 starts after both peers have connected to node 0.
TEST(NodeRanks, StrangersAtTheDoor) {
  const auto port = test::free_port();
  auto specs = std::vector{node_spec(2, 0, port, 1, "true"), node_spec(2, 1, port, 1, "true")};
  const test::SharedObject<std::array<std::atomic<int>, 2>> connections;
  test::RankProcesses strangers(2, [&](int stranger) {
    const auto address = sys::SocketAddress::tcp("127.0.0.1", port);
    for (;;) {
      try {
        auto socket = sys::try_connect(address, Deadline::after(1s));
        if (socket) ++(*connections)[static_cast<std::size_t>(stranger)];
        if (socket && stranger == 0)
          sys::send_all(socket.get(), sys::bytes_of("LSSTORE1"), Deadline::after(1s));
        ::poll(nullptr, 0, 5);
      } catch (const Error&) {
        continue;  // the connection was closed
      }
    }
  });
  const auto wait_for_strangers = [&](int agent) {
    const Deadline limit = Deadline::after(far_too_long);
    const auto is_missing = [](const std::atomic<int>& count) { return count == 0; };
    while (agent == 1 && std::any_of(connections->begin(), connections->end(), is_missing) &&
           !limit.passed())
      std::this_thread::sleep_for(1ms);
  };
  for (const NodeRan& node : run_nodes(specs, {.before = wait_for_strangers, .after = {}}))
    EXPECT_EQ(node.exit_code, 0) << node.problem;
  for (const std::atomic<int>& count : *connections) EXPECT_GT(count.load(), 0);
}

// Returns the lines that are printed in 50 ms or until the first line.
std::vector<std::string> lines_while_waiting(bool for_a_line) {
  std::vector<std::string> lines;
  std::atomic<bool> has_come = false;
  {
    WaitingLines waiting(
        [&](const std::string& line) {
          lines.push_back(line);
          has_come = true;
        },
        false);
    waiting.wait_for("nobody yet");
    waiting.wait_for("node 1");
    std::this_thread::sleep_for(50ms);
    const Deadline limit = Deadline::after(30s);
    while (for_a_line && !has_come && !limit.passed()) std::this_thread::sleep_for(5ms);
  }
  return lines;
}

// If a busy machine makes the wait long, the test tries again.
TEST(WaitingLines, AShortWaitIsNotWorthALine) {
  for (int i = 0; i < 10; ++i) {
    const auto begin = Clock::now();
    const auto lines = lines_while_waiting(false);
    if (Clock::now() - begin > 900ms) continue;
    EXPECT_TRUE(lines.empty());
    return;
  }
}

TEST(WaitingLines, AfterASecondTheySayWhatIsWaitedForNow) {
  EXPECT_EQ(lines_while_waiting(true), std::vector<std::string>{"waiting for node 1"});
}

}  // namespace
}  // namespace lockstep::launch
