#include <lockstep/comm/run_on_all_or_fail.h>

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>

#include <string>

#include "sys/topology.h"

namespace lockstep {
namespace {

class RunOnAllOrFail : public testing::TestWithParam<int> {};

TEST_P(RunOnAllOrFail, GoesOnWhenAllSucceed) {
  run_as_threads(GetParam(), [](Group group) {
    int calls = 0;
    run_on_all_or_fail(group, [&] { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST_P(RunOnAllOrFail, OneFailureIsEverybodysWithTheSameWords) {
  int bad = GetParam() - 1;
  run_as_threads(GetParam(), [&](Group group) {
    try {
      run_on_all_or_fail(group, [&] {
        if (group.rank() == bad) throw BadInput("file x: expected 8 bytes, found 3");
      });
      ADD_FAILURE() << "went on";
    } catch (const CollectiveFailure& failure) {
      // The ranks that succeeded get an error that names the failed rank.
      const std::string name =
          "rank " + std::to_string(bad) + " on host " + sys::host_name() + ": ";
      EXPECT_EQ(failure.what(),
                (group.size() > 1 ? name : "") + std::string("file x: expected 8 bytes, found 3"));
      EXPECT_EQ(failure.rank(), bad);
    }
    run_on_all_or_fail(group, [] {});  // the group is still usable
  });
}

TEST_P(RunOnAllOrFail, TheFirstRankSpeaksAndMayHaveNoWords) {
  run_as_threads(GetParam(), [](Group group) {
    try {
      run_on_all_or_fail(group, [&] { throw std::runtime_error(std::string(group.rank(), 'x')); });
      ADD_FAILURE() << "went on";
    } catch (const CollectiveFailure& failure) {
      EXPECT_STREQ(failure.what(), "");
      EXPECT_EQ(failure.rank(), 0);
    }
  });
}

TEST_P(RunOnAllOrFail, ATextIsTheRoots) {
  int root = GetParam() - 1;
  run_as_threads(GetParam(), [&](Group group) {
    for (const std::string& text : {std::string(), std::string("a line\0and more", 15)})
      EXPECT_EQ(broadcast_text(group, group.is_root(root) ? text : "another", root), text);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RunOnAllOrFail, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace lockstep
