// Rounds of a fixed run without ranks: two nodes in this process.
#include "launch/rounds.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>
#include "launch/round_store.h"
#include "support/free_port.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::message_of;
using Kind = RoundEvent::Kind;

class FixedRounds : public testing::Test {
 protected:
  FixedRounds() {
    std::ofstream(secret_file_) << "correct horse battery";
    ::chmod(secret_file_.c_str(), 0600);
  }

  [[nodiscard]] NodeSpec spec(int node) const {
    return {.nodes = 2,
            .node = node,
            .rendezvous = "127.0.0.1:" + std::to_string(port_),
            .secret_file = secret_file_};
  }
  [[nodiscard]] std::unique_ptr<Rounds> join(const NodeSpec& spec, Deadline store_deadline,
                                             Deadline deadline) {
    WaitingLines lines([](const std::string&) {}, false);
    return std::make_unique<Rounds>(spec, 0, open_round_store(spec, store_deadline), deadline,
                                    lines);
  }
  void join_both(Duration join_timeout) {
    const auto join_one = [&](int node) {
      NodeSpec own = spec(node);
      own.join_timeout = join_timeout;
      return join(own, Deadline::after(20s), Deadline::after(20s));
    };
    auto second = std::async(std::launch::async, [&] { return join_one(1); });
    nodes_[0] = join_one(0);
    nodes_[1] = second.get();
  }
  void request_join(int node) {
    static_cast<void>(next(node, Kind::rendezvous));
    JoinRequest request = nodes_[node]->empty_join_request();
    request.workers = {{std::to_string(node) + ".0", false}};
    nodes_[node]->request_join(0, request);
  }
  RoundEvent next(int node, Kind kind) {
    for (const Deadline limit = Deadline::after(20s); !limit.passed();) {
      pollfd readable{.fd = nodes_[node]->descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&readable, 1, limit.poll_milliseconds());
      for (RoundEvent& event : nodes_[node]->take_events())
        if (event.kind == kind) return event;
    }
    ADD_FAILURE() << "no such event at node " << node;
    return {};
  }

  test::TemporaryFolder folder_;
  std::string secret_file_ = folder_ / "secret";
  std::uint16_t port_ = test::free_port();
  std::unique_ptr<Rounds> nodes_[2];
};

// Node 1 has claimed the failure, but has not published it: it still waits to learn whether a node
// is lost.
TEST_F(FixedRounds, TheFailureThatCameFirstIsTheResultWhicheverIsPublishedFirst) {
  join_both(20s);
  request_join(0);
  request_join(1);
  const RoundPlan plan = next(0, Kind::begin).plan;
  const RunResult first{
      .kind = RunResult::Kind::failed, .node = 1, .exit_code = 3, .rank = 1, .how = "exit code 3"};
  const RunResult second{
      .kind = RunResult::Kind::failed, .node = 0, .exit_code = 4, .rank = 0, .how = "exit code 4"};
  nodes_[1]->store().store->set(round_key::failure, to_text(first));
  nodes_[0]->fail(plan, second);
  for (int node : {0, 1}) EXPECT_EQ(next(node, Kind::over).result, first);
}

TEST_F(FixedRounds, AnAgentThatJoinsAndIsNeverReadyIsNamed) {
  join_both(2s);
  request_join(0);
  for (int node : {0, 1}) {
    const RunResult result = next(node, Kind::over).result;
    EXPECT_EQ(result.node, 1);
    EXPECT_EQ(result.how,
              "its agent has joined the run, but was not ready to start its ranks within 2s");
  }
}

// The default of NodeSpec::join_timeout is five minutes.
TEST_F(FixedRounds, AllWaitsOfAJoinHaveOneDeadline) {
  EXPECT_EQ(message_of<Timeout>([&] {
              static_cast<void>(join(spec(0), Deadline::after(20s), Deadline::after(0s)));
            }),
            "node 0 timed out after 5m waiting for node 1: no agent with --node-rank 1 arrived");
  EXPECT_THROW(static_cast<void>(join(spec(1), Deadline::after(10ms), Deadline::never())), Timeout);
}

TEST_F(FixedRounds, AStoppedNode0IsNamedWhileTheOthersJoin) {
  const test::RankProcesses first(1, [&](int) {
    const std::string secret = read_secret_file(secret_file_);
    const StoreServer server({.port = port_, .secret = secret});
    TcpStore store({.port = port_, .secret = secret});
    store.set(round_key::terms, "--nnodes 2");
    static_cast<void>(store.get(round_key::agent(1), Deadline::after(20s)));
    ::kill(::getpid(), SIGSTOP);
  });
  NodeSpec second = spec(1);
  second.lost_after = 500ms;
  EXPECT_EQ(message_of<Timeout>([&] {
              static_cast<void>(join(second, Deadline::after(20s), Deadline::after(20s)));
            }),
            "node 0 at " + second.rendezvous +
                " does not answer: its agent is stopped, or its host cannot be reached");
}

}  // namespace
}  // namespace lockstep::launch
