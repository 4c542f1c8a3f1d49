#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "support/processes.h"

namespace lockstep::sys {
namespace {

TEST(RaisedOpenFilesLimit, HoldsForAsLongAsItLives) {
  test::expect_ranks(1, [](int) {
    const rlimit low{30, 200};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const auto most_number = [] {
      return FileDescriptor(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 150)).get();
    };
    EXPECT_EQ(most_number(), -1);
    {
      const RaisedOpenFilesLimit raised;
      EXPECT_EQ(raised.limit_before().rlim_cur, 30U);
      EXPECT_EQ(raised.most(), 200U);
      EXPECT_GE(most_number(), 150);
    }
    EXPECT_EQ(most_number(), -1);
  });
}

}  // namespace
}  // namespace lockstep::sys
