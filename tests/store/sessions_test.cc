#include "store/sessions.h"

#include <gtest/gtest.h>

namespace lockstep::store {
namespace {

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
