#include "rank_env/mpirun.h"

#include "base/environment.h"
#include "base/format.h"
#include "sys/process_info.h"

#include <limits>
#include <string>

#include <unistd.h>

namespace lockstep::rank_env {
namespace {

// The environment variables of one kind of mpirun.
struct Names {
  const char* rank;
  const char* size;
  const char* local_size;
};

constexpr Names open_mpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
// Slurm's own PMI sets the first two but not the third; slurm.h handles srun.
constexpr Names hydra{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"};

// Returns a name that is the same for all ranks of one mpirun on this host, and different for every
// other run of this user.
std::string run_of_open_mpi() { return environment::required_text("PMIX_NAMESPACE"); }

// On each host, all ranks descend from one process of hydra.
std::string run_of_hydra() {
  auto proxy = nearest_ancestor("hydra_pmi_proxy");
  return formatted("{}-{}", proxy.pid, proxy.start_time);
}

bool is_set(const Names& names) {
  return environment::text(names.rank) && environment::text(names.size) &&
         environment::text(names.local_size);
}

RankInfo read(const Names& names, std::string (*run)()) {
  auto size = environment::required_integer(names.size, 1, std::numeric_limits<int>::max());
  auto rank = environment::required_integer(names.rank, 0, size - 1);
  auto local_size = environment::required_integer(names.local_size, 1, size);
  RankInfo info{.rank = static_cast<int>(rank),
                .size = static_cast<int>(size),
                .attempt = "0",
                .rendezvous = {}};
  if (size == 1) return info;
  if (local_size < size) {
    info.rendezvous = {.kind = RankRendezvous::Kind::mpi, .address = {}, .host = {}, .port = 0};
  } else {
    info.rendezvous = {.kind = RankRendezvous::Kind::served_store,
                       .address = one_host_address(run()),
                       .host = "127.0.0.1",
                       .port = 0};
  }
  return info;
}

}  // namespace

Ancestor nearest_ancestor(std::string_view program) {
  const int parent = ::getppid();
  for (int pid = parent; pid > 1;) {
    const auto stat = sys::read_process_stat(pid).value_or(sys::ProcessStat());
    if (stat.name == program) return {pid, stat.start_time};
    pid = stat.parent;
  }
  return {parent, sys::read_process_stat(parent).value_or(sys::ProcessStat()).start_time};
}

std::optional<RankInfo> detect_mpirun() {
  if (is_set(open_mpi)) return read(open_mpi, run_of_open_mpi);
  if (is_set(hydra)) return read(hydra, run_of_hydra);
  return std::nullopt;
}

}  // namespace lockstep::rank_env
