// Which worker has which rank in a round, as the agents agree on it. Pure functions and texts.
//
// A worker is one process that an agent has started; its name, "NODE.NUMBER", is never used again.
// A node is an agent, by a number that is never used again either: a machine whose agent is started
// anew is another node.
//
//   offer    lockstep-offer 1            what a node brings to the next round
//            node 2 node7                its number, its host
//            address 41233 10.0.0.7      a free port there, its address as the store sees it
//            failed 1                    1: one of its workers has ended the last round
//            worker 2.0 kept             one for each local rank; `new`: to be started,
//            worker 2.5 new              `kept`: a survivor that waits
//
//   plan     lockstep-plan 1             of one round
//            round 3 1                   its number, and how many restarts failures have taken
//            master 41233 10.0.0.7       where its rank 0 may listen
//            node 2 2 node7              number, workers and host, in the order of ranks; and then
//            worker 2.0                  its workers
//            worker 2.5
#pragma once

#include "launch/node_messages.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

inline constexpr int most_rounds = 1'000'000'000;

struct Offer {
  struct Worker {
    std::string name;
    bool kept = false;

    bool operator==(const Worker&) const = default;
  };
  int node = 0;
  std::string host;
  std::string address;
  int port = 1;
  bool failed = false;
  std::vector<Worker> workers;

  bool operator==(const Offer&) const = default;
};

struct RoundPlan {
  struct Node {
    int node = 0;
    std::string host;
    std::vector<std::string> workers;  // by local rank

    bool operator==(const Node&) const = default;
  };
  int round = 0;
  int restarts = 0;
  std::string master_address;
  int master_port = 1;
  std::vector<Node> nodes;

  [[nodiscard]] int ranks() const;
  // Which of `nodes` it is, GROUP_RANK; -1: the round goes without it.
  [[nodiscard]] int group_rank(int node) const;
  // Of that group rank.
  [[nodiscard]] int first_rank(int group_rank) const;
  bool operator==(const RoundPlan&) const = default;
};

// Survivors keep their ranks where they can: a node stays at its place; a new one takes the place
// of one that has left and had as many workers; then the rest close up, and what is left of the new
// ones comes last. A new worker has the rank of the one that it replaces. `last` is null before
// the first round; there is an offer.
[[nodiscard]] RoundPlan plan_round(const RoundPlan* last, std::vector<Offer> offers);

// The value of lockstep-round/R/workers: a line "RANK WORKER NODE LOCAL_RANK LOCAL_WORLD HOST" for
// each rank, in their order; NODE is the group rank.
[[nodiscard]] std::string workers_text(const RoundPlan& plan);

[[nodiscard]] std::string to_text(const Offer& offer);
[[nodiscard]] std::string to_text(const RoundPlan& plan);
// BadInput for anything else.
[[nodiscard]] Offer parse_offer(std::string_view text);
[[nodiscard]] RoundPlan parse_round_plan(std::string_view text);

}  // namespace lockstep::launch
