// What the launcher's environment says about this process, checked: its own variables and
// torchrun's first, then those of mpirun (mpirun.h) and srun (slurm.h), else it is alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// How the ranks of a run find one another.
struct RankRendezvous {
  enum class Kind {
    lockstep_store,  // the store of `lockstep run`, at `address`
    agent_store,     // torchrun's TCPStore at host:port
    rank_0,          // rank 0 opens a TCPStore at host:port
    served_store,    // rank 0 serves a store of ours at `address`; "unix:@NAME" on one host
    mpi,             // mpirun started the ranks on several hosts: MPI carries the first messages
  };
  Kind kind = Kind::rank_0;
  std::string address;
  std::string host;  // of rank 0, as this machine knows it; empty where nobody said so
  std::uint16_t port = 0;

  // The store lives in rank 0's process, and may vanish with one of its groups.
  [[nodiscard]] bool is_at_rank_0() const {
    return kind == Kind::rank_0 || kind == Kind::served_store;
  }
};

struct RankInfo {
  int rank = 0;
  int size = 1;
  std::string attempt = "0";                 // differs from restart to restart of one run
  std::optional<RankRendezvous> rendezvous;  // nothing for one rank
};

// BadInput names the variable that is missing or makes no sense, and what it would have to be. A
// process in reserve waits here for its place; Aborted when it gets none.
[[nodiscard]] RankInfo detect_rank();

// Whether a launcher started this process as a rank, be it the only one. BadInput as detect_rank().
[[nodiscard]] bool is_launched();

// "unix:@lockstep-UID-RUN": where the ranks of that run on this host meet. Short for any `run`.
[[nodiscard]] std::string one_host_address(std::string_view run);

// The secret of the lockstep store: from the descriptor or file that the environment names, else
// none.
[[nodiscard]] std::string read_secret();

}  // namespace lockstep::rank_env
