// Rounds of a run whose workers may fail and whose nodes may come and go. A round is a period with
// a fixed set of workers and ranks; when one of them is lost, or a node comes, the round ends, the
// nodes gather, and the next one begins with those that are there.
//
// A run over several nodes without restarts whose nodes may not come and go is fixed: it has one
// round, its nodes are numbered by --node-rank, and a node that is lost ends it at once.
//
// No agent leads. Each looks at the store, does what follows from what it sees, and tells the
// others to look again; decisions are made by the first compare_set(). Keys of the agents, all
// below lockstep-run/:
//
//   name, terms        of the run: what no other run has; what all agents must have been told
//   agents, agents/N   how many have come; the host of agent N, or its claim (node_ranks.h)
//   gone/N             why it is not there any more; the server writes it when its connection ends,
//                      and agent N erases it if it comes back before a round was planned without it
//   heartbeat/N        rises while it lives
//   offers/R/N         what it brings to round R (round_plan.h)
//   plans/R            of round R; the first one stands
//   done/R/N           its workers have ended well in round R
//   result             of the run (node_messages.h)
//   news, news/K       how often something has changed; set with the K-th change
//
// and the keys that programs read and write, below lockstep-round/:
//
//   number             the newest round, set when everything below is in place
//   reserve            set by a program: processes of it may wait in reserve
//   R/workers          workers_text() of its plan
//   R/ended            why it cannot go on, as soon as an agent knows
//   R/keeps/WORKER     set by a program: it leaves the round by itself and waits for the next one
//   R/waiting/WORKER   set by a program: it has left round R
//   R/final            set by a program: why no restart can help; its failure ends the run
#pragma once

#include "base/mutex.h"
#include "launch/agent.h"
#include "launch/heartbeat_monitor.h"
#include "launch/node_messages.h"
#include "launch/node_ranks.h"
#include "launch/round_plan.h"
#include "sys/file_descriptor.h"
#include "sys/task_queue.h"
#include "sys/thread.h"

#include <lockstep/store/store_server.h>
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

struct RoundStore {
  std::unique_ptr<StoreServer> server;  // where this agent serves it
  std::shared_ptr<TcpStore> store;
  std::string address;  // as LOCKSTEP_STORE names it
  std::string secret;
};

// Serves the store of a run on one node at 127.0.0.1:port, or serves that of several nodes, or
// comes to it, as `nodes` says. Errors as come_to_store() and serve_agents().
[[nodiscard]] RoundStore open_round_store(const NodeSpec& nodes, int port);

// What agents leave time for before the store that they serve goes with them.
inline constexpr std::chrono::seconds time_to_read{3};

// "the store's key KEY holds what no agent wrote (WHY); ..."
[[nodiscard]] std::string spoiled(const std::string& key, const std::string& why);

struct RoundEvent {
  enum class Kind {
    pause,    // `why`: offer() not before `pause` from now
    gather,   // end what is left of the last round, then offer() for round `round`
    waiting,  // these workers wait for it
    begin,    // it begins
    spare,    // a round runs without this node, which waits until there is room for it
    reserve,  // the program's processes may wait in reserve; once
    over,     // the run is over; the last event
  };
  Kind kind = Kind::gather;
  int round = 0;
  std::string why = {};                // gather: the end of the last round; empty: there was none
  Duration pause = {};                 // pause
  std::set<std::string> workers = {};  // gather: those of the last round that keep themselves
  RoundPlan plan = {};                 // begin, spare; over: of a round that did not begin here
  RunResult result = {};               // over
  bool store_lost = false;             // over: a failure on this node may have come first
};

class Rounds {
 public:
  // Blocks for some round trips; in a fixed run until all nodes have come, while `lines` say which
  // are missing. BadInput when the other agents were told other terms; in a fixed run also as
  // claim_node_rank().
  Rounds(const NodeSpec& nodes, int max_restarts, RoundStore store, WaitingLines& lines);
  ~Rounds();
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  // The number of this agent: in a fixed run its node rank.
  [[nodiscard]] int node() const { return node_; }
  // The host of a node of a fixed run; "unknown" for a number that no node has.
  [[nodiscard]] std::string host(int node) const;
  [[nodiscard]] const RoundStore& store() const { return store_; }
  // This node's offer without its workers.
  [[nodiscard]] Offer empty_offer() const;

