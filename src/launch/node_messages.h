// What the agents of a run tell each other over their store: what a node brings to a round, which
// worker has which rank in it, how the run has ended. Pure functions and texts, no store and no
// time.
//
// Every reader takes bytes from a peer, bounds what it makes of them, and throws BadInput for
// anything that is not exactly one such text.
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
//
//   claim    PID MARK ADDRESS HOST      of a node rank
//
//   result   done                        all ranks of all nodes ended well
//            stopped SIGNAL NODE         that node's agent was asked to stop
//            failed CODE NODE RANK PID NANOSECONDS     of a rank; RANK -1: of the agent itself;
//                                                      NODE -1 too: HOW says all
//            at TIME
//            how HOW                     "exit code 3"; of an agent a sentence
//            log FILE                    empty: none
//            | LINE                      one for each of its last lines
//
// Each line ends with '\n', and a text holds nothing else that visible_line() would write
// otherwise, such as control characters: what the writers are given they make so, and cut where it
// is too long.
#pragma once

#include "base/visible.h"

#include <lockstep/base/deadline.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

inline constexpr std::size_t most_text_bytes = 4 << 20;
inline constexpr std::size_t most_line_bytes = 4096;

// What the writers are given, fit for one line.
inline std::string tidy(std::string_view text) { return visible_line(text, most_line_bytes - 64); }

inline constexpr int most_nodes = 10'000;
// Of a run whose nodes come and go: each has a number of its own.
inline constexpr int most_node_number = 999'999;
inline constexpr int most_ranks_of_a_node = 10'000;

// What an agent of a fixed run claims its node rank with.
struct NodeClaim {
  int pid = 0;
  std::string mark;     // random letters that no other agent has
  std::string address;  // as the store sees it
  std::string host;     // a name for people

  bool operator==(const NodeClaim&) const = default;
};

// How a run has ended.
struct RunResult {
  enum class Kind { done, stopped, failed };
  Kind kind = Kind::done;
  int signal = 0;  // stopped
  int node = 0;    // stopped, failed: where it began; failed: -1 where that is no node

  // failed:
  int exit_code = 1;
  int rank = -1;  // -1: the agent itself
  int pid = 0;
  Duration after = {};
  std::string at;   // time of day there
  std::string how;  // "exit code 3"; of an agent "program 'x' was not found"
  std::string log_file;
  std::vector<std::string> last_lines;

  bool operator==(const RunResult&) const = default;
};

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
[[nodiscard]] std::string to_text(const NodeClaim& claim);
[[nodiscard]] std::string to_text(const RoundPlan& plan);
[[nodiscard]] std::string to_text(const RunResult& run_result);
// BadInput for anything else.
[[nodiscard]] Offer parse_offer(std::string_view text);
[[nodiscard]] RoundPlan parse_round_plan(std::string_view text);
[[nodiscard]] RunResult parse_run_result(std::string_view text);
[[nodiscard]] NodeClaim parse_node_claim(std::string_view text);

}  // namespace lockstep::launch
