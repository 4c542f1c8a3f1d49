#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include "support/processes.h"
#include "support/sanitizers.h"

namespace lockstep::sys {
namespace {

TEST(QuietNumber, IsBeyondWhatScriptsUseAndClosedOnExec) {
  const FileDescriptor file(::open("/dev/null", O_RDONLY));
  const FileDescriptor copy = with_high_number(file);
  EXPECT_GE(copy.get(), 100);
  EXPECT_EQ(::fcntl(copy.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_GT(with_high_number(file).get(), copy.get());
}

TEST(QuietNumber, IsTheNextBestWhereTheLimitIsLow) {
  if (test::under_undefined_behavior_sanitizer)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer itself needs descriptors";
  test::expect_ranks(1, [](int) {
    const FileDescriptor file(::open("/dev/null", O_RDONLY));
    const rlimit low{48, 48};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const FileDescriptor copy = with_high_number(file);
    EXPECT_GE(copy.get(), 20);
    const rlimit none{3, 48};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_THROW((void)with_high_number(file), SystemError);
  });
}

}  // namespace
}  // namespace lockstep::sys
