#include "store/requests.h"

#include "store/table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

namespace lockstep::store {
namespace {

Message request(Code code, std::vector<std::string> parts, std::int64_t number = 0) {
  return {9, code, number, std::move(parts)};
}

TEST(Requests, EachIsAnsweredUnderItsNumber) {
  Table table;
  EXPECT_EQ(execute(table, request(Code::set, {"a", "1"})).reply->id, 9u);
  EXPECT_EQ(execute(table, request(Code::try_get, {"a"})).reply->parts.at(0), "1");
  EXPECT_TRUE(execute(table, request(Code::try_get, {"b"})).reply->parts.empty());
  EXPECT_EQ(execute(table, request(Code::add, {"a"}, 4)).reply->number, 5);
  EXPECT_EQ(execute(table, request(Code::compare_set, {"a", "5", "x"})).reply->parts.at(0), "x");
  EXPECT_EQ(execute(table, request(Code::keys, {""})).reply->parts.at(0), "a");
  EXPECT_EQ(execute(table, request(Code::erase, {"a"})).reply->number, 1);
}

TEST(Requests, NonsenseIsRefusedAndChangesNothing) {
  Table table;
  std::string long_key(Store::max_key_bytes + 1, 'k');
  std::vector<Message> nonsense{request(Code::set, {}),
                                request(Code::set, {"a"}),
                                request(Code::set, {"a", "b", "c"}),
                                request(Code::set, {"", "value"}),
                                request(Code::set, {long_key, ""}),
                                request(Code::add, {}),
                                request(Code::compare_set, {"a"}),
                                request(Code::erase, {}),
                                request(Code::keys, {}),
                                request(Code::get, {}),
                                request(Code::wait, {"a", ""}),
                                request(Code::done, {"a"}),
                                request(Code::late, {}),
                                request(Code::refused, {})};
  for (const Message& message : nonsense) {
    Outcome outcome = execute(table, message);
    ASSERT_TRUE(outcome.reply);
    EXPECT_EQ(outcome.reply->code, Code::refused);
    EXPECT_FALSE(outcome.reply->parts.at(0).empty());
    EXPECT_TRUE(outcome.written.empty());
  }
  EXPECT_TRUE(table.keys("").empty());
}

TEST(ParkedRequests, AWaitIsReadyWithItsLastKey) {
  Table table;
  ParkedRequests parked;
  Message wait = request(Code::wait, {"a", "b", "c"});
  ASSERT_FALSE(execute(table, wait).reply);
  parked.add({1, wait, Deadline::never()}, table);
  for (const char* key : {"c", "a"}) {
    table.set(key, "");
    EXPECT_TRUE(parked.take_ready(key, table).empty());
  }
  table.set("b", "");
  EXPECT_EQ(parked.take_ready("b", table).size(), 1u);
  EXPECT_EQ(parked.count(1), 0u);
}

TEST(ParkedRequests, AKeyThatWasErasedIsWaitedForAgain) {
  Table table;
  ParkedRequests parked;
  parked.add({1, request(Code::wait, {"a", "b"}), Deadline::never()}, table);
  table.set("a", "");
  EXPECT_TRUE(parked.take_ready("a", table).empty());
  table.erase("a");
  table.set("b", "");
  EXPECT_TRUE(parked.take_ready("b", table).empty());
  table.set("a", "");
  EXPECT_EQ(parked.take_ready("a", table).size(), 1u);
}

// As in a rendezvous of many ranks, each of which waits for the keys of all.
TEST(ParkedRequests, ManyKeysOfManyWaitersAreLookedUpOnceEach) {
  constexpr std::uint64_t waiters = 100;
  constexpr int count = 4000;
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i)
    keys.push_back("a key of usual length, number " + std::to_string(i));
  Table table;
  ParkedRequests parked;
  for (std::uint64_t waiter = 0; waiter < waiters; ++waiter)
    parked.add({waiter, request(Code::wait, keys), Deadline::never()}, table);
  const std::clock_t begin = std::clock();
  std::size_t ready = 0;
  for (const std::string& key : keys) {
    table.set(key, "");
    ready += parked.take_ready(key, table).size();
  }
  EXPECT_EQ(ready, waiters);
  EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC) << "each key looks up all others again";
}

TEST(ParkedRequests, LateOnesAndThoseOfClosedConnectionsLeave) {
  Table table;
  ParkedRequests parked;
  EXPECT_TRUE(parked.next_deadline().is_never());
  parked.add({1, request(Code::get, {"a"}), Deadline::after(Duration::zero())}, table);
  parked.add({2, request(Code::get, {"a"}), Deadline::never()}, table);
  parked.add({2, request(Code::get, {"b"}), Deadline::never()}, table);
  EXPECT_FALSE(parked.next_deadline().is_never());
  auto late = parked.take_late();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].connection, 1u);
  EXPECT_EQ(parked.count(2), 2u);
  parked.drop_connection(2);
  EXPECT_EQ(parked.count(2), 0u);
}

}  // namespace
}  // namespace lockstep::store
