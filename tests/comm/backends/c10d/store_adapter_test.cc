// Adapters from our stores to c10d's and from c10d's to ours; applying both must give a working
// Store.
#include "comm/backends/c10d/store_adapter.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

std::vector<std::uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

TEST(StoreForC10d, PutsKeysUnderItsPrefix) {
  auto ours = std::make_shared<MemoryStore>();
  auto store = c10d_backend::as_c10d_store(ours, "lockstep/x/", std::chrono::seconds(10));
  store->set("a", bytes("one"));
  EXPECT_EQ(ours->try_get("lockstep/x/a"), "one");
  EXPECT_EQ(store->get("a"), bytes("one"));
  store->set("b", bytes("two"));
  EXPECT_EQ(store->multiGet({"b", "a"}), (std::vector{bytes("two"), bytes("one")}));
  EXPECT_TRUE(store->deleteKey("b"));
  EXPECT_TRUE(store->check({"a"}));
  EXPECT_FALSE(store->check({"a", "b"}));
  EXPECT_EQ(store->add("n", 5), 5);
  EXPECT_EQ(store->add("n", -2), 3);
  EXPECT_EQ(store->compareSet("c", bytes(""), bytes("new")), bytes("new"));
  EXPECT_EQ(store->compareSet("c", bytes("other"), bytes("newer")), bytes("new"));
  EXPECT_EQ(store->getNumKeys(), 3);
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
  EXPECT_EQ(store->clone()->get("c"), bytes("new"));
  EXPECT_THROW(store->wait({"never"}, 20ms), Timeout);
}

// Checks the same calls on every c10d store that a launcher may use.
void expect_store(Store& store) {
  EXPECT_EQ(store.try_get("a"), std::nullopt);
  store.set("a", "one");
  store.set("a", std::string("t\0o", 3));
  EXPECT_EQ(store.get("a", Deadline::after(1s)), std::string("t\0o", 3));
  EXPECT_EQ(store.add("n", 40), 40);
  EXPECT_EQ(store.add("n", 2), 42);
  EXPECT_EQ(store.compare_set("c", "wrong", "x"), "");
  EXPECT_EQ(store.try_get("c"), std::nullopt);
  EXPECT_EQ(store.compare_set("c", "", "x"), "x");
  EXPECT_EQ(store.compare_set("c", "", "y"), "x");
  EXPECT_EQ(store.compare_set("c", "x", "y"), "y");
  EXPECT_TRUE(store.erase("c"));
  EXPECT_EQ(store.try_get("c"), std::nullopt);
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    store.set("late", "here");
  });
  EXPECT_EQ(store.get("late", Deadline::after(5s)), "here");
  later.join();
  try {
    store.wait(std::vector<std::string>{"a", "never"}, Deadline::after(30ms));
    ADD_FAILURE() << "no Timeout";
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("never"), std::string::npos) << error.what();
  }
  EXPECT_THROW(store.set(std::string(Store::max_key_bytes + 1, 'k'), ""), BadInput);
}

TEST(StoreFromC10d, IsAStoreOverAHashStore) {
  auto store = c10d_backend::as_store(c10::make_intrusive<c10d::HashStore>());
  expect_store(*store);
}

TEST(StoreFromC10d, IsAStoreOverATcpStore) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto tcp = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  auto store = c10d_backend::as_store(tcp);
  expect_store(*store);
  store->set("list/b", "");
  store->set("list/a", "");
  EXPECT_EQ(store->keys("list/"), (std::vector<std::string>{"list/a", "list/b"}));
}

TEST(StoreFromC10d, IsAStoreOverOurs) {
  auto ours = std::make_shared<MemoryStore>();
  expect_store(
      *c10d_backend::as_store(c10d_backend::as_c10d_store(ours, "x/", std::chrono::seconds(10))));
  EXPECT_EQ(ours->try_get("x/n"), "42");
}

}  // namespace
