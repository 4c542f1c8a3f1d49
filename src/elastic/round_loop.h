// The loop of an elastic program: one pass a round, each with a group of its own.
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

// Thrown by Round::commit() on all ranks where the round has ended in order.
class RoundEnded : public Error {
  using Error::Error;
};

// What the body of the loop has while its round lasts.
class Round {
 public:
  // Collective. `rounds` and `watch` are null where no agent makes rounds: then this is the only
  // one, and nothing is kept in memory.
  Round(Group group, const Rounds* rounds, RoundWatch* watch, RoundTimes times = {});

  [[nodiscard]] Group& group() { return group_; }
  [[nodiscard]] Commits& commits() { return commits_; }
  [[nodiscard]] std::int64_t number() const { return rounds_ == nullptr ? 0 : rounds_->number(); }
  [[nodiscard]] bool has_agent() const { return rounds_ != nullptr; }
  // As a folder's fence names it (round_fence.h).
  [[nodiscard]] RoundOfRun of_run() const;

  // Local: the groups that the handle's strategy computes with end with the round, too.
  void ends(const Handle& handle);
  // Local: the body has its state, and begins with steps.
  void note_restored() { times_.restored(); }
  // Collective: Commits::commit(). RoundEnded where the ranks are to meet again in another round.
  void commit(const CommitContent& content);

  // Collective: what rank 0 of this or an earlier round has noted under that name; empty: nothing.
  [[nodiscard]] std::string marked(const std::string& name);
  // Before the body returns, on all ranks: the training has not come to its end, and another start
  // of the program will go on with it.
  void leave_unfinished() { is_unfinished_ = true; }
  [[nodiscard]] bool is_unfinished() const { return is_unfinished_; }

  // By rank 0.
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
  Duration rejoin_timeout = std::chrono::minutes(10);  // for the next round to begin
  // Whether processes of this program may be started in reserve (rank_env/reserve.h). Until
  // run_rounds() such a one has no rank.
  bool reserve = false;
  // How many of so many ranks a round is made of, the first ones; 0: they are too few for one. The
  // others wait until it ends: they are not in its group. Without an agent that makes rounds all of
  // them must be wanted. Empty: all.
  std::function<int(int there)> ranks_wanted = {};
  // What lives while a rank waits beside a round of others; empty: nothing.
  std::function<std::shared_ptr<void>()> while_waiting = {};
  // What a process in reserve does before it waits, besides what LibTorch does at its first use.
  std::function<void()> prepare = {};
};

// Calls `body` with the group of the first round, and again in each later one that this process has
// a place in. Ends when `body` returns (true), or when this process has no place any more (false),
// or had none in the group of the last round (false).
//
// PeerLost, Timeout and Aborted end a round, and so does RoundEnded; without an agent that makes
// rounds they are thrown. Every other exception of `body` is thrown in any case.
[[nodiscard]] bool run_rounds(const LoopOptions& options, const std::function<void(Round&)>& body);

// Before a process below an agent that makes rounds ends by an error that each restart would meet
// again, such as a wrong command line: no round follows. Elsewhere it does nothing.
void say_final_failure(const std::string& why) noexcept;

}  // namespace lockstep
