#include <lockstep/comm/init.h>

#include <lockstep/base/check.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/log.h>
#include <lockstep/base/text.h>

#include "comm/backends.h"
#include "comm/joining/meeting.h"
#include "comm/joining/place.h"
#include "comm/joining/roll_call.h"
#include "sys/heap.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

std::string asked_backend(const InitOptions& options) {
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
      if (deadline.passed() || place.rendezvous->kind != joining::Rendezvous::Kind::rank_0 ||
          place.rank == 0)
        throw;
    }
  }
}

}  // namespace

Group init(InitOptions options) {
  check_options(options);
  sys::keep_freed_memory();
  auto place = joining::read_place();
  auto asked = asked_backend(options);
  if (place.size == 1) {
    share_cores(1);
    return {nullptr, "world", options.timeout};
  }
  auto deadline = Deadline::after(options.join_timeout);
  auto company = meet(place, asked, deadline);
  auto name = !asked.empty()          ? asked
              : company.is_one_host() ? std::string("shm")
                                      : std::string("gloo");
  check_input(name != "shm" || company.is_one_host(),
              "the backend shm needs all ranks on one host; rank {} shares its own with {} of {}",
              place.rank, company.local_size - 1, place.size - 1);
  share_cores(company.local_size);
  log::set_prefix(formatted("rank {}", place.rank));
  BackendOptions backend{
      .timeout = options.timeout,
      .join_timeout = std::max<Duration>(deadline.left(), std::chrono::seconds(1)),
      .arena_bytes = options.arena_bytes};
  if (!company.is_one_host()) backend.address = joining::address_towards(place.rendezvous->host);
  return {make_backend(name, company.store, place.rank, place.size, backend), "world",
          options.timeout};
}

}  // namespace lockstep
