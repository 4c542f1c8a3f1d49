#include "comm/rendezvous/handshake.h"

#include <lockstep/base/error.h>
#include <lockstep/store/prefix_store.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/rendezvous/exchange.h"
#include "sys/topology.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

namespace lockstep::rendezvous {
namespace {

// Changes when ranks of different builds could no longer understand each other.
constexpr auto version = "2";

struct Hello {
  std::string size;
  std::string version;
  std::string engine;
  std::string host;
  std::string devices;

  [[nodiscard]] std::string text() const {
    return formatted("{}\n{}\n{}\n{}\n{}", size, version, engine, host, devices);
  }
  static Hello read(const std::string& text) {
    std::istringstream lines(text);
    Hello hello;
    for (auto* field : {&hello.size, &hello.version, &hello.engine, &hello.host, &hello.devices})
      std::getline(lines, *field);
    return hello;
  }
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> result;
  for (std::string word; words >> word;) result.push_back(word);
  return result;
}

void compare(const std::string& mine, const std::string& other, int rank, int other_rank,
             std::string_view what) {
  auto shown = [](const std::string& value) {
    return value.empty() ? std::string("nothing") : value;
  };
  check_input(mine == other, "{} must be the same on all ranks: rank {} has {}, rank {} has {}",
              what, rank, shown(mine), other_rank, shown(other));
}

// Rank 0 may hold the store: it stays until the rank that it does not agree with has seen why.
void refuse(Store& store, const rank_env::RankInfo& info, int other_rank) {
  store.set(formatted("refused/{}", info.rank), "");
  if (info.rank != 0) return;
  try {
    static_cast<void>(
        store.get(formatted("refused/{}", other_rank), Deadline::after(std::chrono::seconds(2))));
  } catch (const Error&) {
    // It will learn less; there is nothing more to do for it.
  }
}

}  // namespace

WorldInfo handshake(const std::shared_ptr<Store>& store, const rank_env::RankInfo& info,
                    std::string_view engine, std::span<const std::string> devices,
                    Deadline deadline) {
  auto attempt = formatted("lockstep/{}/", info.attempt);
  auto round = store->add(formatted("{}round/{}", attempt, info.rank), 1);
  WorldInfo world{.store = std::make_shared<PrefixStore>(formatted("{}{}/", attempt, round), store),
                  .hosts = {},
                  .devices = {},
                  .local_size = 0};
  Hello mine{std::to_string(info.size), version, std::string(engine), sys::host_of_rank(),
             join(devices, " ")};
  auto check = [&](int rank, const std::string& text) {
    auto hello = Hello::read(text);
    try {
      compare(mine.size, hello.size, info.rank, rank, "WORLD_SIZE");
      compare(mine.version, hello.version, info.rank, rank, "Lockstep's protocol version");
      compare(mine.engine, hello.engine, info.rank, rank, "the backend asked for");
    } catch (const BadInput&) {
      refuse(*world.store, info, rank);
      throw;
    }
    world.hosts.push_back(hello.host);
    world.devices.push_back(words_of(hello.devices));
  };
  static_cast<void>(exchange(
      *world.store,
      {.prefix = "hello/", .rank = info.rank, .size = info.size, .purpose = "to call init()"},
      mine.text(), deadline.left(), check));
  world.local_size = static_cast<int>(std::ranges::count(world.hosts, mine.host));
  return world;
}

}  // namespace lockstep::rendezvous
