#include <lockstep/layout/name_pattern.h>

#include <lockstep/base/error.h>

#include "support/messages.h"

#include <gtest/gtest.h>

namespace lockstep::layout {
namespace {

TEST(NamePattern, NamesPathsPartByPart) {
  EXPECT_TRUE(names_path("blocks.*", "blocks.0"));
  EXPECT_TRUE(names_path("blocks.*.mlp", "blocks.12.mlp"));
  EXPECT_TRUE(names_path("*", "head"));
  EXPECT_TRUE(names_path("b*s.1*", "blocks.10"));
  EXPECT_TRUE(names_path("**", "a"));
  EXPECT_FALSE(names_path("blocks.*", "blocks"));
  EXPECT_FALSE(names_path("blocks.*", "blocks.0.fc"));
  EXPECT_FALSE(names_path("blocks", "blocks.0"));
  EXPECT_FALSE(names_path("", "a"));
  EXPECT_FALSE(names_path("a*b", "ab.b"));
}

TEST(NamePattern, MayNameAModuleAround) {
  EXPECT_TRUE(names_around("h.*", "h.0.fc.weight"));
  EXPECT_TRUE(names_around("h.*.fc.weight", "h.0.fc.weight"));
  EXPECT_TRUE(names_around("h", "h.0.fc.weight"));
  EXPECT_FALSE(names_around("h.*.weight", "h.0.fc.weight"));
  EXPECT_FALSE(names_around("fc", "h.0.fc.weight"));
}

TEST(NamePattern, PathsGoFromTheTensorToTheOutermostModule) {
  EXPECT_EQ(paths_of("h.0.weight"), (std::vector<std::string_view>{"h.0.weight", "h.0", "h"}));
  EXPECT_EQ(paths_of("weight"), std::vector<std::string_view>{"weight"});
  EXPECT_EQ(paths_of(""), std::vector<std::string_view>{""});
}

TEST(NamePattern, OneThatNamesNothingIsAnErrorThatHelps) {
  std::vector<std::string> names = {"h.0.weight", "h.1.weight", "head.bias"};
  std::vector<std::string> fine = {"h.*", "head", "h.1.weight"}, wrong = {"h.*", "haed"};
  check_patterns("unit pattern", fine, names);
  test::expect_words(
      test::message_of<InvalidArgument>([&] { check_patterns("unit pattern", wrong, names); }),
      {"unit pattern", "'haed'", "head"});
}

}  // namespace
}  // namespace lockstep::layout
