#include "comm/init/init.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/log.h"
#include "base/never_destroyed.h"
#include "base/text.h"
#include "comm/api/group_state.h"
#include "comm/backend/staged_backend.h"
#include "comm/init/backends.h"
#include "comm/init/choice.h"
#include "comm/init/run_store.h"
#include "comm/rendezvous/meeting.h"
#include "matmul/matmul.h"
#include "rank_env/rank_ends.h"
#include "rank_env/variables.h"
#include "sys/heap.h"
#include "sys/socket_address.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

std::string asked_backend(const InitOptions& options) {
  if (options.c10d) {
    check(!options.backend.empty(), "init: a c10d backend needs a name: set `backend`, too");
    return options.backend;
  }
  auto names = backend_names();
  if (options.backend.empty()) return environment::one_of("LOCKSTEP_BACKEND", names).value_or("");
  check(std::ranges::find(names, options.backend) != names.end(),
        "init: backend '{}' is not in this build; it has {}", options.backend, listed(names, ", "));
  return options.backend;
}

void check_options(const InitOptions& options) {
  check(options.timeout > Duration::zero(), "init: the timeout must be positive, found {}",
        format_duration(options.timeout));
  check(options.join_timeout > Duration::zero(),
        "init: the join timeout must be positive, found {}", format_duration(options.join_timeout));
  check(options.arena_bytes >= 0, "init: the arena's size must not be negative, found {}",
        options.arena_bytes);
}

// Threads take the value that was set last in any thread, so it also applies to autograd's threads.
void share_cores(int local_size) {
  if (environment::text("OMP_NUM_THREADS")) return;
  at::set_num_threads(std::max(1, sys::usable_cores() / local_size));
}

bool is_first_on_host(const std::vector<std::string>& hosts, int rank) {
  return std::ranges::find(hosts, hosts.at(rank)) - hosts.begin() == rank;
}

// Wraps the store of `lockstep run`, whose agents publish which ranks have ended: until all ranks
// have met, a call that waits throws PeerLost if a rank has ended. After that, a rank may end while
// others continue.
std::shared_ptr<Store> until_all_have_met(std::shared_ptr<Store> store,
                                          const rank_env::RankInfo& info,
                                          std::shared_ptr<std::atomic<bool>> all_have_met) {
  auto check = [attempt = info.attempt, rank = info.rank,
                all_have_met = std::move(all_have_met)](Store& of_run) {
    if (*all_have_met) return false;
    rank_env::check_rank_ends(of_run, attempt, rank);
    return true;
  };
  return std::make_shared<rendezvous::MeetingStore>(std::move(store), std::move(check));
}

// The store may still be served for an earlier group of this run, and end while the ranks meet for
// the next group. If so, the ranks meet again in the new store.
rendezvous::WorldInfo meet(const rank_env::RankInfo& info, std::string_view backend,
                           const Devices& devices, const StoreFilter& filter, Deadline deadline,
                           const std::shared_ptr<std::atomic<bool>>& all_have_met) {
  for (;;) {
    auto store = open_run_store(info, deadline);
    if (info.rendezvous->kind == rank_env::RankRendezvous::Kind::lockstep_store)
      store = until_all_have_met(std::move(store), info, all_have_met);
    if (filter) store = filter(std::move(store));
    try {
      return rendezvous::handshake(store, info, backend, devices.names, deadline);
    } catch (const PeerLost&) {
      if (deadline.passed() || !info.rendezvous->is_at_rank_0() || info.rank == 0) throw;
    }
  }
}

// If the rendezvous names no host, as under mpirun, uses an address of this host's name, or one of
// its interfaces if the host does not know its own name, as in containers.
std::string address_of_this_host(const rank_env::RankRendezvous& rendezvous) {
  if (!rendezvous.host.empty()) return sys::address_towards(rendezvous.host);
  try {
    return sys::address_towards(sys::host_name());
  } catch (const Error&) {
    return sys::own_addresses().front();
  }
}

// Returns the device that the options or the environment request, and the name of that setting.
std::pair<std::string, std::string_view> asked_device(const InitOptions& options) {
  if (!options.device.empty()) return {options.device, "init: the option device"};
  return {environment::text(rank_env::variable::device).value_or(""), rank_env::variable::device};
}

// If the CPU is requested, does not query GPUs: the query may fail.
Devices devices_of_rank(const InitOptions& options) {
  const auto [wanted, source] = asked_device(options);
  if (is_cpu(wanted)) return {};
  return usable_devices(visible_devices(), wanted, source);
}

bool may_share_gpus(const InitOptions& options) {
  if (options.share_gpus) return *options.share_gpus;
  return environment::flag(rank_env::variable::share_gpus).value_or(false);
}

// Returns the backend for ranks that each have one of `devices`.
std::string_view device_backend(const Devices& devices) {
  const auto names = backend_names();
  const bool has_nccl = std::ranges::find(names, "nccl") != names.end();
  return devices.type == c10::kCUDA && has_nccl ? "nccl" : "";
}

// Calls choose(). If it throws, it throws on all ranks. Rank 0 may serve the store that the other
// ranks are still reading, so it waits until they have come to this point too.
Choice choose_or_refuse(int rank, const rendezvous::WorldInfo& world, const BackendRequest& request,
                        const Devices& devices) {
  try {
    return choose(rank, {.hosts = world.hosts, .devices = world.devices}, request,
                  device_backend(devices), backend_names());
  } catch (const BadInput&) {
    const std::string refused = "refused/all";
    try {
      const bool is_last =
          rendezvous::barrier_arrive(*world.store, refused, static_cast<int>(world.hosts.size()));
      if (rank == 0 && !is_last)
        rendezvous::barrier_wait(*world.store, refused, Deadline::after(std::chrono::seconds(2)));
    } catch (const Error&) {
      // Some ranks may not come here, because their settings differ.
    }
    throw;
  }
}

