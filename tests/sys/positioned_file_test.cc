#include "sys/positioned_file.h"

#include "sys/files.h"

#include <lockstep/base/error.h>

#include "support/messages.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <string>

namespace lockstep::sys {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(PositionedFile, IsWrittenByTwoSideBySide) {
  test::TemporaryFolder folder;
  auto one = PositionedFile::create(folder / "file");
  one.reserve(10);
  auto other = PositionedFile::open_to_write(folder / "file");
  ASSERT_TRUE(other.is_open());
  other.write_at(5, bytes_of("world"));
  one.write_at(0, bytes_of("hello"));
  one.flush();
  other.flush();
  EXPECT_EQ(read_file(folder / "file"), "helloworld");
}

TEST(PositionedFile, ThatIsNotThereIsNoError) {
  test::TemporaryFolder folder;
  EXPECT_FALSE(PositionedFile::open_to_write(folder / "none").is_open());
  EXPECT_FALSE(PositionedFile::open_to_write(folder / "no/folder").is_open());
  EXPECT_THROW((void)PositionedFile::create(folder / "no/folder"), SystemError);
  (void)PositionedFile::create(folder / "twice");
  EXPECT_THROW((void)PositionedFile::create(folder / "twice"), SystemError);
}

TEST(PositionedFile, SpaceThatIsNotThereIsAnErrorAtOnce) {
  test::TemporaryFolder folder;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  auto file = PositionedFile::create(folder / "file");
  auto reserve = [&] { file.reserve(2048); };
  auto write = [&] { file.write_at(999, bytes_of("too far")); };
  test::expect_words(test::message_of<SystemError>(reserve), {"reserving 2 KiB", "file"});
  test::expect_words(test::message_of<SystemError>(write), {"writing ", "file"});
  ::setrlimit(RLIMIT_FSIZE, &before);
}

}  // namespace
}  // namespace lockstep::sys
