// RoundClient: the messages of a worker and its agent about the rounds of an elastic run. A round
// has a fixed set of workers and ranks. When a worker fails, or nodes join, the round ends, and the
// remaining workers continue in the next round (docs/elastic.md).
//
// Keys, where R is the number of a round; all values are texts:
//
//   lockstep-round/number            the newest round; set after the rest of it is in place
//   lockstep-round/hot-spares        set by a program whose processes may wait as hot spares
//   lockstep-round/R/workers         line per rank: RANK WORKER NODE LOCAL_RANK LOCAL_WORLD HOST
//   lockstep-round/R/ended           why round R cannot go on; set as soon as an agent knows
//   lockstep-round/R/survivors/WORKER set by a worker that joins the next round without a restart
//   lockstep-round/R/waiting/WORKER  set by a worker that has left round R and waits for the next
//   lockstep-round/R/final           set by a worker that ends: why another round cannot help;
//                                    its failure ends the run
//   lockstep-round/marks/NAME        notes of the run for later rounds; if the program trains
//                                    several times, training N > 0 has the keys marks/call-N/NAME
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

// The place of a worker in a round.
struct RoundPlace {
  int rank = 0;
  int size = 1;
  std::string host;  // of rank 0, as its agent names it; empty if the agent gives no name
};

// Finds the line of `worker` in the list of a round's workers; std::nullopt if it has no line.
// Throws BadInput for malformed lines, and for ranks that are not 0, 1, 2, ...
[[nodiscard]] std::optional<RoundPlace> place_in(const std::string& lines,
                                                 const std::string& worker);

// Returns true if the round ended because nodes join: then no rank was lost.
[[nodiscard]] bool is_orderly(const std::string& end);

// The connection of a worker to the store of the rounds. Const functions are thread-safe; each
// makes one round trip to the store.
class RoundClient {
 public:
  RoundClient(std::shared_ptr<Store> store, std::string worker, std::int64_t round)
      : store_(std::move(store)), worker_(std::move(worker)), round_(round) {}

  // Returns std::nullopt if no agent that makes rounds started this process: LOCKSTEP_WORKER and
  // LOCKSTEP_ROUND are not set. Throws BadInput for invalid values, and errors of the store.
  [[nodiscard]] static std::optional<RoundClient> of_environment(Duration timeout);

  // Call before the first round of a training. `call` is the number of trainings that this process
  // has begun before; each training has its own notes. `round` replaces the round of the
  // environment, which is that of the process's start; -1 keeps it.
  void begin_call(int call, std::int64_t round) {
    call_ = call;
    if (round >= 0) round_ = round;
  }
  [[nodiscard]] int call() const { return call_; }
  [[nodiscard]] std::int64_t number() const { return round_; }

  // Informs the agents that they may start hot spares of this program.
  void allow_hot_spares() const;
  // Informs the agent that this worker joins the next round without a restart.
  void survive() const;
  // Returns the reason why this round cannot continue, or std::nullopt while it can.
  [[nodiscard]] std::optional<std::string> ended() const;
  // Informs the agent that no restart can help. Call it before this process ends with an error.
  void say_final(const std::string& why) const;
  // Returns true if each round has all nodes (--nnodes N), so that no more ranks can join.
  [[nodiscard]] bool are_nodes_fixed() const;
  // Announces that this worker has left, and blocks until there is a newer round. Returns this
  // worker's place in it, or std::nullopt if it has none. Throws Timeout if no newer round begins
  // in time.
  [[nodiscard]] std::optional<RoundPlace> next(Duration timeout);

  // Notes for later rounds of the same training; any rank may set them.
  void set_flag(const std::string& name, const std::string& value) const;
  [[nodiscard]] std::optional<std::string> flag(const std::string& name) const;

  // Returns `store` for the ranks of this round: waits on it throw PeerLost soon after the round
  // has ended.
  [[nodiscard]] std::shared_ptr<Store> filtered(std::shared_ptr<Store> store) const;

 private:
  std::shared_ptr<Store> store_;
  std::string worker_;
  std::int64_t round_;
  int call_ = 0;
};

// Returns the arguments of init_at() for the round for which this process was started.
[[nodiscard]] rank_env::RankInfo rank_info(const RoundPlace& place, std::int64_t round);

}  // namespace lockstep
