#include "store/table.h"

#include <gtest/gtest.h>

namespace lockstep::store {
namespace {

TEST(Table, FindShowsTheValueUntilItIsErased) {
  Table table;
  EXPECT_EQ(table.find("a"), nullptr);
  table.set("a", "1");
  table.set("a", "2");
  ASSERT_NE(table.find("a"), nullptr);
  EXPECT_EQ(*table.find("a"), "2");
  EXPECT_TRUE(table.erase("a"));
  EXPECT_EQ(table.find("a"), nullptr);
}

TEST(Table, MissingKeepsTheOrder) {
  Table table;
  table.set("b", "");
  std::vector<std::string> keys{"c", "b", "a"};
  EXPECT_EQ(table.missing(keys), (std::vector<std::string>{"c", "a"}));
}

TEST(Table, KeysStopAtTheEndOfThePrefix) {
  Table table;
  for (const char* key : {"a", "ab", "abc", "b", "\xff"}) table.set(key, "");
  EXPECT_EQ(table.keys("ab"), (std::vector<std::string>{"ab", "abc"}));
  EXPECT_EQ(table.keys("\xff"), (std::vector<std::string>{"\xff"}));
}

TEST(Limits, KeysHaveOneByteAtLeast) {
  EXPECT_THROW(check_key(""), BadInput);
  EXPECT_NO_THROW(check_key("k"));
  EXPECT_NO_THROW(check_key(std::string(Store::max_key_bytes, 'k')));
  EXPECT_THROW(check_key(std::string(Store::max_key_bytes + 1, 'k')), BadInput);
}

TEST(Limits, AddSaysWhatItFound) {
  EXPECT_EQ(add_to_number("key", "-1", 1), 0);
  try {
    (void)add_to_number("key", "seven", 1);
    FAIL() << "no exception";
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(),
                 "store: adding to key 'key': expected a decimal number, found 'seven'");
  }
}

TEST(Limits, AFewMissingKeysAreNamedAndManyCounted) {
  std::vector<std::string> keys{"a"};
  EXPECT_STREQ(missing_keys(keys, std::chrono::seconds(5)).what(),
               "store: key 'a' did not come within 5s");
  keys = {"a", "b", "c", "d", "e", "f", "g"};
  EXPECT_STREQ(missing_keys(keys, std::chrono::seconds(90)).what(),
               "store: keys 'a', 'b', 'c', 'd', 'e' and 2 more did not come within 1m30s");
}

Message reply(std::uint64_t id, std::int64_t number = 0, std::vector<std::string> parts = {}) {
  return {id, Code::done, number, std::move(parts)};
}

TEST(Sessions, OnlyRequestsThatWriteAreRemembered) {
  for (Code code : {Code::set, Code::add, Code::compare_set, Code::erase})
    EXPECT_TRUE(writes(code));
  for (Code code :
       {Code::try_get, Code::get, Code::wait, Code::keys, Code::on_disconnect, Code::session})
    EXPECT_FALSE(writes(code));
}

TEST(Sessions, EachSessionHasRepliesOfItsOwn) {
  Sessions sessions;
  sessions.remember("a", reply(1, 5));
  sessions.remember("b", reply(1, 6));
  ASSERT_NE(sessions.find("a", 1), nullptr);
  EXPECT_EQ(sessions.find("a", 1)->number, 5);
  EXPECT_EQ(sessions.find("b", 1)->number, 6);
  EXPECT_EQ(sessions.find("a", 2), nullptr);
  EXPECT_EQ(sessions.find("c", 1), nullptr);
}

TEST(Sessions, WhatIsRememberedIsBounded) {
  Sessions sessions;
  for (std::uint64_t id = 0; id <= most_replies; ++id) sessions.remember("old", reply(id));
  EXPECT_EQ(sessions.find("old", 0), nullptr);
  EXPECT_NE(sessions.find("old", 1), nullptr);
  for (std::size_t i = 0; i < most_sessions; ++i)
    sessions.remember("client " + std::to_string(i), reply(1));
  EXPECT_EQ(sessions.find("old", 1), nullptr) << "it was quiet longest";
  EXPECT_NE(sessions.find("client 0", 1), nullptr);
  sessions.remember("x", reply(7, 0, {std::string(most_reply_bytes + 1, 'x')}));
  EXPECT_TRUE(sessions.find("x", 7)->parts.empty());
}

}  // namespace

}  // namespace lockstep::store
