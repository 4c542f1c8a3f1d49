#include "base/scope_exit.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep {
namespace {

TEST(ScopeExit, ActsWhenTheScopeIsLeft) {
  int acted = 0;
  {
    ScopeExit action([&] { ++acted; });
    EXPECT_EQ(acted, 0);
  }
  EXPECT_EQ(acted, 1);
  EXPECT_THROW(
      {
        ScopeExit action([&] { ++acted; });
        throw std::runtime_error("left in a hurry");
      },
      std::runtime_error);
  EXPECT_EQ(acted, 2);
}

TEST(ScopeExit, DoesNothingAfterCancel) {
  int acted = 0;
  {
    ScopeExit action([&] { ++acted; });
    action.cancel();
  }
  EXPECT_EQ(acted, 0);
}

}  // namespace
}  // namespace lockstep
