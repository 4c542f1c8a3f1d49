#include "rank_env/rank_info.h"

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "rank_env/mpirun.h"
#include "rank_env/reserve.h"
#include "rank_env/slurm.h"
#include "rank_env/variables.h"

#include <array>
#include <cerrno>
#include <limits>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::rank_env {
namespace {

constexpr auto use_agent_store = "TORCHELASTIC_USE_AGENT_STORE";
constexpr auto secret_file = "LOCKSTEP_SECRET_FILE";

RankRendezvous read_rendezvous() {
  // A launcher that starts another launcher passes its variables on. TORCHELASTIC_USE_AGENT_STORE
  // shows that torchrun is the inner one, because `lockstep run` removes the variable.
  bool agent = environment::flag(use_agent_store).value_or(false);
  if (auto store = environment::text(variable::store); store && !agent) {
    return {.kind = RankRendezvous::Kind::lockstep_store,
            .address = *store,
            .host = environment::text(variable::master_address).value_or("127.0.0.1"),
            .port = 0};
  }
  constexpr auto why = "but WORLD_SIZE is more than 1";
  return {.kind = agent ? RankRendezvous::Kind::agent_store : RankRendezvous::Kind::rank_0,
          .address = {},
          .host = environment::required_text(variable::master_address, why),
          .port = static_cast<std::uint16_t>(
              environment::required_integer(variable::master_port, 1, 65535, why))};
}

// A node that joins or leaves starts a new round, but does not count as a restart.
std::int64_t number_of_attempt() {
  const bool agent = environment::flag(use_agent_store).value_or(false);
  const auto round = agent ? std::nullopt : environment::integer(variable::round, 0);
  return round.value_or(environment::integer(variable::restart_count, 0).value_or(0));
}

// Validates the local rank here, so that an invalid value is reported before it is used.
void check_local(int size) {
  auto local_size = environment::integer(variable::local_world_size, 1, size);
  static_cast<void>(environment::integer(variable::local_rank, 0, local_size.value_or(size) - 1));
}

// mpirun may itself use srun to reach other hosts, so mpirun is tested first.
RankInfo detect_others() {
  if (auto info = detect_mpirun()) return *info;
  if (auto info = detect_slurm()) return *info;
  return {};
}

}  // namespace

RankInfo detect_rank() {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (!wait_for_place())
    throw Aborted("this process was a hot spare, and its agent does not need it any more");
  if (!environment::text(variable::rank) && !environment::text(variable::world_size))
    return detect_others();
  auto size = environment::required_integer(variable::world_size, 1, most, "but RANK is");
  auto rank = environment::required_integer(variable::rank, 0, size - 1, "but WORLD_SIZE is");
  RankInfo info{.rank = static_cast<int>(rank),
                .size = static_cast<int>(size),
                .attempt = "0",
                .rendezvous = {}};
  check_local(info.size);
  info.attempt = environment::text(variable::run_id).value_or("run") + "/" +
                 std::to_string(number_of_attempt());
  if (info.size > 1) info.rendezvous = read_rendezvous();
  return info;
}

bool is_launched() {
  return is_in_reserve() || environment::text(variable::rank) ||
         environment::text(variable::world_size) || detect_mpirun() || detect_slurm();
}

std::string one_host_address(std::string_view run) {
  constexpr std::size_t most = 60;
  std::string name(run);
  if (name.size() > most) name = formatted("{:016x}", fingerprint(run));
  return formatted("unix:@lockstep-{}-{}", ::geteuid(), name);
}

std::string read_secret() {
  if (auto descriptor =
          environment::integer(variable::secret_descriptor, 0, std::numeric_limits<int>::max())) {
    std::array<char, secret_bytes> bytes{};
    auto got = ::pread(static_cast<int>(*descriptor), bytes.data(), bytes.size(), 0);
    check_input(got == static_cast<ssize_t>(bytes.size()),
                "{}: expected an open descriptor that holds {} bytes, found descriptor {} with {}",
                variable::secret_descriptor, bytes.size(), *descriptor,
                got < 0 ? "nothing to read" : std::to_string(got));
    // Later groups read the secret again, but programs that this process executes must not inherit
    // it.
    ::fcntl(static_cast<int>(*descriptor), F_SETFD, FD_CLOEXEC);
    return {bytes.begin(), bytes.end()};
  }
  if (auto file = environment::text(secret_file)) return read_secret_file(*file);
  return {};
}

}  // namespace lockstep::rank_env
