// Messages that the agents of a run exchange over their store: a node's join request for a round,
// the assignment of ranks to workers, the result of the run. Pure functions and texts: no store and
// no time.
//
// Every reader takes bytes from a peer, bounds the memory that it allocates for them, and throws
// BadInput for anything that is not exactly one such text.
//
// A worker is one process that an agent has started; its name, "NODE.NUMBER", is never reused. A
// node is an agent, identified by a number that is never reused either: if the agent of a host is
// restarted, the host counts as a new node.
//
// Each text is a JSON object with the members of the struct below, in alphabetical order and
// without blanks, such as this plan:
//
//   {"master_address":"10.0.0.7","master_port":41233,
//    "nodes":[{"host":"node7","node":2,"workers":["2.0","2.5"]}],"restarts":1,"round":3}
//
// (on one line). `kind` is the number of the RunResult::Kind; `nanoseconds` is RunResult::after.
// Writers replace characters that escaped_line() would replace, such as control characters, and
// truncate long texts.
#pragma once

#include "base/escaped.h"

#include <lockstep/base/deadline.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

inline constexpr std::size_t most_text_bytes = 4 << 20;
inline constexpr std::size_t most_line_bytes = 4096;

// Makes a text fit for one line of a message.
inline std::string single_line(std::string_view text) {
  return escaped_line(text, most_line_bytes - 64);
}

inline constexpr int most_nodes = 10'000;
// For a run whose nodes join and leave: node numbers are not reused.
inline constexpr int most_node_number = 999'999;
inline constexpr int most_ranks_of_a_node = 10'000;

// The text with which an agent of a fixed run claims its node rank.
struct NodeClaim {
  int pid = 0;
  std::string mark;     // random letters, unique to this agent
  std::string address;  // as the store sees it
  std::string host;     // a human-readable name

  bool operator==(const NodeClaim&) const = default;
};

// The result of a run. `done`: all ranks of all nodes succeeded.
struct RunResult {
  enum class Kind { done, stopped, failed };
  Kind kind = Kind::done;
  int signal = 0;  // stopped
  int node = 0;    // stopped, failed: the node where it began; failed: -1 if no node is the cause

  // failed:
  int exit_code = 1;
  int rank = -1;  // -1: the agent itself
  int pid = 0;
  Duration after = {};
  std::string at;   // time of day on that node
  std::string how;  // "exit code 3"; for an agent "program 'x' was not found"
  std::string log_file;
  std::vector<std::string> last_lines;

  bool operator==(const RunResult&) const = default;
};

inline constexpr int most_rounds = 1'000'000'000;

// A node's join request for the next round.
struct JoinRequest {
  struct Worker {
    std::string name;
    bool survives = false;  // it waits for the round; otherwise, it will be started

    bool operator==(const Worker&) const = default;
  };
  int node = 0;
  std::string host;
  std::string address;          // as seen by the store
  int port = 1;                 // free at that address
  bool failed = false;          // a failure of its worker ended the last round
  std::vector<Worker> workers;  // by local rank

  bool operator==(const JoinRequest&) const = default;
};

// The plan of one round.
struct RoundPlan {
  struct Node {
    int node = 0;
    std::string host;
    std::vector<std::string> workers;  // by local rank

    bool operator==(const Node&) const = default;
  };
  int round = 0;
  int restarts = 0;            // after failures
  std::string master_address;  // where rank 0 of the round may listen
  int master_port = 1;
  std::vector<Node> nodes;  // in rank order

  [[nodiscard]] int ranks() const;
  // Returns the index in `nodes` (GROUP_RANK), or -1 if the round runs without `node`.
  [[nodiscard]] int group_rank(int node) const;
  // Returns the first rank on the node with this group rank.
  [[nodiscard]] int first_rank(int group_rank) const;
  bool operator==(const RoundPlan&) const = default;
};

// Assigns ranks; survivors keep their ranks if possible. Nodes keep their places; a new node takes
// the place of a departed node with the same number of workers; then later nodes close the
// remaining gaps, and the other new nodes come last. A new worker gets the rank of the worker it
// replaces. `last` is null before the first round; `requests` must not be empty.
[[nodiscard]] RoundPlan plan_round(const RoundPlan* last, std::vector<JoinRequest> requests);

// Returns the value of lockstep-round/R/workers: one line "RANK WORKER NODE LOCAL_RANK LOCAL_WORLD
// HOST" per rank, in rank order; NODE is the group rank.
[[nodiscard]] std::string workers_text(const RoundPlan& plan);

[[nodiscard]] std::string to_text(const JoinRequest& request);
[[nodiscard]] std::string to_text(const NodeClaim& claim);
[[nodiscard]] std::string to_text(const RoundPlan& plan);
[[nodiscard]] std::string to_text(const RunResult& run_result);
// The parsers throw BadInput for any other text.
[[nodiscard]] JoinRequest parse_join_request(std::string_view text);
[[nodiscard]] RoundPlan parse_round_plan(std::string_view text);
[[nodiscard]] RunResult parse_run_result(std::string_view text);
[[nodiscard]] NodeClaim parse_node_claim(std::string_view text);

}  // namespace lockstep::launch
