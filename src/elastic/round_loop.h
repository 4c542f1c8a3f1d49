// The loop of an elastic program: one pass per round, each with its own group.
#pragma once

#include "elastic/commits.h"
#include "elastic/round_fence.h"
#include "elastic/round_times.h"
#include "elastic/round_watch.h"
#include "elastic/rounds.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/parallel/handle.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

// Thrown by Round::commit() on all ranks if the round has ended in order.
class RoundEnded : public Error {
  using Error::Error;
};

// The round that the body of the loop sees.
class Round {
 public:
  // Collective. `rounds` and `watch` are null if no agent makes rounds: then there is a single
  // round, and nothing is kept in memory.
  Round(Group group, const Rounds* rounds, RoundWatch* watch, RoundTimes times = {});

  [[nodiscard]] Group& group() { return group_; }
  [[nodiscard]] Commits& commits() { return commits_; }
  [[nodiscard]] std::int64_t number() const { return rounds_ == nullptr ? 0 : rounds_->number(); }
  [[nodiscard]] bool has_agent() const { return rounds_ != nullptr; }
  // Identifies the round in a folder's fence (round_fence.h).
  [[nodiscard]] RoundOfRun of_run() const;

  // Registers the groups of the handle's strategy, which end with the round. Local.
  void ends(const Handle& handle);
  // Call when the body has restored its state and begins with steps. Local.
  void note_restored() { times_.restored(); }
  // Calls Commits::commit(). Collective. Throws RoundEnded if the ranks are to meet in another
  // round.
  void commit(const CommitContent& content);

  // Returns the value that rank 0 of this or an earlier round set with mark(); empty if no rank
  // did. Collective.
  [[nodiscard]] std::string marked(const std::string& name);
  // Call on all ranks before the body returns, if the training is incomplete and a later start of
  // the program will continue it.
  void leave_unfinished() { is_unfinished_ = true; }
  [[nodiscard]] bool is_unfinished() const { return is_unfinished_; }

  // Called by rank 0.
  void mark(const std::string& name, const std::string& value);

 private:
  Group group_;
  const Rounds* rounds_;
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
  // has no rank until run_rounds().
  bool reserve = false;
  // Returns how many of `there` ranks form the round's group, the first ones; 0 if they are too few
  // for a group. Surplus ranks are not in the group and wait until the round ends. Without an agent
  // that makes rounds, all ranks must be wanted. Empty: all ranks.
  std::function<int(int there)> ranks_wanted = {};
  // Makes an object that lives while a surplus rank waits; empty: none.
  std::function<std::shared_ptr<void>()> while_waiting = {};
  // Extra preparation of a spare before it waits, in addition to the first use of LibTorch.
  std::function<void()> prepare = {};
};

// Calls `body` with the group of the first round, and again for each later round in which this
// process has a place. Returns true when `body` returns. Returns false if this process has no place
// in a later round, or had none in the group of the last round.
//
// PeerLost, Timeout, Aborted and RoundEnded end a round; without an agent that makes rounds they
// are thrown. All other exceptions of `body` are thrown.
[[nodiscard]] bool run_rounds(const LoopOptions& options, const std::function<void(Round&)>& body);

// Prevents a further round. Call it before a process ends with an error that each restart would
// meet again, such as an invalid command line. Does nothing if no agent makes rounds.
void say_final_failure(const std::string& why) noexcept;

}  // namespace lockstep
