#include "comm/rendezvous/meeting.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "sys/topology.h"

namespace lockstep::rendezvous {
namespace {

std::string key_of(const AllgatherOptions& between, int rank) {
  return formatted("{}{}", between.prefix, rank);
}

std::string key_of_all(const std::string& key) { return key + "/all"; }

bool is_there(Store& store, const AllgatherOptions& between, int rank) {
  return store.try_get(key_of(between, rank)).has_value();
}

std::vector<int> missing_ranks(Store& store, const AllgatherOptions& between) {
  std::vector<int> missing;
  for (int rank = 0; rank < between.size; ++rank)
    if (!is_there(store, between, rank)) missing.push_back(rank);
  return missing;
}

[[noreturn]] void throw_missing(Store& store, const AllgatherOptions& between, Duration timeout) {
  throw Timeout(formatted("rank {} of {} timed out after {} waiting for {} {}", between.rank,
                          between.size, format_duration(timeout),
                          rank_list(missing_ranks(store, between)), between.purpose));
}

// Logs the missing ranks, if no lower rank is present. All ranks call this at about the same time,
// so only the lowest rank that is present logs.
void remind(Store& store, const AllgatherOptions& between, Duration left) {
  for (int lower = 0; lower < between.rank; ++lower)
    if (is_there(store, between, lower)) return;
  const std::vector<int> missing = missing_ranks(store, between);
  if (missing.empty()) return;
  log::warning("rank {} of {} has waited {} for {} {}, and gives up in {}", between.rank,
               between.size, format_duration(between.remind_after), rank_list(missing),
               between.purpose, format_duration(std::chrono::ceil<std::chrono::seconds>(left)));
}

// `reminder`: the time to log the missing ranks; never() if that is done or there is no deadline.
std::string text_of(Store& store, const AllgatherOptions& between, int rank, Deadline deadline,
                    Deadline& reminder) {
  try {
    return store.get(key_of(between, rank), deadline.or_sooner(reminder));
  } catch (const Timeout&) {
    if (deadline.passed() || reminder.is_never()) throw;
  }
  reminder = Deadline::never();
  remind(store, between, deadline.left());
  return store.get(key_of(between, rank), deadline);
}

}  // namespace

std::vector<std::string> allgather_text(
    Store& store, const AllgatherOptions& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check) {
  const auto deadline = Deadline::after(timeout);
  store.set(key_of(between, between.rank), mine);
  auto reminder = deadline.is_never() ? deadline : Deadline::after(between.remind_after);
  std::vector<std::string> texts;
  for (int rank = 0; rank < between.size; ++rank) {
    try {
      texts.push_back(text_of(store, between, rank, deadline, reminder));
    } catch (const Timeout&) {
      throw_missing(store, between, timeout);
    }
    if (check) check(rank, texts.back());
  }
  return texts;
}

bool barrier_arrive(Store& store, const std::string& key, int count) {
  if (store.add(key, 1) != count) return false;
  store.set(key_of_all(key), "1");
  return true;
}

bool barrier_done(Store& store, const std::string& key) {
  return store.try_get(key_of_all(key)).has_value();
}

void barrier_wait(Store& store, const std::string& key, Deadline deadline) {
  static_cast<void>(store.get(key_of_all(key), deadline));
}

namespace {

// Increment if ranks of older builds could not communicate with ranks of this build.
constexpr auto version = "2";

struct HandshakeMessage {
  std::string size;
  std::string version;
  std::string backend;
  std::string host;
  std::string devices;

  [[nodiscard]] std::string text() const {
    return formatted("{}\n{}\n{}\n{}\n{}", size, version, backend, host, devices);
  }
  static HandshakeMessage read(const std::string& text) {
    std::istringstream lines(text);
    HandshakeMessage message;
    for (auto* field :
         {&message.size, &message.version, &message.backend, &message.host, &message.devices})
      std::getline(lines, *field);
    return message;
  }
};

void compare(const std::string& mine, const std::string& other, int rank, int other_rank,
             std::string_view what) {
  auto shown = [](const std::string& value) {
    return value.empty() ? std::string("nothing") : value;
  };
  check_input(mine == other, "{} must be the same on all ranks: rank {} has {}, rank {} has {}",
              what, rank, shown(mine), other_rank, shown(other));
}

// Rank 0 may serve the store, so it waits until the other rank has noticed the difference too.
void refuse(Store& store, const rank_env::RankInfo& info, int other_rank) {
  store.set(formatted("refused/{}", info.rank), "");
  if (info.rank != 0) return;
  try {
    static_cast<void>(
        store.get(formatted("refused/{}", other_rank), Deadline::after(std::chrono::seconds(2))));
  } catch (const Error&) {
    // The other rank may get a less specific error.
  }
}

}  // namespace

WorldInfo handshake(const std::shared_ptr<Store>& store, const rank_env::RankInfo& info,
                    std::string_view backend, std::span<const std::string> devices,
                    Deadline deadline) {
  auto attempt = formatted("lockstep/{}/", info.attempt);
  auto round = store->add(formatted("{}round/{}", attempt, info.rank), 1);
  WorldInfo world{.store = std::make_shared<PrefixStore>(formatted("{}{}/", attempt, round), store),
                  .hosts = {},
                  .devices = {},
                  .local_size = 0};
  HandshakeMessage mine{std::to_string(info.size), version, std::string(backend),
                        sys::host_of_rank(), join(devices, " ")};
  auto check = [&](int rank, const std::string& text) {
    auto message = HandshakeMessage::read(text);
    try {
      compare(mine.size, message.size, info.rank, rank, "WORLD_SIZE");
      compare(mine.version, message.version, info.rank, rank, "Lockstep's protocol version");
      compare(mine.backend, message.backend, info.rank, rank, "the backend asked for");
    } catch (const BadInput&) {
      refuse(*world.store, info, rank);
      throw;
    }
    world.hosts.push_back(message.host);
    world.devices.push_back(words_of(message.devices));
  };
  static_cast<void>(allgather_text(
      *world.store,
      {.prefix = "hello/", .rank = info.rank, .size = info.size, .purpose = "to call init()"},
      mine.text(), deadline.left(), check));
  world.local_size = static_cast<int>(std::ranges::count(world.hosts, mine.host));
  return world;
}

void MeetingStore::wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait) {
  constexpr auto one_part = std::chrono::milliseconds(200);
  for (bool may_end = true;;) {
    try {
      return wait(may_end ? deadline.or_sooner(Deadline::after(one_part)) : deadline);
    } catch (const Timeout&) {
      may_end = check_(*this);
      if (deadline.passed()) throw;
    }
  }
}

std::string MeetingStore::get(std::string_view key, Deadline deadline) {
  std::string value;
  wait_in_parts(deadline, [&](Deadline part) { value = PrefixStore::get(key, part); });
  return value;
}

void MeetingStore::wait(std::span<const std::string> keys, Deadline deadline) {
  wait_in_parts(deadline, [&](Deadline part) { PrefixStore::wait(keys, part); });
}

std::shared_ptr<Store> keep_serving(std::shared_ptr<StoreServer> server,
                                    std::shared_ptr<Store> store) {
  auto* client = store.get();
  auto both = std::make_shared<std::pair<std::shared_ptr<StoreServer>, std::shared_ptr<Store>>>(
      std::move(server), std::move(store));
  return {std::move(both), client};
}

}  // namespace lockstep::rendezvous
