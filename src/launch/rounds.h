// Rounds of a run whose workers may fail and whose nodes may come and go. A round is a period with
// a fixed set of workers and ranks. If a worker or a node is lost, or a node joins, the round ends,
// the nodes send new offers, and the next round begins with the nodes that are present.
//
// A run over several nodes without restarts and with a constant set of nodes is fixed: it has one
// round, --node-rank numbers its nodes, and the loss of a node ends the run at once.
//
// There is no leader. Each agent reads the store, acts on its content, and makes the others read it
// again; the first compare_set() makes each decision. Keys of the agents, all below lockstep-run/:
//
//   name, terms        the unique name of the run; the options that all agents must share
//   agents, agents/N   number of agents that have joined; the host of agent N, or its claim
//                      (node_ranks.h)
//   gone/N             why agent N has left; the server writes it when the connection ends, and
//                      agent N erases it if it reconnects before a round was planned without it
//   heartbeat/N        increases while agent N lives
//   joins/R/N          the join request of agent N for round R (node_messages.h)
//   plans/R            the plan of round R; the first one counts
//   done/R/N           the workers of agent N have succeeded in round R
//   failure            in a fixed run: the first failure of a rank, which becomes the result if no
//                      node is lost
//   result             the result of the run (node_messages.h)
//   epoch, epoch/K     the number of changes; set with the K-th change
//
// and the keys that programs read and write, below lockstep-round/ (elastic/round_client.h).
#pragma once

#include "base/mutex.h"
#include "launch/agent.h"
#include "launch/heartbeat_monitor.h"
#include "launch/node_messages.h"
#include "launch/node_ranks.h"
#include "launch/round_source.h"
#include "sys/thread.h"

#include <lockstep/store/tcp_store.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// Time that agents leave for reading the store before the agent that serves it exits.
inline constexpr std::chrono::seconds time_to_read{3};

// Returns "the store's key KEY holds what no agent wrote (WHY); ..."
[[nodiscard]] std::string spoiled(const std::string& key, const std::string& why);

class Rounds : public RoundSource {
 public:
  // Blocks for some round trips; in a fixed run until all nodes have joined, at most until
  // `join_deadline`, while `lines` shows the missing nodes. Throws BadInput if other agents have
  // different options; in a fixed run also throws the errors of claim_node_rank().
  Rounds(const NodeSpec& nodes, int max_restarts, RoundStore store, Deadline join_deadline,
         WaitingLines& lines);
  ~Rounds() override;

  [[nodiscard]] std::string host(int node) const override;
  void request_join(int round, const JoinRequest& request) override;
  void fail(const RoundPlan& plan, const RunResult& failure) override;
  void done(int round) override;
  void stop(const RunResult& stopped, bool is_spare) override;
  void end_run(const RunResult& result) override;
  void wait_for_the_others(Deadline deadline, const std::function<bool()>& give_up) override;

 private:
  void join(int max_restarts, Deadline deadline, WaitingLines& lines);
  void check_terms(const std::string& own, Deadline deadline);
  [[nodiscard]] std::string terms_of_node_0(Deadline deadline);
  void claim_number(Deadline deadline, WaitingLines& lines);
  void take_number();
  void push(std::function<void()> task);
  void announce();
  [[nodiscard]] std::optional<std::string> node_lost_soon(const RoundPlan& plan);
  [[nodiscard]] bool is_early(const RoundPlan& plan, const RunResult& failure);
  void pause_after_early_failures();
  void lose(const std::exception& error) noexcept;
  std::int64_t raise(const std::string& key);

  void follow() noexcept;
  [[nodiscard]] bool look();
  void end_if_a_node_is_gone();
  [[nodiscard]] bool is_over();
  [[nodiscard]] bool comes_back();
  void look_at_round();
  [[nodiscard]] std::string reason_to_end();
  [[nodiscard]] bool all_done();
  void begin_rendezvous(const std::string& why);
  void look_at_rendezvous();
  void try_to_plan(int round);
  void note_missing_request(int node);
  [[nodiscard]] bool is_time_to_plan(std::size_t nodes);
  void adopt(RoundPlan plan);
  [[nodiscard]] std::set<int> live_nodes();
  [[nodiscard]] std::vector<int> chosen(const std::set<int>& live) const;
  [[nodiscard]] std::optional<std::string> lost_node(const RoundPlan& plan);
  [[nodiscard]] std::optional<int> gone_node(const RoundPlan& plan);
  [[nodiscard]] bool waits_for_the_others();
  void wait_for_epoch();

  void heartbeat() noexcept;
  void heartbeat_once();
  void pause(Duration time);

  const NodeSpec nodes_;
  const int least_, most_, max_restarts_;
  const bool others_may_come_;  // as nodes, or as spares if the run has one node
  const bool is_fixed_;
  Store& keys_;
  std::vector<NodeClaim> claims_;  // in a fixed run, by node

  // Owned by the following thread.
  int round_ = -1;  // the newest round with a known plan
  bool in_rendezvous_ = false;
  RoundPlan plan_;
  std::int64_t epoch_ = 0;  // the number of changes that have been seen
  bool survivors_ = false;  // some workers may wait for the next round
  bool has_hot_spares_ = false;
  std::optional<Clock::time_point> rendezvous_since_, enough_since_;
  std::map<int, HeartbeatMonitor> heard_;  // used by the heartbeat thread

  std::atomic<int> joining_ = -1;              // the round of the last offer
  std::atomic<std::int64_t> connections_ = 1;  // to the store so far
  std::atomic<Clock::time_point> back_since_ = Clock::time_point::min();
  std::atomic<bool> leaving_ = false;
  std::atomic<bool> closing_ = false;
  Mutex mutex_;
  std::condition_variable closing_changed_;
  int early_failures_ = 0;  // in a row; used by tasks
  sys::TaskQueue tasks_;
  std::vector<sys::Thread> threads_;
};

}  // namespace lockstep::launch
