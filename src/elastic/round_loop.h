// The loop of an elastic program: one pass per round, each with its own group.
#pragma once

#include "base/format.h"
#include "elastic/commits.h"
#include "elastic/round_client.h"
#include "elastic/round_fence.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/parallel/handle.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep {

// Measures where the time goes between the loss of a rank and the first step of the next round, as
// seen by one process.
class RoundTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // Calls in chronological order. A process that was started for a round begins with placed().
  void lost() { lost_ = Clock::now(); }  // the body of the last round has ended
  // The last round's group, model and optimizer are destroyed.
  void left() { left_ = Clock::now(); }
  void placed() {  // the next round is known
    placed_ = Clock::now();
    if (lost_ == Clock::time_point()) lost_ = left_ = placed_;
  }
  void joined() { joined_ = restored_ = Clock::now(); }  // the group is made
  void restored() { restored_ = Clock::now(); }          // model and optimizer are restored

  // The text for the first commit of the round: "leave=3ms wait=41ms join=12ms restore=25ms
  // step=9ms".
  [[nodiscard]] std::string text() const {
    return formatted("leave={}ms wait={}ms join={}ms restore={}ms step={}ms", between(lost_, left_),
                     between(left_, placed_), between(placed_, joined_),
                     between(joined_, restored_), between(restored_, Clock::now()));
  }

 private:
  static std::int64_t between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count();
  }

  Clock::time_point lost_, left_, placed_, joined_, restored_;
};

// Runs forward, backward and an update of a small model of common layers, so that threads, kernels
// and dispatch tables exist. Local. Draws no random numbers.
void warm_up();

// Thrown by Round::commit() on all ranks if the round has ended without a failure.
class RoundEnded : public Error {
  using Error::Error;
};

class RoundWatch;

// The round that the body of the loop sees.
class Round {
 public:
  // Collective. `rounds` and `watch` are null if no agent makes rounds: then there is a single
  // round, and nothing is kept in memory.
  Round(Group group, const RoundClient* rounds, RoundWatch* watch, RoundTimes times = {});

  [[nodiscard]] Group& group() { return group_; }
  [[nodiscard]] Commits& commits() { return commits_; }
  [[nodiscard]] std::int64_t number() const { return rounds_ == nullptr ? 0 : rounds_->number(); }
  [[nodiscard]] bool has_agent() const { return rounds_ != nullptr; }
  // Identifies the round in a folder's fence (round_fence.h).
  [[nodiscard]] RoundOfRun of_run() const;

  // Registers the groups of the handle's strategy, which end with the round. Local.
  void abort_on_end(const Handle& handle);
  // Call when the body has restored its state and begins with steps. Local.
  void note_restored() { times_.restored(); }
  // Calls Commits::commit(). Collective. Throws RoundEnded if the ranks must continue in another
  // round. If no host has the commit then, first calls `save`, which makes a checkpoint, on all
  // ranks; pass it on all ranks or on none.
  void commit(const CommitContent& content, const std::function<void()>& save = {});

  // Returns the value that rank 0 of this or an earlier round set with set_flag(); empty if none
  // was set. Collective.
  [[nodiscard]] std::string flag(const std::string& name);
  // Call on all ranks before the body returns, if the training is incomplete and a later start of
  // the program will continue it.
  void leave_unfinished() { is_unfinished_ = true; }
  [[nodiscard]] bool is_unfinished() const { return is_unfinished_; }

  // Called by rank 0.
  void set_flag(const std::string& name, const std::string& value);

 private:
  // Collective.
  [[nodiscard]] bool is_kept_on_a_host() const;

  Group group_;
  const RoundClient* rounds_;
  RoundWatch* watch_;
  Commits commits_;
  bool is_unfinished_ = false;
  RoundTimes times_;
  bool has_committed_ = false;
};

struct LoopOptions {
  InitOptions init = {};
  Duration rejoin_timeout = std::chrono::minutes(10);  // limit for the wait until the next round
  // If true, processes of this program may be started as hot spares (rank_env/rank_info.h). A spare
  // has no rank until run_rendezvous_rounds().
  bool hot_spares = false;
  // If `there` ranks are present, the first ranks_wanted(there) of them form the round's group; 0
  // if they are too few. Surplus ranks are not in the group and wait until the round ends. Without
  // an agent that makes rounds, all ranks must be wanted. Empty: all ranks.
  std::function<int(int there)> ranks_wanted = {};
  // Makes an object that exists while a surplus rank waits; empty: no object.
  std::function<std::shared_ptr<void>()> while_waiting = {};
  // Extra preparation of a spare before it waits, in addition to the first use of LibTorch.
  std::function<void()> prepare = {};
};

// Calls `body` with the group of the first round, and again for each later round in which this
// process has a place. Returns true when `body` returns. Returns false if this process has no place
// in a later round, or had none in the group of the last round.
//
// A process may call it several times, one after another. All processes of a run make the same
// calls in the same order. In a process that replaces a lost one, calls that the others have
// finished return true at once.
//
// PeerLost, Timeout, Aborted and RoundEnded end a round; without an agent that makes rounds they
// are thrown. All other exceptions of `body` are thrown.
[[nodiscard]] bool run_rendezvous_rounds(const LoopOptions& options,
                                         const std::function<void(Round&)>& body);

// Prevents another round. Call it before a process ends with an error that would occur again after
// each restart, such as an invalid command line. Does nothing if no agent makes rounds.
void say_final_failure(const std::string& why) noexcept;

}  // namespace lockstep
