#include "sys/mapped_file.h"
#include "support/messages.h"

#include "sys/files.h"
#include "sys/plain_file.h"

#include "support/alarm_timer.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

std::string text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  test::TemporaryFolder folder;
  for (std::size_t size : {0, 1, 4096, 10'001}) {
    std::string content(size, 'x');
    AtomicFile::write(folder / "a", content);
    EXPECT_EQ(text(MappedFile(folder / "a")), content);
  }
}

TEST(MappedFile, MovesAndOutlivesTheName) {
  test::TemporaryFolder folder;
  AtomicFile::write(folder / "a", "first");
  AtomicFile::write(folder / "b", "second");
  MappedFile file(folder / "a");
  MappedFile other(std::move(file));
  EXPECT_TRUE(file.bytes().empty());
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(text(other), "first");
  other = MappedFile(folder / "b");
  EXPECT_EQ(text(other), "second");
}

TEST(MappedFile, APrivateCopyIsWrittenInThisProcessOnly) {
  test::TemporaryFolder folder;
  AtomicFile::write(folder / "a", "first");
  AtomicFile::write(folder / "b", "");
  const MappedFile file = MappedFile::private_copy(PlainFile(folder / "a"));
  *const_cast<std::byte*>(file.bytes().data()) = std::byte{'F'};
  EXPECT_EQ(text(file), "First");
  EXPECT_EQ(read_file(folder / "a"), "first");
  EXPECT_TRUE(MappedFile::private_copy(PlainFile(folder / "b")).bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  test::TemporaryFolder folder;
  EXPECT_THROW(MappedFile(folder / "missing"), SystemError);
  EXPECT_THROW(MappedFile{folder.path()}, BadInput);
}

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

TEST(ReservedFile, ATimerDoesNotKeepItFromItsSpace) {
  test::expect_ranks(1, [](int) {
    const test::TemporaryFolder folder;
    const test::AlarmTimer timer;
    const ReservedFile file(folder.path(), 64 << 20);
    EXPECT_EQ(file.bytes(), 64U << 20);
  });
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
