#include <lockstep/comm/together.h>

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>

#include <string>

#include "sys/topology.h"

namespace lockstep {
namespace {

class Together : public testing::TestWithParam<int> {};

TEST_P(Together, GoesOnWhenAllSucceed) {
  run_as_threads(GetParam(), [](Group group) {
    int calls = 0;
    together(group, [&] { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST_P(Together, OneFailureIsEverybodysWithTheSameWords) {
  int bad = GetParam() - 1;
  run_as_threads(GetParam(), [&](Group group) {
    try {
      together(group, [&] {
        if (group.rank() == bad) throw BadInput("file x: expected 8 bytes, found 3");
      });
      ADD_FAILURE() << "went on";
    } catch (const CommonFailure& failure) {
      // The ranks that succeeded get an error that names the failed rank.
      const std::string name =
          "rank " + std::to_string(bad) + " on host " + sys::host_name() + ": ";
      EXPECT_EQ(failure.what(),
                (group.size() > 1 ? name : "") + std::string("file x: expected 8 bytes, found 3"));
      EXPECT_EQ(failure.rank(), bad);
    }
    together(group, [] {});  // the group is still usable
  });
}

TEST_P(Together, TheFirstRankSpeaksAndMayHaveNoWords) {
  run_as_threads(GetParam(), [](Group group) {
    try {
      together(group, [&] { throw std::runtime_error(std::string(group.rank(), 'x')); });
      ADD_FAILURE() << "went on";
    } catch (const CommonFailure& failure) {
      EXPECT_STREQ(failure.what(), "");
      EXPECT_EQ(failure.rank(), 0);
    }
  });
}

TEST_P(Together, ATextIsTheRoots) {
  int root = GetParam() - 1;
  run_as_threads(GetParam(), [&](Group group) {
    for (const std::string& text : {std::string(), std::string("a line\0and more", 15)})
      EXPECT_EQ(broadcast_text(group, group.is_root(root) ? text : "another", root), text);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Together, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace lockstep
