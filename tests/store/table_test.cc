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

}  // namespace
}  // namespace lockstep::store
