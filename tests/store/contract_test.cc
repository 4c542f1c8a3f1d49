// The contract of all stores: one test suite for every implementation.
#include <lockstep/store/file_store.h>
#include <lockstep/store/memory_store.h>
#include <lockstep/store/prefix_store.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include "support/messages.h"
#include "support/soon.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::soon;

// One store that several ranks use: open() returns a handle for a rank.
class Place {
 public:
  virtual ~Place() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class MemoryPlace : public Place {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class FilePlace : public Place {
 public:
  std::shared_ptr<Store> open() override { return std::make_shared<FileStore>(folder_.path()); }

 private:
  test::TemporaryFolder folder_;
};

class TcpPlace : public Place {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<TcpStore>(
        TcpStoreOptions{.host = "127.0.0.1", .port = server_.port(), .secret = "swordfish"});
  }

 private:
  StoreServer server_{StoreServerOptions{.secret = "swordfish"}};
};

// A server with a log, and clients that would reconnect.
class LogPlace : public Place {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<TcpStore>(TcpStoreOptions{
        .host = "127.0.0.1", .port = server_.port(), .secret = "swordfish", .reconnect = 20s});
  }

 private:
  test::TemporaryFolder folder_;
  StoreServer server_{StoreServerOptions{.secret = "swordfish", .log = folder_ / "store.log"}};
};

template <typename Below>
class PrefixPlace : public Place {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<PrefixStore>("lockstep/", below_.open());
  }

 private:
  Below below_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;
};

template <typename Made>
Kind kind(const char* name) {
  return {name, [] { return std::make_unique<Made>(); }};
}

class StoreContract : public testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Store> open() { return place_->open(); }

  // Runs body(rank, store) in `count` threads, each with its own handle.
  void with_ranks(int count, const std::function<void(int, Store&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank, store = open()] { body(rank, *store); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::unique_ptr<Place> place_ = GetParam().make();
};

TEST_P(StoreContract, WhatIsSetIsThereForAll) {
  auto store = open(), other = open();
  store->set("key", "value");
  EXPECT_EQ(other->get("key", soon()), "value");
  EXPECT_EQ(other->try_get("key"), "value");
  other->set("key", "another");
  EXPECT_EQ(store->get("key", soon()), "another");
  EXPECT_EQ(store->try_get("missing"), std::nullopt);
}

TEST_P(StoreContract, KeysAndValuesAreAnyBytes) {
  auto store = open();
  std::string odd_key("a/../b\0\n %\xff", 11), odd_value("\0\1\2\xfe\xff", 5);
  store->set(odd_key, odd_value);
  EXPECT_EQ(store->get(odd_key, soon()), odd_value);
  store->set("empty", "");
  EXPECT_EQ(store->get("empty", soon()), "");
  std::string large(3'000'001, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 17);
  store->set("large", large);
  EXPECT_EQ(store->get("large", soon()), large);
}

TEST_P(StoreContract, GetWaitsForTheKey) {
  auto store = open();
  std::atomic<bool> set = false;
  std::thread setter([&, other = open()] {
    std::this_thread::sleep_for(50ms);
    set = true;
    other->set("late", "value");
  });
  EXPECT_EQ(store->get("late", soon()), "value");
  EXPECT_TRUE(set);
  setter.join();
}

TEST_P(StoreContract, WaitEndsWhenAllKeysAreThere) {
  auto store = open();
  std::vector<std::string> keys{"c", "a", "b", "a"};
  std::atomic<int> set = 0;
  std::thread setter([&, other = open()] {
    for (const char* key : {"a", "b", "c"}) {
      std::this_thread::sleep_for(10ms);
      ++set;
      other->set(key, "1");
    }
  });
  store->wait(keys, Deadline::never());
  EXPECT_EQ(set, 3);
  store->wait(keys, Deadline::after(0s));
  store->wait({}, Deadline::after(0s));
  setter.join();
}

TEST_P(StoreContract, ATimeoutNamesTheMissingKeys) {
  auto store = open();
  store->set("here", "1");
  std::vector<std::string> keys{"here", "gone", "lost"};
  EXPECT_THROW((void)store->get("gone", Deadline::after(20ms)), Timeout);
  EXPECT_THROW(store->wait(keys, Deadline::after(20ms)), Timeout);
  auto text = test::message_of<Error>([&] { store->wait(keys, Deadline::after(20ms)); });
  EXPECT_NE(text.find("gone'"), std::string::npos) << text;
  EXPECT_NE(text.find("lost'"), std::string::npos) << text;
  EXPECT_EQ(text.find("here"), std::string::npos) << text;
  EXPECT_EQ(store->get("here", soon()), "1");
}

TEST_P(StoreContract, AddCountsAcrossRanks) {
  for (int ranks : {1, 2, 3, 5}) {
    std::string key = "count" + std::to_string(ranks);
    std::vector<std::vector<std::int64_t>> sums(ranks);
    with_ranks(ranks, [&](int rank, Store& store) {
      for (int i = 0; i < 20; ++i) sums[rank].push_back(store.add(key, 1));
    });
    std::vector<std::int64_t> all;
    for (auto& mine : sums) all.insert(all.end(), mine.begin(), mine.end());
    std::sort(all.begin(), all.end());
    for (int i = 0; i < 20 * ranks; ++i) EXPECT_EQ(all[i], i + 1);
  }
}

TEST_P(StoreContract, AddWorksOnNumbersOnly) {
  auto store = open();
  store->set("number", "40");
  EXPECT_EQ(store->add("number", 2), 42);
  EXPECT_EQ(store->add("number", -50), -8);
  EXPECT_EQ(store->get("number", soon()), "-8");
  store->set("text", "forty");
  EXPECT_THROW(store->add("text", 1), BadInput);
  store->set("most", "9223372036854775807");
  EXPECT_THROW(store->add("most", 1), BadInput);
  EXPECT_EQ(store->get("most", soon()), "9223372036854775807");
}

TEST_P(StoreContract, CompareSetWritesOnlyOverWhatIsExpected) {
  auto store = open();
  EXPECT_EQ(store->compare_set("key", "something", "new"), "");
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  EXPECT_EQ(store->compare_set("key", "", "first"), "first");
  EXPECT_EQ(store->compare_set("key", "other", "second"), "first");
  EXPECT_EQ(store->compare_set("key", "first", "second"), "second");
  EXPECT_EQ(store->get("key", soon()), "second");
}

TEST_P(StoreContract, CompareSetHasOneWinner) {
  for (int ranks : {2, 3, 5}) {
    std::string key = "leader" + std::to_string(ranks);
    std::vector<std::string> seen(ranks);
    with_ranks(ranks, [&](int rank, Store& store) {
      seen[rank] = store.compare_set(key, "", std::to_string(rank));
    });
    for (const std::string& winner : seen) EXPECT_EQ(winner, seen[0]);
  }
}

TEST_P(StoreContract, CompareSetWakesWaiters) {
  auto store = open();
  std::thread setter([other = open()] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(other->compare_set("key", "", "value"), "value");
    EXPECT_EQ(other->add("count", 7), 7);
  });
  EXPECT_EQ(store->get("key", soon()), "value");
  EXPECT_EQ(store->get("count", soon()), "7");
  setter.join();
}

