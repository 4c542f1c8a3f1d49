// Reads and validates this process's place from the launcher's environment: first the variables of
// `lockstep run` and torchrun, then those of mpirun and srun. If none are set,
// the process is the only rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// How the ranks of a run rendezvous.
struct RankRendezvous {
  enum class Kind {
    lockstep_store,  // the store of `lockstep run`, at `address`
    agent_store,     // torchrun's TCPStore at host:port
    rank_0,          // rank 0 opens a TCPStore at host:port
    served_store,    // rank 0 serves a Lockstep store at `address`; "unix:@NAME" on one host
    mpi,             // mpirun started the ranks on several hosts; MPI carries the rendezvous
  };
  Kind kind = Kind::rank_0;
  std::string address;
  std::string host;  // of rank 0, as seen from this host; empty if unknown
  std::uint16_t port = 0;

  // Returns true if the store lives in rank 0's process and may disappear with one of its groups.
  [[nodiscard]] bool is_at_rank_0() const {
    return kind == Kind::rank_0 || kind == Kind::served_store;
  }
};

struct RankInfo {
  int rank = 0;
  int size = 1;
  std::string attempt = "0";                 // differs between restarts of one run
  std::optional<RankRendezvous> rendezvous;  // std::nullopt for a single rank
};

// Returns this process's place. Throws BadInput if a variable is missing or invalid; the message
// names the variable and the expected value. In a hot spare, blocks until it gets a rank, and
// throws Aborted if it gets none.
[[nodiscard]] RankInfo detect_rank();

// Returns true if a launcher started this process as a rank, even as the only one. Throws BadInput
// as detect_rank() does.
[[nodiscard]] bool is_launched();

// Returns "unix:@lockstep-UID-RUN", the address at which the ranks of that run on this host
// rendezvous. Short for any `run`.
[[nodiscard]] std::string one_host_address(std::string_view run);

// Returns the secret of the lockstep store from the descriptor or file that the environment names;
// empty if it names neither.
[[nodiscard]] std::string read_secret();

// Returns std::nullopt unless srun started this process in a step: the shells of sbatch and salloc
// have some of the variables too, but are a single process. Throws BadInput as detect_rank() does.
//
// Ranks on one host rendezvous at a socket named after the step. With several hosts, rank 0's host
// (the first in the step's list) serves a store at the step's first reserved port
// (SLURM_STEP_RESV_PORTS) or, if none is reserved, at a port computed from the job and step
// numbers; its secret is the user's (lockstep/store/secret.h).
[[nodiscard]] std::optional<RankInfo> detect_slurm();

// Returns the first host of a list: "node07" for "node[07-09,12],login". Throws BadInput if the
// text is not such a list.
[[nodiscard]] std::string first_host(std::string_view hosts);

// Returns the first port of a list such as "12000-12003,12010", or std::nullopt if the list is
// empty.
[[nodiscard]] std::optional<std::uint16_t> first_port(std::string_view ports);

// Returns a port below the ephemeral range, different for most other steps.
[[nodiscard]] std::uint16_t port_of_step(std::uint64_t job, std::uint64_t step);

// A process, identified also by its start time because pids are reused.
struct Ancestor {
  int pid = 0;
  std::uint64_t start_time = 0;  // in ticks since the host booted
};

// Returns the nearest ancestor of this process that runs the given program (at most 15 letters, as
// in /proc/PID/comm), otherwise its parent. Shells and wrappers may lie between mpirun and a rank.
[[nodiscard]] Ancestor nearest_ancestor(std::string_view program);

// Returns std::nullopt unless mpirun started this process. Ranks on one host rendezvous at a socket
// named after the run, ranks on several hosts through MPI. Throws BadInput as detect_rank() does.
[[nodiscard]] std::optional<RankInfo> detect_mpirun();

// A hot spare: a process that the agent starts before there is a rank for it. It initialises as far
// as it can without a rank, and waits to replace a lost rank.

// Returns true if this process was started as a hot spare and has no rank yet.
[[nodiscard]] bool is_hot_spare();

// Informs the agent that this hot spare is ready, and blocks until it gets a rank. The process is
// then a normal worker, with RANK and the other variables in its environment. If the process is not
// a hot spare, returns true immediately. Returns false if the agent does not need this process any
// more. While it waits, the process is named "hot-spare". No other thread of the program may read
// the environment during the call.
[[nodiscard]] bool wait_for_assignment();

}  // namespace lockstep::rank_env
