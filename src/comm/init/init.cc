#include <lockstep/comm/init.h>

#include <lockstep/base/check.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/log.h>
#include <lockstep/base/text.h>

#include "comm/backend/recorded_backend.h"
#include "comm/backend/staged_backend.h"
#include "comm/init/backends.h"
#include "comm/init/choice.h"
#include "comm/init/run_store.h"
#include "comm/rendezvous/handshake.h"
#include "launch/detection/agent_watch.h"
#include "launch/detection/place.h"
#include "sys/heap.h"
#include "sys/own_address.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

std::string asked_backend(const InitOptions& options) {
  if (options.c10d) {
    check(!options.backend.empty(), "init: an engine of c10d needs a name: set backend too");
    return options.backend;
  }
  auto names = backend_names();
  if (options.backend.empty()) return environment::one_of("LOCKSTEP_BACKEND", names).value_or("");
  check(std::ranges::find(names, options.backend) != names.end(),
        "init: backend '{}' is not in this build; it has {}", options.backend, listed(names, ", "));
  return options.backend;
}

void check_options(const InitOptions& options) {
  check(options.timeout > Duration::zero(),
        "init: the timeout must be longer than nothing, found {}",
        format_duration(options.timeout));
  check(options.join_timeout > Duration::zero(),
        "init: the join timeout must be longer than nothing, found {}",
        format_duration(options.join_timeout));
  check(options.arena_bytes >= 0, "init: the arena's size must not be negative, found {}",
        options.arena_bytes);
}

// A thread takes the number that was set last in any thread, so this holds for autograd's threads
// too.
void share_cores(int local_size) {
  if (environment::text("OMP_NUM_THREADS")) return;
  at::set_num_threads(std::max(1, sys::usable_cores() / local_size));
}

// A store that rank 0 of an earlier group of this run still holds may vanish while the ranks meet
// for the next one: then they meet again, in the new one.
joining::Company meet(const joining::Place& place, std::string_view backend, Deadline deadline) {
  for (;;) {
    auto store = joining::open_meeting(place, deadline);
    try {
      return joining::call_roll(store, place, backend, deadline);
    } catch (const PeerLost&) {
      if (deadline.passed() || !place.rendezvous->is_at_rank_0() || place.rank == 0) throw;
    }
  }
}

// Where rank 0 has no name, as under mpirun, any address by which others reach this host must do.
std::string address_of_this_host(const joining::Rendezvous& rendezvous) {
  return sys::address_towards(rendezvous.host.empty() ? sys::host_name() : rendezvous.host);
}

}  // namespace

Group init(InitOptions options) {
  check_options(options);
  sys::keep_freed_memory();
  auto place = joining::read_place();
  joining::watch_agent();
  auto asked = asked_backend(options);
  if (place.size == 1) {
    share_cores(1);
    return {nullptr, "world", options.timeout};
  }
  auto deadline = Deadline::after(options.join_timeout);
  auto company = meet(place, asked, deadline);
  bool by_mpirun = place.rendezvous->kind == joining::Rendezvous::Kind::mpi;
  auto name = choose_backend(asked, company.hosts, by_mpirun, backend_names());
  check_input(name != "shm" || company.is_one_host(),
              "the backend shm needs all ranks on one host; rank {} shares its own with {} of {}",
              place.rank, company.local_size - 1, place.size - 1);
  share_cores(company.local_size);
  log::set_prefix(formatted("rank {}", place.rank));
  BackendOptions backend{
      .timeout = options.timeout,
      .join_timeout = std::max<Duration>(deadline.left(), std::chrono::seconds(1)),
      .arena_bytes = options.arena_bytes,
      .c10d = options.c10d,
      .hosts = company.hosts};
  if (!company.is_one_host()) backend.address = address_of_this_host(*place.rendezvous);
  auto world = make_backend(name, company.store, place.rank, place.size, backend);
  if (!options.c10d) world = staged(std::move(world));
  return {flight::recorded(std::move(world)), "world", options.timeout};
}

}  // namespace lockstep
