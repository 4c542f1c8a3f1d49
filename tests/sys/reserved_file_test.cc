#include "sys/reserved_file.h"

#include "support/messages.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;

// Returns the resident bytes of files that are mapped into this process.
std::int64_t resident_file_bytes() {
  std::ifstream status("/proc/self/status");
  std::int64_t kilobytes = 0;
  for (std::string word; status >> word;)
    if (word == "RssFile:") status >> kilobytes;
  return kilobytes * 1024;
}

TEST(ReservedFile, IsZerosThatCanBeWrittenAndLeavesNothing) {
  test::TemporaryFolder folder;
  {
    ReservedFile file(folder.path(), 10'001);
    ASSERT_EQ(file.bytes(), 10'001u);
    EXPECT_TRUE(std::all_of(file.data(), file.data() + file.bytes(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    std::memset(file.data(), 7, file.bytes());
    EXPECT_TRUE(fs::is_empty(folder.path()));
    ReservedFile moved(std::move(file));
    EXPECT_EQ(moved.data()[10'000], std::byte{7});
    EXPECT_EQ(file.data(), nullptr);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ReservedFile, OfNoBytesStillAsksTheFolder) {
  test::TemporaryFolder folder;
  EXPECT_EQ(ReservedFile(folder.path(), 0).data(), nullptr);
  EXPECT_THROW(ReservedFile(folder / "missing", 0), SystemError);
}

TEST(ReservedFile, ADiskWithoutRoomIsAnErrorAtOnce) {
  test::TemporaryFolder folder;
  try {
    ReservedFile file(folder.path(), std::size_t{1} << 50);
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("reserving 1125899906842624 bytes in " + folder.path().string()),
              std::string::npos)
        << text;
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ReservedFile, PagesThatAreLetGoLeaveTheProcessAndKeepTheirValues) {
  test::TemporaryFolder folder;
  constexpr std::size_t bytes = 16 << 20;
  ReservedFile file(folder.path(), bytes);
  std::memset(file.data(), 3, bytes);
  std::int64_t before = resident_file_bytes();
  let_go(file.data() + 100, bytes - 200);
  EXPECT_LT(resident_file_bytes(), before - std::int64_t{15 << 20});
  fetch_ahead(file.data() + 1, bytes - 1);
  EXPECT_TRUE(std::all_of(file.data(), file.data() + bytes,
                          [](std::byte byte) { return byte == std::byte{3}; }));
}

}  // namespace
}  // namespace lockstep::sys