  // For poll(): readable when there are events.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  [[nodiscard]] std::vector<RoundEvent> take_events();

  // None of these waits: a thread does.
  void offer(int round, const Offer& offer);
  // A worker of this node has ended badly in that round, which ends. Another round follows, after a
  // pause if workers have failed before init() several times in a row; the run is over if restarts
  // are used up, and after an error of use (exit code 2 before init()). If a node of the round has
  // gone, that is the cause.
  void fail(const RoundPlan& plan, const RunResult& failure);
  // All workers of this node have ended well.
  void done(int round);
  // This node was asked to stop: it leaves if the run can go on without it, as without any spare;
  // else the run ends.
  void stop(const RunResult& stopped, bool is_spare);
  // Ends the run for all.
  void end_run(const RunResult& result);

  // Blocks until the other agents have left the store that this one serves, until the deadline, or
  // until `give_up` says so. At once elsewhere.
  void wait_for_the_others(Deadline deadline, const std::function<bool()>& give_up);

 private:
  void join(int max_restarts, WaitingLines& lines);
  void check_terms(const std::string& own);
  void claim_number(WaitingLines& lines);
  void take_number();
  void push(std::function<void()> task);
  void announce();
  [[nodiscard]] bool is_early(const RoundPlan& plan, const RunResult& failure);
  void pause_after_early_failures();
  void emit(RoundEvent event);
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
  void gather(const std::string& why);
  void look_at_gathering();
  void try_to_plan(int round);
  [[nodiscard]] bool is_time_to_plan(std::size_t nodes);
  void adopt(RoundPlan plan);
  [[nodiscard]] std::set<int> live_nodes();
  [[nodiscard]] std::vector<int> chosen(const std::set<int>& live) const;
  [[nodiscard]] std::optional<std::string> lost_node(const RoundPlan& plan);
  [[nodiscard]] std::optional<int> gone_node(const RoundPlan& plan);
  [[nodiscard]] bool waits_for_the_others();
  void wait_for_news();

  void heartbeat() noexcept;
  void heartbeat_once();
  void pause(Duration time);

  const NodeSpec nodes_;
  const int least_, most_, max_restarts_;
  const bool others_may_come_;  // as nodes of the run, or as spares for the only one
  const bool is_fixed_;
  RoundStore store_;
  Store& keys_;
  std::string run_id_, host_, address_;
  int node_ = 0;
  std::vector<NodeClaim> claims_;  // in a fixed run, by node
  sys::FileDescriptor changed_;

  // The following thread's.
  int round_ = -1;  // the newest whose plan is known
  bool gathering_ = false;
  RoundPlan plan_;
  std::int64_t news_ = 0;  // that have been looked at
  bool keepers_ = false;   // some workers may wait for the next round
  bool has_reserve_ = false;
  std::optional<Clock::time_point> gathering_since_, enough_since_;
  std::map<int, HeartbeatMonitor> heard_;  // the heartbeat thread's

  std::atomic<int> offered_ = -1;              // the round that was last offered for
  std::atomic<std::int64_t> connections_ = 1;  // to the store, so far
  std::atomic<Clock::time_point> back_since_ = Clock::time_point::min();
  std::atomic<bool> leaving_ = false;
  std::atomic<bool> closing_ = false;
  Mutex mutex_;
  std::condition_variable closing_changed_;
  bool over_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<RoundEvent> events_ LOCKSTEP_GUARDED_BY(mutex_);
  int early_failures_ = 0;  // in a row; the tasks'
  sys::TaskQueue tasks_;
  std::vector<sys::Thread> threads_;
};

}  // namespace lockstep::launch
