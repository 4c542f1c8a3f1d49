// Agent: starts the ranks of a run on this host, passes on their output, and makes all of them end
// together. A run on several hosts has one agent per host.
//
//   launch::Agent agent({.program = "./train", .arguments = {"--lr", "0.1"}, .ranks = 4});
//   return agent.run().exit_code;
//
// Guarantees:
//  - Output keeps its order within a rank. A log file has a rank's bytes unchanged.
//  - The first rank that fails is the cause: it is reported with its last lines, and its exit code
//    is the run's.
//  - When run() returns, every process that the ranks started has ended, including processes that
//    left the process groups or sessions of the ranks.
//  - If the agent's own process is killed, the ranks and the processes that they started are killed
//    with it: the kernel kills the agent's children; each rank that has called init() ends by
//    itself, with one line that says why; an orphan reaper, a small process beside the agent, kills
//    every other process that still has the ranks' environment. Only a process that has cleared its
//    environment, was not started by the agent itself and never called init() can outlive it.
//  - Over several nodes: the first failure on any node ends the run on all nodes, and every agent
//    reports it and returns its exit code. An agent that vanishes, or is stopped for longer than
//    `lost_after`, is such a failure.
#pragma once

#include "launch/environment.h"

#include <lockstep/base/deadline.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

enum class PrefixStyle {
  rank,  // "[rank 1] " before each line; other output may split a line over 64 KiB
  none,  // unchanged bytes, whole lines at a time
};

enum class StandardInput {
  rank_0,  // rank 0 gets the agent's standard input, other ranks get an empty one
  none,    // all ranks get an empty one
};

// The place of this agent in a run on several nodes. Node 0 serves the store at `rendezvous`, which
// must be an address of node 0; other nodes connect to it.
struct NodeSpec {
  int nodes = 1;        // 1: a single node; of the other members only `store` is used
  int least_nodes = 0;  // less than `nodes`: nodes may join and leave, and the run continues with
                        // this many; 0: as many as `nodes`
  int node = 0;  // 0 .. nodes-1; node 0 serves the store. Determines the order of ranks, unless the
                 // run may have more rounds: then agents are numbered in order of arrival
  std::string rendezvous = {};   // "HOST:PORT"
  std::string store = {};        // "HOST:PORT" of `lockstep store`: then no node serves one
  std::string secret_file = {};  // the same content on all nodes, mode 600; may be missing only
                                 // where HOST is a loopback address: then it is the user's own
  Duration join_timeout = std::chrono::minutes(5);  // for all nodes to join
  Duration last_call = std::chrono::seconds(5);     // for more nodes to join before the first
                                                    // round, once least_nodes have joined
  Duration lost_after = std::chrono::seconds(15);   // without a heartbeat of a node's agent
};

[[nodiscard]] inline int least_nodes(const NodeSpec& spec) {
  return spec.least_nodes > 0 ? spec.least_nodes : spec.nodes;
}

