#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::sys {
namespace {

TEST(Affinity, AThreadRunsOnTheCoresItIsGivenAndTellsThoseThatItStarts) {
  const auto before = allowed_cores();
  ASSERT_FALSE(before.empty());
  const std::vector<int> one{before.back()};
  std::thread([&] {
    run_on_cores(one);
    EXPECT_EQ(allowed_cores(), one);
    std::thread([&] { EXPECT_EQ(allowed_cores(), one); }).join();
  }).join();
  EXPECT_EQ(allowed_cores(), before);
}

TEST(Affinity, CoresThatAreNotThereAreRefused) {
  std::thread([] {
    EXPECT_THROW(run_on_cores(std::vector<int>{100'000}), SystemError);
    EXPECT_THROW(run_on_cores({}), SystemError);
  }).join();
}

}  // namespace
}  // namespace lockstep::sys