TEST_P(StoreContract, EraseSaysWhetherThereWasSomething) {
  auto store = open();
  EXPECT_FALSE(store->erase("key"));
  store->set("key", "value");
  EXPECT_TRUE(store->erase("key"));
  EXPECT_FALSE(store->erase("key"));
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  EXPECT_EQ(store->add("key", 1), 1);
}

TEST_P(StoreContract, KeysAreListedSortedByPrefix) {
  auto store = open();
  using Names = std::vector<std::string>;
  EXPECT_EQ(store->keys(""), Names{});
  for (const char* key : {"b/2", "a", "b/10", "b", "b/1", "c"}) store->set(key, "");
  EXPECT_EQ(store->keys("b/"), (Names{"b/1", "b/10", "b/2"}));
  EXPECT_EQ(store->keys(""), (Names{"a", "b", "b/1", "b/10", "b/2", "c"}));
  EXPECT_EQ(store->keys("d"), Names{});
}

TEST_P(StoreContract, LengthsAreBounded) {
  auto store = open();
  EXPECT_THROW(store->set("", "value"), BadInput);
  EXPECT_THROW((void)store->try_get(""), BadInput);
  std::string too_long(Store::max_key_bytes + 1, 'k');
  EXPECT_THROW(store->set(too_long, "value"), BadInput);
  EXPECT_THROW((void)store->get(too_long, soon()), BadInput);
  EXPECT_THROW(store->add(too_long, 1), BadInput);
  EXPECT_THROW(store->erase(too_long), BadInput);
  EXPECT_THROW(store->wait(std::vector{too_long}, soon()), BadInput);
  std::string longest(Store::max_key_bytes - 100, 'k');
  store->set(longest, "value");
  EXPECT_EQ(store->get(longest, soon()), "value");
  std::string too_large(Store::max_value_bytes + 1, 'v');
  EXPECT_THROW(store->set("key", too_large), BadInput);
  EXPECT_THROW(store->compare_set("key", "", too_large), BadInput);
  EXPECT_EQ(store->try_get("key"), std::nullopt);
}

TEST_P(StoreContract, RanksMeet) {
  for (int ranks : {1, 2, 3, 4, 5}) {
    std::string prefix = "meet" + std::to_string(ranks) + "/";
    with_ranks(ranks, [&](int rank, Store& store) {
      store.set(prefix + std::to_string(rank), "address of " + std::to_string(rank));
      for (int peer = 0; peer < ranks; ++peer) {
        std::string found = store.get(prefix + std::to_string(peer), soon());
        EXPECT_EQ(found, "address of " + std::to_string(peer));
      }
    });
  }
}

TEST_P(StoreContract, ThreadsShareAHandle) {
  auto store = open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::string mine = "thread" + std::to_string(i);
      std::string next = "thread" + std::to_string((i + 1) % 4);
      for (int round = 0; round < 10; ++round) {
        store->set(mine + "/" + std::to_string(round), mine);
        EXPECT_EQ(store->get(next + "/" + std::to_string(round), soon()), next);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(AllStores, StoreContract,
                         testing::Values(kind<MemoryPlace>("memory"), kind<FilePlace>("file"),
                                         kind<TcpPlace>("tcp"), kind<LogPlace>("tcp_with_log"),
                                         kind<PrefixPlace<MemoryPlace>>("prefix_of_memory"),
                                         kind<PrefixPlace<TcpPlace>>("prefix_of_tcp")),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep
