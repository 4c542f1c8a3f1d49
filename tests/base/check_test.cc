#include "base/check.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Check, LetsGoodArgumentsPass) {
  EXPECT_NO_THROW(check(true, "never {}", 1));
  EXPECT_NO_THROW(check_input(true, "never"));
}

TEST(Check, ThrowsWhatWasExpectedAndFound) {
  int root = 4;
  try {
    check(root < 3, "broadcast: root must be 0..{}, found {}", 2, root);
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "broadcast: root must be 0..2, found 4");
  }
}

TEST(Check, InputFromOutsideIsBadInput) {
  std::string file = "a.bin";
  EXPECT_THROW(check_input(false, "{}: expected {} bytes", file, 4), BadInput);
}

}  // namespace
}  // namespace lockstep
