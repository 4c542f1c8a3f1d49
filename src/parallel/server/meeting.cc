#include "parallel/server/meeting.h"
#include <lockstep/parallel/server/meeting.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/init/backends.h"
#include "comm/init/run_store.h"
#include "module/checks.h"
#include "rank_env/rank_ends.h"
#include "rank_env/rank_info.h"
#include "sys/heap.h"
#include "sys/own_process.h"
#include "sys/random_bytes.h"
#include "sys/socket_address.h"
#include "sys/topology.h"

#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/store/open.h>
#include <lockstep/store/prefix_store.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::ps {
namespace {

constexpr char end_of_field = '\n';

std::string take_field(std::string_view& text) {
  auto length = text.find(end_of_field);
  check_input(length != std::string_view::npos,
              "parameter server: the store holds an announcement that is cut off");
  std::string field(text.substr(0, length));
  text.remove_prefix(length + 1);
  return field;
}

Role place_in(const rank_env::RankInfo& info, const std::vector<int>& server_ranks,
              Duration join_timeout) {
  const auto found = std::ranges::find(server_ranks, info.rank);
  Role place;
  place.meeting.servers = static_cast<int>(server_ranks.size());
  place.meeting.workers = info.size - place.meeting.servers;
  place.meeting.join_timeout = join_timeout;
  place.is_server = found != server_ranks.end();
  place.number = static_cast<int>(found - server_ranks.begin());
  if (!place.is_server)
    place.number = info.rank - static_cast<int>(std::ranges::count_if(
                                   server_ranks, [&](int server) { return server < info.rank; }));
  place.meeting.store =
      std::make_shared<PrefixStore>(formatted("lockstep/{}/ps/", info.attempt),
                                    open_run_store(info, Deadline::after(join_timeout)));
  return place;
}

void share_host(int ranks) {
  if (environment::text("OMP_NUM_THREADS")) return;
  const auto here = environment::integer("LOCAL_WORLD_SIZE").value_or(ranks);
  at::set_num_threads(std::max(1, sys::usable_cores() / static_cast<int>(here)));
}

}  // namespace

std::string Announcement::text() const {
  std::string all;
  for (const std::string& field : {options, formatted("{}", number), host, address, process})
    all += field + end_of_field;
  return all;
}

Announcement announcement_of(std::string_view text) {
  Announcement one;
  one.options = take_field(text);
  auto number = parse_integer(take_field(text));
  check_input(number.has_value(),
              "parameter server: the store holds an announcement without a "
              "number");
  one.number = static_cast<int>(*number);
  one.host = take_field(text);
  one.address = take_field(text);
  one.process = take_field(text);
  return one;
}

Announcement own_announcement(std::string options, int number) {
  return {std::move(options), number, sys::host_identity(), sys::host_name(),
          formatted("{} {}", sys::own_process(), Clock::now().time_since_epoch().count())};
}

std::string describe_options(const Meeting& meeting, const ServerOptions& options) {
  static constexpr std::string_view names[] = {"synchronous", "stale_synchronous", "asynchronous"};
  return formatted("servers {}, workers {}, {}, staleness {}", meeting.servers, meeting.workers,
                   names[static_cast<int>(options.consistency)], options.staleness);
}

std::string backend_between(const Meeting& meeting, const Announcement& a, const Announcement& b) {
  if (!meeting.backend.empty()) return meeting.backend;
  return a.host == b.host ? "shm" : "gloo";
}

std::string address_towards(const Announcement& own, const Announcement& other) {
  return own.host == other.host ? "127.0.0.1" : sys::address_towards(other.address);
}

std::string server_key(int server) { return formatted("server/{}", server); }
std::string join_key(std::int64_t join) { return formatted("join/{}", join); }
std::string pair_prefix(std::int64_t join, int server) {
  return formatted("pair/{}/{}/", join, server);
}

