// Rounds: what a worker and its agent tell each other about the periods of an elastic run. A round
// has a fixed set of workers and ranks; when one of them fails, or nodes join, it ends, and those
// that are there go on in the next one (docs/elastic.md).
//
// Keys, all texts, R being the number of a round:
//
//   lockstep-round/number            the newest round; set after the rest of it is in place
//   lockstep-round/reserve           set by a program: processes of it may wait in reserve
//   lockstep-round/R/workers         a line a rank: "RANK WORKER NODE LOCAL_RANK LOCAL_WORLD HOST"
//   lockstep-round/R/ended           why round R cannot go on; set by an agent
//   lockstep-round/R/keeps/WORKER    set by a worker that goes into the next round by itself
//   lockstep-round/R/waiting/WORKER  set by a worker that has left round R and waits for the next
//   lockstep-round/R/final           set by a worker that ends: why no later round could go better
//   lockstep-round/marks/NAME        what the run has noted for its later rounds
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
  std::string host;  // of rank 0, as its agent names it; empty where it does not
};

// The line of `worker` in the list of a round's workers; nothing when it has none. BadInput for
// lines of another form, and for ranks that are not 0, 1, 2, ...
[[nodiscard]] std::optional<RoundPlace> place_in(const std::string& lines,
                                                 const std::string& worker);

// Whether the sentence of a round's end asks for a new round that nothing is lost in: nodes join,
// or the run was asked to stop.
[[nodiscard]] bool is_orderly(const std::string& end);

// Any thread may call what is const; a round trip to the store each.
class Rounds {
 public:
  Rounds(std::shared_ptr<Store> store, std::string worker, std::int64_t round)
      : store_(std::move(store)), worker_(std::move(worker)), round_(round) {}

  // Nothing where no agent that makes rounds started this process: without LOCKSTEP_WORKER and
  // LOCKSTEP_ROUND. BadInput for values that make no sense; errors of the store.
  [[nodiscard]] static std::optional<Rounds> of_environment(Duration timeout);

  [[nodiscard]] std::int64_t number() const { return round_; }

  // Tells the agents that processes of this program may be started before there is a rank for them.
  void offer_reserve() const;
  // Tells the agent that this worker goes into the next round by itself.
  void keep() const;
  // Why this round cannot go on; nothing while it can.
  [[nodiscard]] std::optional<std::string> ended() const;
  // Tells the agent, before this process ends with an error, that no restart can help.
  void say_final(const std::string& why) const;
  // Whether each round has all nodes, as --nnodes N says: no more ranks can come.
  [[nodiscard]] bool are_nodes_fixed() const;
  // Says that this worker has left, and blocks until there is a newer round. Its place there, or
  // nothing where the worker has none any more. Timeout when none has come.
  [[nodiscard]] std::optional<RoundPlace> next(Duration timeout);

  // Notes for later rounds, by any rank.
  void mark(const std::string& name, const std::string& value) const;
  [[nodiscard]] std::optional<std::string> marked(const std::string& name) const;

  // `store` for the ranks of this round: what waits there throws PeerLost soon after the round has
  // ended.
  [[nodiscard]] std::shared_ptr<Store> filtered(std::shared_ptr<Store> store) const;

 private:
  std::shared_ptr<Store> store_;
  std::string worker_;
  std::int64_t round_;
};

// What init_at() needs in that round of the run that this process was started for.
[[nodiscard]] rank_env::RankInfo rank_info(const RoundPlace& place, std::int64_t round);

}  // namespace lockstep
