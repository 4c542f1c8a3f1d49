#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep {
namespace {

TEST(Error, SystemErrorEndsWithTheSystemsWords) {
  SystemError error("opening data.bin", ENOENT);
  EXPECT_STREQ(error.what(), "opening data.bin: No such file or directory");
  EXPECT_EQ(error.error_number(), ENOENT);
}

TEST(Error, OneBaseCatchesAll) {
  EXPECT_THROW(throw PeerLost("rank 3 ended"), Error);
  EXPECT_THROW(throw Timeout("10 s passed"), Error);
  EXPECT_THROW(throw SystemError("bind", EADDRINUSE), Error);
}

}  // namespace
}  // namespace lockstep
