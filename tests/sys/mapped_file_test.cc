#include "sys/mapped_file.h"

#include "sys/files.h"
#include "sys/plain_file.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::sys