void check_meeting(const Meeting& meeting) {
  check(meeting.store != nullptr, "parameter server: Meeting::store must not be null");
  check(meeting.servers >= 1, "parameter server: expected at least 1 server, found {}",
        meeting.servers);
  check(meeting.workers >= 1, "parameter server: expected at least 1 worker, found {}",
        meeting.workers);
  check(meeting.timeout > Duration::zero() && meeting.join_timeout > Duration::zero(),
        "parameter server: timeouts must be positive, found {} and {}",
        format_duration(meeting.timeout), format_duration(meeting.join_timeout));
  const auto names = backend_names();
  check(meeting.backend.empty() || ((meeting.backend == "shm" || meeting.backend == "gloo") &&
                                    std::ranges::find(names, meeting.backend) != names.end()),
        "parameter server: the backend must be shm or gloo, as far as this build has them, found "
        "'{}'",
        meeting.backend);
}

Role role_of_rank(int servers, Duration join_timeout) {
  check_input(servers >= 1, "parameter server: expected at least 1 server, found {}", servers);
  std::vector<int> ranks(static_cast<std::size_t>(servers));
  std::iota(ranks.begin(), ranks.end(), 0);
  return role_of_rank(ranks, join_timeout);
}

Role role_of_rank(const std::vector<int>& server_ranks, Duration join_timeout) {
  const rank_env::RankInfo info = rank_env::detect_rank();
  rank_env::watch_agent();
  check_input(info.size > 1,
              "parameter server: a launcher must start at least 2 ranks, a server and a worker "
              "(lockstep run -n 4 PROGRAM); found 1");
  check_input(!server_ranks.empty(), "parameter server: the list of servers is empty");
  for (std::size_t i = 0; i < server_ranks.size(); ++i) {
    const int rank = server_ranks[i];
    check_input(rank >= 0 && rank < info.size,
                "parameter server: server {} of {} would be rank {}, and there are ranks 0 to {}",
                i, server_ranks.size(), rank, info.size - 1);
    check_input(std::count(server_ranks.begin(), server_ranks.end(), rank) == 1,
                "parameter server: rank {} is listed twice among the servers {}", rank,
                listed(server_ranks, ", "));
  }
  check_input(static_cast<int>(server_ranks.size()) < info.size,
              "parameter server: expected fewer servers than ranks, found {} and {}",
              server_ranks.size(), info.size);
  sys::keep_freed_memory();
  share_host(info.size);
  return place_in(info, server_ranks, join_timeout);
}

namespace {

// Returns the name of a host other than rank 0's, if there is one.
std::optional<std::string> another_host(Group& group) {
  std::optional<std::string> other;
  const std::string here = broadcast_text(group, sys::host_identity());
  for (int rank = 1; rank < group.size(); ++rank) {
    std::string name = broadcast_text(
        group, sys::host_identity() == here ? std::string() : sys::host_name(), rank);
    if (!name.empty()) other = name;
  }
  return other;
}

}  // namespace

GroupMeeting meet_in_group(Group& group, int servers) {
  const int workers = group.size() - servers;
  check(servers >= 1 && workers >= 1,
        "parameter server: expected at least one server and one worker, found {} and {}", servers,
        workers);
  const std::optional<std::string> other = another_host(group);
  GroupMeeting met;
  std::string secret;
  const std::string address = modules::text_of_root(group, [&] {
    secret = sys::hexadecimal(sys::random_bytes(32));
    const std::string host = other ? sys::address_towards(*other) : "127.0.0.1";
    met.store_server =
        std::make_unique<StoreServer>(StoreServerOptions{.host = host, .secret = secret});
    return "tcp://" + met.store_server->address();
  });
  secret = broadcast_text(group, secret);
  met.place.is_server = group.rank() >= workers;
  met.place.number = met.place.is_server ? group.rank() - workers : group.rank();
  met.place.meeting.servers = servers;
  met.place.meeting.workers = workers;
  met.place.meeting.timeout = group.timeout();
  run_on_all_or_fail(group, [&] {
    met.place.meeting.store = std::make_shared<PrefixStore>(
        "ps/", open_store(address, secret, met.place.meeting.join_timeout));
  });
  return met;
}

}  // namespace lockstep::ps
