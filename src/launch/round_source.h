// The interface through which an agent receives the events of its run's rounds and reports the
// state of its own workers. A round is a period with a fixed set of workers and ranks.
#pragma once

#include "base/mutex.h"
#include "launch/node_messages.h"
#include "launch/round_store.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

struct RoundEvent {
  enum class Kind {
    pause,       // wait `pause` before request_join(); `why` is the reason
    rendezvous,  // end the processes of the last round, then request_join() for round `round`
    waiting,     // these workers wait for the round
    begin,       // the round begins
    spare,       // a round runs without this node, which waits for room
    hot_spares,  // the program supports hot spares; sent once
    over,        // the run is over; the last event
  };
  Kind kind = Kind::rendezvous;
  int round = 0;
  std::string why = {};                // rendezvous: why the last round ended; empty: first round
  bool node_was_lost = false;          // rendezvous: `why` names a node that was lost
  Duration pause = {};                 // pause
  std::set<std::string> workers = {};  // rendezvous: workers of the last round that continue
  RoundPlan plan = {};                 // begin, spare; over: of a round that did not begin here
  RunResult result = {};               // over
  bool store_lost = false;             // over: this node may have failed first
};

// Only wait_for_the_others() blocks. Events may come from other threads.
class RoundSource {
 public:
  virtual ~RoundSource() = default;
  RoundSource(const RoundSource&) = delete;
  RoundSource& operator=(const RoundSource&) = delete;

  [[nodiscard]] const RoundStore& store() const { return store_; }
  // Returns this agent's number; in a fixed run, its node rank.
  [[nodiscard]] int node() const { return node_; }
  // Returns the host of a node of a fixed run; "unknown" if no node has that number.
  [[nodiscard]] virtual std::string host(int node) const = 0;
  // Returns this node's join request without its workers.
  [[nodiscard]] JoinRequest empty_join_request() const;

  // Returns a descriptor to poll; it is readable when there are events.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  [[nodiscard]] std::vector<RoundEvent> take_events();

  virtual void request_join(int round, const JoinRequest& request) = 0;
  // Reports that a worker of this node has failed; the round ends. Another round follows, after a
  // pause if workers have failed before init() several times in a row. The run is over if no
  // restarts are left, or after a usage error (exit code 2 before init()). If a node of the round
  // has been lost, that counts as the cause.
  virtual void fail(const RoundPlan& plan, const RunResult& failure) = 0;
  // Reports that all workers of this node have succeeded.
  virtual void done(int round) = 0;
  // Reports that this node was asked to stop. If the run can continue without this node (always, if
  // it is a spare), the node leaves; otherwise the run ends.
  virtual void stop(const RunResult& stopped, bool is_spare) = 0;
  // Ends the run for all nodes.
  virtual void end_run(const RunResult& result) = 0;

  // Blocks until the other agents have left the store that this one serves, the deadline passes, or
  // `give_up` returns true. Returns at once if this agent does not serve the store.
  virtual void wait_for_the_others(Deadline deadline, const std::function<bool()>& give_up) = 0;

 protected:
  explicit RoundSource(RoundStore store);
  // Thread-safe. Drops events after the last one (`over`).
  void emit(RoundEvent event);

  RoundStore store_;
  std::string host_, address_;
  int node_ = 0;

 private:
  sys::FileDescriptor changed_;
  Mutex events_mutex_;
  bool over_ LOCKSTEP_GUARDED_BY(events_mutex_) = false;
  std::vector<RoundEvent> events_ LOCKSTEP_GUARDED_BY(events_mutex_);
};

// The only round of a run on one node without restarts: answers at once and writes nothing to the
// store.
class OneRound : public RoundSource {
 public:
  explicit OneRound(RoundStore store);

  [[nodiscard]] std::string host(int node) const override;
  void request_join(int round, const JoinRequest& request) override;
  void fail(const RoundPlan& plan, const RunResult& failure) override;
  void done(int round) override;
  void stop(const RunResult& stopped, bool is_spare) override;
  void end_run(const RunResult& result) override;
  void wait_for_the_others(Deadline, const std::function<bool()>&) override {}
};

}  // namespace lockstep::launch
