// Reads and validates this process's place from the launcher's environment: first the variables of
// `lockstep run` and torchrun, then those of mpirun (mpirun.h) and srun (slurm.h). If none are set,
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
// names the variable and the expected value. A process in reserve blocks here until it gets a
// place, and throws Aborted if it gets none.
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

}  // namespace lockstep::rank_env
