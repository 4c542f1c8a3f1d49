#include "rank_env/rank_info.h"

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "rank_env/variables.h"
#include "sys/file_descriptor.h"
#include "sys/process_info.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
  if (!wait_for_assignment())
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
  return is_hot_spare() || environment::text(variable::rank) ||
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

namespace {

using environment::required_integer;

// Higher numbers are reserved by Slurm for batch scripts, interactive shells and bookkeeping.
constexpr std::int64_t most_steps = 0xfffffff0 - 1;
constexpr std::size_t most_hosts_bytes = 1 << 20;

struct Step {
  std::int64_t job = 0;
  std::int64_t step = 0;
};

std::optional<Step> read_step() {
  auto job = environment::integer("SLURM_JOB_ID", 0);
  auto step = environment::integer("SLURM_STEP_ID", 0);
  if (!job || !step || *step > most_steps) return std::nullopt;
  return Step{*job, *step};
}

RankRendezvous on_one_host(const Step& step) {
  return {.kind = RankRendezvous::Kind::served_store,
          .address = one_host_address(formatted("slurm-{}.{}", step.job, step.step)),
          .host = "127.0.0.1",
          .port = 0};
}

RankRendezvous on_several_hosts(const Step& step) {
  auto host = first_host(environment::required_text("SLURM_STEP_NODELIST"));
  auto reserved = first_port(environment::text("SLURM_STEP_RESV_PORTS").value_or(""));
  auto port = reserved.value_or(
      port_of_step(static_cast<std::uint64_t>(step.job), static_cast<std::uint64_t>(step.step)));
  return {.kind = RankRendezvous::Kind::served_store,
          .address = formatted("tcp://{}:{}", host, port),
          .host = host,
          .port = port};
}

}  // namespace

std::optional<RankInfo> detect_slurm() {
  auto step = read_step();
  if (!step) return std::nullopt;
  constexpr auto why = "but SLURM_STEP_ID is";
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  auto size = required_integer("SLURM_STEP_NUM_TASKS", 1, most, why);
  auto rank = required_integer("SLURM_PROCID", 0, size - 1, why);
  auto hosts = required_integer("SLURM_STEP_NUM_NODES", 1, size, why);
  RankInfo info{.rank = static_cast<int>(rank),
                .size = static_cast<int>(size),
                .attempt = formatted("slurm-{}.{}/{}", step->job, step->step,
                                     environment::integer("SLURM_RESTART_COUNT", 0).value_or(0)),
                .rendezvous = {}};
  if (size > 1) info.rendezvous = hosts == 1 ? on_one_host(*step) : on_several_hosts(*step);
  return info;
}

std::string first_host(std::string_view hosts) {
  check_input(hosts.size() <= most_hosts_bytes,
              "SLURM_STEP_NODELIST: expected at most {}, found {}", format_bytes(most_hosts_bytes),
              format_bytes(static_cast<std::int64_t>(hosts.size())));
  std::string host;
  bool in_brackets = false, first_number_read = false;
  for (char letter : hosts) {
    if (letter == ',' && !in_brackets) break;
    if (letter == '[' && !in_brackets) {
      in_brackets = true;
      first_number_read = false;
    } else if (letter == ']' && in_brackets) {
      in_brackets = false;
    } else if (in_brackets && (letter == '-' || letter == ',')) {
      first_number_read = true;
    } else if (!in_brackets || !first_number_read) {
      host += letter;
    }
  }
  check_input(!host.empty() && !in_brackets && host.find_first_of("[] ") == std::string::npos,
              "SLURM_STEP_NODELIST: expected a list such as node[01-04], found '{}'",
              hosts.substr(0, 100));
  return host;
}

std::optional<std::uint16_t> first_port(std::string_view ports) {
  auto port = parse_integer(ports.substr(0, ports.find_first_of("-,")));
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return static_cast<std::uint16_t>(*port);
}

std::uint16_t port_of_step(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t first = 15'000, count = 15'000;
  return static_cast<std::uint16_t>(first + fingerprint_of(job, step) % count);
}

namespace {

// The environment variables of one kind of mpirun.
struct Names {
  const char* rank;
  const char* size;
  const char* local_size;
};

constexpr Names open_mpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
// Slurm's own PMI sets the first two but not the third; detect_slurm() handles srun.
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

namespace {

constexpr const char* name_of_hot_spare = "hot-spare";
constexpr std::size_t name_bytes = 16;  // the kernel's limit for thread names
constexpr std::string_view end_of_assignment("\0\0", 2);

// Reads the agent's message: "NAME=value" strings, each terminated by a zero byte, and a final zero
// byte. Returns an empty string if the message is incomplete.
std::string read_assignment(int from) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (!text.ends_with(end_of_assignment)) {
    const ssize_t size = ::read(from, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return {};
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

void set_variables(std::string_view text) {
  while (text.size() > 1) {
    const std::string_view entry = text.substr(0, text.find('\0'));
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      ::setenv(std::string(entry.substr(0, equals)).c_str(),
               std::string(entry.substr(equals + 1)).c_str(), 1);
    text.remove_prefix(entry.size() + 1);
  }
}

// Only rank 0 reads the agent's standard input.
void leave_standard_input() {
  const sys::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing) ::dup2(nothing.get(), STDIN_FILENO);
}

}  // namespace

bool is_hot_spare() { return environment::text(variable::hot_spare_descriptor).has_value(); }

bool wait_for_assignment() {
  const auto number =
      environment::integer(variable::hot_spare_descriptor, 0, std::numeric_limits<int>::max());
  if (!number) return true;
  const sys::FileDescriptor socket(static_cast<int>(*number));
  ::unsetenv(variable::hot_spare_descriptor);
  std::array<char, name_bytes> name{};
  ::prctl(PR_GET_NAME, name.data());
  const char ready = 1;
  if (::send(socket.get(), &ready, 1, MSG_NOSIGNAL) != 1) return false;
  ::prctl(PR_SET_NAME, name_of_hot_spare);
  const std::string place = read_assignment(socket.get());
  ::prctl(PR_SET_NAME, name.data());
  if (place.empty()) return false;
  set_variables(place);
  if (environment::text(variable::rank) != "0") leave_standard_input();
  return true;
}

}  // namespace lockstep::rank_env