// Applies the choice to this rank: sets its device. Rank 0 logs the choice if it has a device.
std::optional<c10::Device> use_choice(const Choice& choice, const Devices& devices, int rank) {
  if (!choice.device) {
    use_device(c10::kCPU);
    return std::nullopt;
  }
  const c10::Device own(devices.type, devices.indices.at(static_cast<std::size_t>(*choice.device)));
  use_device(own);
  if (rank == 0)
    log::info("init: device {}, backend {}: {}", own.str(), choice.backend, choice.reason);
  return own;
}

// LibTorch allows only one registration per operator namespace and process.
bool register_namespace() {
  try {
    static const NeverDestroyed kept(
        c10::Dispatcher::singleton().registerLibrary("lockstep", "a copy of Lockstep"));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Logs problem_of_waiting_threads() once per process. Only warns: LibTorch has already read the
// environment, so a change would have no effect.
void warn_of_waiting_threads() {
  static std::atomic<bool> was_said = false;
  double load = 0;
  if (was_said || ::getloadavg(&load, 1) != 1) return;
  const std::string problem =
      problem_of_waiting_threads(at::get_num_threads(), sys::usable_cores(), load);
  if (!problem.empty() && !was_said.exchange(true)) log::warning("{}", problem);
}

}  // namespace

void check_only_copy() {
  static const bool is_only = register_namespace();
  if (!is_only)
    throw Error(
        "two copies of Lockstep are in this process: link everything in it with liblockstep.so "
        "(CMake: lockstep::shared), or only the program with the static libraries "
        "(lockstep::static)");
}

std::string problem_of_waiting_threads(int threads, int cores, double load) {
  constexpr double busy = 1.5;  // runnable processes per core
  if (threads < 2 || load < busy * cores) return {};
  for (const char* name : {rank_env::variable::omp_wait_policy, rank_env::variable::gomp_spin_count,
                           rank_env::variable::kmp_blocktime})
    if (environment::text(name)) return {};
  return formatted(
      "init: idle threads of OpenMP spin, and this host is busy (load {:.1f}, cores: {}): set "
      "{}={} before the program starts, as `lockstep run` does",
      load, cores, rank_env::variable::gomp_spin_count, rank_env::brief_spin);
}

Group init(const InitOptions& options) { return init_at(rank_env::detect_rank(), options); }

Group init_at(const rank_env::RankInfo& info, const InitOptions& options,
              const StoreFilter& filter) {
  check_options(options);
  check_only_copy();
  sys::keep_freed_memory();
  rank_env::watch_agent();
  matmul::choose(options.onednn_matmul);
  auto asked = asked_backend(options);
  const auto devices = devices_of_rank(options);
  if (info.size == 1) {
    const bool has_device = !devices.indices.empty();
    static_cast<void>(use_choice({.device = has_device ? std::optional(0) : std::nullopt,
                                  .backend = "one",
                                  .reason = "there is one rank"},
                                 devices, info.rank));
    share_cores(1);
    warn_of_waiting_threads();
    return {nullptr, "world", options.timeout};
  }
  auto deadline = Deadline::after(options.join_timeout);
  auto all_have_met = std::make_shared<std::atomic<bool>>(false);
  // float_sums chooses between collectives, so ranks must agree on it.
  const auto compared = options.float_sums ? formatted("{} with float_sums", asked) : asked;
  auto world_info = meet(info, compared, devices, filter, deadline, all_have_met);
  bool by_mpirun = info.rendezvous->kind == rank_env::RankRendezvous::Kind::mpi;
  const auto choice = choose_or_refuse(
      info.rank, world_info,
      {.backend = asked, .shares_gpus = may_share_gpus(options), .by_mpirun = by_mpirun}, devices);
  const auto& name = choice.backend;
  check_input(name != "shm" || world_info.is_one_host(),
              "the backend shm needs all ranks on one host; the host of rank {} has {} of the {} "
              "other ranks",
              info.rank, world_info.local_size - 1, info.size - 1);
  share_cores(world_info.local_size);
  if (!environment::flag(rank_env::variable::names_lines).value_or(false))
    log::set_prefix(formatted("rank {}", info.rank));
  const auto [wanted, source] = asked_device(options);
  check_input(!is_cpu(wanted) || options.c10d || !has_streams(name),
              "{}: the backend {} needs a GPU for each rank; found '{}'", source, name, wanted);
  const auto device = use_choice(choice, devices, info.rank);
  check_input(device || !options.c10d_streams,
              "init: the option c10d_streams needs a device for each rank; rank {} is on the CPU",
              info.rank);
  if (is_first_on_host(world_info.hosts, info.rank)) warn_of_waiting_threads();
  BackendOptions backend{
      .timeout = options.timeout,
      .join_timeout = std::max<Duration>(deadline.left(), std::chrono::seconds(1)),
      .arena_bytes = options.arena_bytes,
      .arena_tensors = options.arena_tensors,
      .c10d = options.c10d,
      .c10d_streams = options.c10d_streams,
      .float_sums = options.float_sums,
      .hosts = world_info.hosts,
      .device = device};
  if (!world_info.is_one_host()) backend.address = address_of_this_host(*info.rendezvous);
  auto world = make_backend(name, world_info.store, info.rank, info.size, backend);
  *all_have_met = true;
  if (!options.c10d && !has_streams(name)) world = staged(std::move(world));
  return recorded_world(std::move(world), options.timeout);
}

}  // namespace lockstep