struct WorkerSpec {
  std::string program = {};  // a path, or a name to find in PATH or else in the current folder
  std::vector<std::string> arguments = {};  // without argv[0]
  int ranks = 1;                            // of this node
  NodeSpec nodes = {};
  // The number of worker failures after which the run still continues. After each failure, all
  // workers begin another round; workers that wait for the next round by themselves (rounds.h) are
  // not restarted. Nodes that join or leave are not counted.
  int max_restarts = 0;
  // The number of hot spare processes of this node, while restarts are left. The program must have
  // announced that it supports hot spares (round_key::hot_spares). A hot spare has no rank; its
  // libraries are loaded, so that it can take the rank of a lost worker at once. With gpus_per_rank
  // there are no hot spares, because a process reads its GPUs before it has a rank.
  int hot_spares = 1;
  // A worker is killed, and has failed, if it or one of its descendants is stopped (SIGSTOP, a
  // debugger) for this long; 0: never.
  Duration hung_after = {};
  int gpus_per_rank = 0;     // CUDA_VISIBLE_DEVICES gives each rank so many GPUs; 0: all
  bool shares_gpus = false;  // ranks may share a GPU (LOCKSTEP_SHARE_GPUS)
  Environment environment = current_environment();  // the ranks' own variables are added
  std::string log_folder = {};  // created if missing; gets rank-0.log, ... Empty: no logs
  PrefixStyle prefix = PrefixStyle::rank;
  StandardInput input = StandardInput::rank_0;
  Duration grace = std::chrono::seconds(30);  // from a request to stop to SIGKILL
  Duration failure_grace =
      std::chrono::seconds(5);  // from the SIGTERM that follows a failure to SIGKILL
  // After all ranks have ended: if a reader of `output` or `error` reads nothing for this long, the
  // remaining output is dropped. A slow reader gets all output.
  Duration output_timeout = std::chrono::minutes(1);
  // Descriptors for the ranks' stdout and stderr; not owned. The agent prints to `error`.
  int output = 1;
  int error = 2;
  // If set, run() receives SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGTSTP and
  // treats them as deliver() does. It blocks these signals in the calling thread; every other
  // thread must have them blocked too. If SIGHUP was ignored (nohup), it stays ignored.
  bool forward_signals = false;
  // If set, the run stops when the reader of `output` closes it, as SIGPIPE stops a single program.
  // Otherwise the ranks continue without a reader.
  bool stop_without_reader = false;
  // If a rank ends with this code, no report is printed: the rank has explained its failure itself.
  // -1: every failure is reported.
  int explained_exit_code = -1;
};

// Returns true if the run may have more than one round.
[[nodiscard]] inline bool may_have_more_rounds(const WorkerSpec& spec) {
  return spec.max_restarts > 0 || least_nodes(spec.nodes) < spec.nodes.nodes ||
         !spec.nodes.store.empty();
}

struct RankEnd {
  int rank = 0;
  int pid = 0;
  int exit_code = 0;    // as in a shell: 128 + signal for signals
  std::string how;      // "exit code 3", "killed by signal 9 (SIGKILL)"
  Duration after = {};  // since the ranks were started
};

struct AgentResult {
  int exit_code = 0;             // the exit code for a program that only runs an agent
  std::optional<RankEnd> cause;  // the first rank that failed on any node, if any
  std::vector<RankEnd> ends;     // all ranks of this node, in order of their ends
};

class Agent {
 public:
  // Throws BadInput for a number that start_copies() refuses, an invalid endpoint, and too few
  // GPUs; no process has been started then. The caller checks the other values.
  explicit Agent(WorkerSpec spec);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Blocks until all ranks and the processes that they started have ended. Call it once. While it
  // runs, the process ignores SIGPIPE and SIGXFSZ, does not ignore SIGCHLD, and adopts orphans
  // among its descendants (PR_SET_CHILD_SUBREAPER). Earlier children of the process are left alone,
  // but other threads must not start children: the agent would terminate them like processes of the
  // ranks. The ranks also end with the calling thread. The agent may open as many files as the hard
  // limit allows; the ranks get the agent's original limit. If the program is not found, the exit
  // code is 127; if it cannot be executed, 126; both with a line on `error`. With several nodes,
  // until all nodes have joined, the agent prints after one second and then every ten seconds what
  // it is waiting for; until then signals have their ordinary effect, and with forward_signals a
  // line says so. Throws BadInput if a log is not a regular file, or the limit of open files is too
  // low; SystemError if a log or the store cannot be made, or /proc is missing. With several nodes,
  // also throws BadInput, Timeout and PeerLost if the rendezvous fails. After an exception no
  // process is left running.
  AgentResult run();

  // Acts as if this process had received `signal`. Thread-safe, and safe in signal handlers.
  // SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed to all ranks; SIGKILL follows after the grace
  // period, or at once after a second SIGINT. SIGTSTP stops ranks and agent until SIGCONT. Other
  // signals are only passed on.
  void deliver(int signal) noexcept;

 private:
  class Run;
  std::unique_ptr<Run> run_;
};

}  // namespace lockstep::launch
