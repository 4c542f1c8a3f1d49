#include "comm/backends/shm/arena_exchange.h"

#include "comm/backends/shm/ranks.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <sys/resource.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

shm::EndpointOptions hurried() {
  return {.timeout = 5s, .join_timeout = 500ms, .arena_bytes = 64 << 20};
}

// Returns the error that a rank with this (rank, size) gets when it joins.
std::string error_of_joining(const std::shared_ptr<Store>& store, int rank, int size) {
  try {
    Endpoint endpoint(store, rank, size, hurried());
    return "none";
  } catch (const BadInput& error) {
    return std::string("BadInput: ") + error.what();
  } catch (const Timeout& error) {
    return std::string("Timeout: ") + error.what();
  }
}

TEST(ArenaExchange, NamesTheRanksThatNeverCame) {
  auto store = std::make_shared<MemoryStore>();
  std::string second;
  std::thread other([&] { second = error_of_joining(store, 1, 4); });
  auto first = error_of_joining(store, 0, 4);
  other.join();
  EXPECT_EQ(first,
            "Timeout: shared memory: rank 0 of 4 timed out waiting for ranks 2, 3 to connect");
  EXPECT_EQ(second,
            "Timeout: shared memory: rank 1 of 4 timed out waiting for ranks 2, 3 to connect");
}

TEST(ArenaExchange, RefusesAnotherWorldSizeOnBothSides) {
  auto store = std::make_shared<MemoryStore>();
  std::string second;
  std::thread other([&] { second = error_of_joining(store, 1, 3); });
  auto first = error_of_joining(store, 0, 2);
  other.join();
  EXPECT_EQ(first,
            "BadInput: shared memory: the size of the world differs: rank 0 has 2, rank 1 has 3");
  EXPECT_EQ(second,
            "BadInput: shared memory: the size of the world differs: rank 1 has 3, rank 0 has 2");
}

TEST(ArenaExchange, CanBeRepeatedOnOneStore) {
  auto store = std::make_shared<MemoryStore>();
  auto rank = [&](int number) {
    for (int round = 0; round < 3; ++round) {
      Endpoint endpoint(store, number, 2, hurried());
      std::vector<float> values(10, 1);
      run(endpoint.world(), call(Collective::all_reduce, values, values));
      EXPECT_EQ(values[9], 2);
    }
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
}

TEST(ArenaExchange, MapsEveryArenaEverywhere) {
  run_as_rank_threads(4, [](Endpoint& endpoint) {
    const auto& peers = endpoint.peers();
    for (int rank = 0; rank < peers.size(); ++rank) {
      EXPECT_EQ(peers.peer(rank).pid > 0, rank != peers.rank());
      auto location = peers.locate(peers.base(rank) + 5000, 10);
      EXPECT_EQ(location.rank, rank);
      EXPECT_EQ(peers.address(location), peers.base(rank) + 5000);
    }
    int outside = 0;
    EXPECT_FALSE(peers.locate(reinterpret_cast<std::byte*>(&outside), 4).is_somewhere());
    run(endpoint.world(), barrier_call());
  });
}

// Returns the value by which the first cache of AMD's processors predicts the way of a line. Lines
// of one set that have the same value evict each other.
unsigned way_tag(const std::byte* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  unsigned tag = 0;
  for (auto [one, other] :
       {std::pair{12, 27}, {13, 26}, {14, 25}, {15, 20}, {16, 21}, {17, 22}, {18, 23}, {19, 24}})
    tag = tag << 1 | ((value >> one ^ value >> other) & 1);
  return tag;
}

TEST(ArenaExchange, MapsArenasSoThatEqualOffsetsDoNotShareAWayOfTheCache) {
  run_as_rank_threads(
      5,
      [](Endpoint& endpoint) {
        const auto& peers = endpoint.peers();
        for (std::size_t offset = 0; offset < peers.arena()->bytes(); offset += 64 << 10) {
          std::set<unsigned> tags;
          for (int rank = 0; rank < 5; ++rank) tags.insert(way_tag(peers.base(rank) + offset));
          ASSERT_EQ(tags.size(), 5U) << "offset " << offset;
        }
      },
      hurried());
}

TEST(ArenaBytes, RefusesMoreThanAFileMayHave) {
  expect_ranks(1, [](int) {
    rlimit limit{8 << 20, 8 << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (auto asked : {std::optional<std::int64_t>(), std::optional<std::int64_t>(16 << 20)}) {
      auto text = message_of<BadInput>([&] { (void)shm::arena_bytes(asked, "LOCKSTEP_ARENA", 2); });
      EXPECT_TRUE(contains(text,
                           " is larger than a file of this process may be, 8 MiB (ulimit -f); "
                           "raise that limit, or set LOCKSTEP_ARENA to less"))
          << text;
    }
  });
}

TEST(ArenaBytes, RefusesMoreThanIsFree) {
  try {
    (void)shm::arena_bytes(std::int64_t{1} << 50, "LOCKSTEP_ARENA", 2);
    FAIL() << "a petabyte was free";
  } catch (const BadInput& error) {
    EXPECT_TRUE(
        std::string(error.what()).starts_with("LOCKSTEP_ARENA: expected an arena of at most the "))
        << error.what();
    EXPECT_TRUE(std::string(error.what()).ends_with("that are free now, found 1024 TiB"))
        << error.what();
  }
  EXPECT_GE(shm::arena_bytes(std::nullopt, "", 3), std::size_t{64} << 20);
  EXPECT_EQ(shm::arena_bytes(1 << 20, "", 3), std::size_t{1} << 20);
}

}  // namespace
}  // namespace lockstep::test
