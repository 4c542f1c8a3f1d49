// What an agent hears about the rounds of its run, and what it says about its own workers. A round
// is a period with a fixed set of workers and ranks.
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

// None of its functions waits, except wait_for_the_others(). Events may come from other threads.
class RoundSource {
 public:
  virtual ~RoundSource() = default;
  RoundSource(const RoundSource&) = delete;
  RoundSource& operator=(const RoundSource&) = delete;

  [[nodiscard]] const RoundStore& store() const { return store_; }
  // The number of this agent: in a fixed run its node rank.
  [[nodiscard]] int node() const { return node_; }
  // The host of a node of a fixed run; "unknown" for a number that no node has.
  [[nodiscard]] virtual std::string host(int node) const = 0;
  // This node's offer without its workers.
  [[nodiscard]] Offer empty_offer() const;

  // For poll(): readable when there are events.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  [[nodiscard]] std::vector<RoundEvent> take_events();

  virtual void offer(int round, const Offer& offer) = 0;
  // A worker of this node has ended badly in that round, which ends. Another round follows, after a
  // pause if workers have failed before init() several times in a row; the run is over if restarts
  // are used up, and after an error of use (exit code 2 before init()). If a node of the round has
  // gone, that is the cause.
  virtual void fail(const RoundPlan& plan, const RunResult& failure) = 0;
  // All workers of this node have ended well.
  virtual void done(int round) = 0;
  // This node was asked to stop: it leaves if the run can go on without it, as without any spare;
  // else the run ends.
  virtual void stop(const RunResult& stopped, bool is_spare) = 0;
  // Ends the run for all.
  virtual void end_run(const RunResult& result) = 0;

  // Blocks until the other agents have left the store that this one serves, until the deadline, or
  // until `give_up` says so. At once elsewhere.
  virtual void wait_for_the_others(Deadline deadline, const std::function<bool()>& give_up) = 0;

 protected:
  explicit RoundSource(RoundStore store);
  // Any thread. Events after the last one are dropped.
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

// The one round of a run on one node without restarts: what is said is answered at once, and
// nothing is written into the store.
class OneRound : public RoundSource {
 public:
  explicit OneRound(RoundStore store);

  [[nodiscard]] std::string host(int node) const override;
  void offer(int round, const Offer& offer) override;
  void fail(const RoundPlan& plan, const RunResult& failure) override;
  void done(int round) override;
  void stop(const RunResult& stopped, bool is_spare) override;
  void end_run(const RunResult& result) override;
  void wait_for_the_others(Deadline, const std::function<bool()>&) override {}
};

}  // namespace lockstep::launch
