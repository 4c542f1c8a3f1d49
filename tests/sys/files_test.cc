#include "sys/files.h"
#include "support/messages.h"

#include "support/alarm_timer.h"
#include "support/flush_hook.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(Files, ReadGivesEveryByte) {
  TemporaryFolder folder;
  for (std::size_t size : {0, 1, 4095, 4096, 4097, 1'000'003}) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 31);
    std::ofstream(folder / "a", std::ios::binary) << content;
    EXPECT_EQ(read_file(folder / "a"), content) << size;
  }
}

TEST(Files, AQuestionWithoutAnAnswerIsASystemError) {
  TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  std::ofstream(folder / "file") << "x";
  EXPECT_FALSE(sys::exists(folder / "none"));
  EXPECT_FALSE(sys::exists(folder / "file/none"));
  EXPECT_FALSE(sys::is_folder(folder / "none"));
  EXPECT_FALSE(sys::is_folder(folder / "file"));
  EXPECT_TRUE(sys::is_folder(folder.path()));
  EXPECT_EQ(sys::entries_in(folder.path()),
            (std::vector<fs::path>{folder / "file", folder / "loop"}));
  const std::string loop = (folder / "loop").string(), why = ": Too many levels of symbolic links";
  EXPECT_EQ(test::message_of<SystemError>([&] { (void)sys::exists(loop); }),
            "looking at " + loop + why);
  EXPECT_EQ(test::message_of<SystemError>([&] { (void)sys::is_folder(loop); }),
            "looking at " + loop + why);
  EXPECT_EQ(test::message_of<SystemError>([&] { (void)sys::entries_in(loop); }),
            "listing " + loop + why);
  EXPECT_EQ(test::message_of<SystemError>([&] { (void)sys::entries_in(folder / "file"); }),
            "listing " + (folder / "file").string() + ": Not a directory");
  sys::remove_all(folder / "none");
  sys::remove_all(folder / "loop");
  EXPECT_EQ(sys::entries_in(folder.path()).size(), 1u);
  EXPECT_TRUE(sys::exists(own_program()));
}

TEST(AtomicFile, WhatWasWrittenCanBeWrittenOver) {
  TemporaryFolder folder;
  AtomicFile file(folder / "a");
  const std::string over = "XY";
  file.write("abcdef");
  file.write_at(1, std::as_bytes(std::span(over)));
  file.write("gh");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "aXYdefgh");
  EXPECT_THROW(file.write_at(0, std::as_bytes(std::span(over))), InvalidArgument);
}

TEST(Files, ReadWorksWhereTheSizeIsUnknown) {
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);
}

TEST(Files, ReadNamesWhatIsMissing) {
  TemporaryFolder folder;
  try {
    (void)read_file(folder / "missing");
    FAIL() << "no exception";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_EQ(error.what(),
              "opening " + (folder / "missing").string() + ": No such file or directory");
  }
  EXPECT_THROW((void)read_file(folder.path()), SystemError);
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.write("first ");
  file.write("second");
  EXPECT_FALSE(fs::exists(folder / "a"));
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "first second");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
  EXPECT_THROW(file.write("third"), InvalidArgument);
}

TEST(AtomicFile, LeavesTheOldFileWhenNotCommitted) {
  TemporaryFolder folder;
  AtomicFile::write(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
  AtomicFile::write(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST(AtomicFile, ForNowIsWholeToo) {
  TemporaryFolder folder;
  AtomicFile::write_for_now(folder / "a", "old");
  AtomicFile::write_for_now(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_THROW(AtomicFile::write_for_now(folder / "none/a", "new"), SystemError);
  fs::create_directory(folder / "b");
  EXPECT_THROW(AtomicFile::write_for_now(folder / "b", "new"), BadInput);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"a", "b"}));
}

TEST(AtomicFile, HasTheUsualMode) {
  TemporaryFolder folder;
  mode_t old = ::umask(027);
  AtomicFile::write(folder / "a", "");
  ::umask(old);
  EXPECT_EQ(fs::status(folder / "a").permissions(), static_cast<fs::perms>(0640));
}

TEST(AtomicFile, ReplacesNothingButAFile) {
  TemporaryFolder folder;
  const fs::path pipe = folder / "pipe", link = folder / "link", inner = folder / "folder";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  fs::create_directory(inner);
  const auto refusal = [](const fs::path& path) {
    EXPECT_THROW(AtomicFile::write_for_now(path, "new"), BadInput);
    return test::message_of<BadInput>([&] { AtomicFile::write(path, "new"); });
  };
  const std::string expected = ": expected a file or nothing, found ";
  EXPECT_EQ(refusal(pipe), "writing " + pipe.string() + expected + "a named pipe");
  EXPECT_EQ(refusal(link), "writing " + link.string() + expected + "a named pipe");
  EXPECT_EQ(refusal(inner), "writing " + inner.string() + expected + "a folder");
  EXPECT_EQ(refusal("/dev/null"), "writing /dev/null" + expected + "a device");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"pipe", "link", "folder"}));
}

TEST(AtomicFile, WritesTheFileThatALinkNames) {
  TemporaryFolder folder;
  fs::create_directory(folder / "inner");
  fs::create_symlink("inner/file", folder / "second");
  fs::create_symlink("second", folder / "first");
  for (const char* text : {"new", "newer"}) {  // the link is broken at first
    AtomicFile::write(folder / "first", text);
    EXPECT_EQ(read_file(folder / "inner/file"), text);
  }
  AtomicFile::write_for_now(folder / "first", "newest");
  EXPECT_EQ(read_file(folder / "inner/file"), "newest");
  EXPECT_TRUE(fs::is_symlink(folder / "first"));
  EXPECT_TRUE(fs::is_symlink(folder / "second"));
  EXPECT_EQ(names_in(folder / "inner"), std::set<std::string>{"file"});
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW(AtomicFile::write(folder / "loop", "new"), SystemError);
}

TEST(AtomicFile, NamesTheFolderThatIsMissing) {
  TemporaryFolder folder;
  EXPECT_THROW(AtomicFile(folder / "missing/a"), SystemError);
}

TEST(AtomicFile, ALimitOnFileSizesLeavesTheOldFile) {
  TemporaryFolder folder;
  AtomicFile::write(folder / "a", "old");
  test::expect_ranks(1, [&](int) {
    rlimit limit{100'000, 100'000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THROW(AtomicFile::write(folder / "a", std::string(200'000, 'x')), SystemError);
  });
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
}

// Mounts a small filesystem that only this process can access. Returns false if mounting is not
// permitted.
bool mount_small_filesystem(const fs::path& point) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", point.c_str(), "tmpfs", 0, "size=256k") == 0;
}

TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  TemporaryFolder folder;
  constexpr int not_allowed = 77;
  auto results = test::run_ranks(1, [&](int) {
    if (!mount_small_filesystem(folder.path())) ::_exit(not_allowed);
    AtomicFile::write(folder / "a", "old");
    try {
      AtomicFile::write(folder / "a", std::string(1'000'000, 'x'));
      ADD_FAILURE() << "the disk was not full";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.error_number(), ENOSPC);
    }
    EXPECT_EQ(read_file(folder / "a"), "old");
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
  });
  if (results[0].exit_code == not_allowed)
    GTEST_SKIP() << "this process may not mount a small filesystem";
  EXPECT_TRUE(results[0].ok()) << results[0];
}

TEST(AtomicFile, AKilledWriterLeavesTheOldFile) {
  TemporaryFolder folder;
  AtomicFile::write(folder / "a", "old");
  auto results = test::run_ranks(1, [&](int) {
    AtomicFile file(folder / "a");
    file.write("half");
    ::raise(SIGKILL);
  });
  EXPECT_EQ(results[0].signal, SIGKILL);
  EXPECT_EQ(read_file(folder / "a"), "old");
}

TEST(AtomicFile, AReaderNeverSeesHalf) {
  TemporaryFolder folder;
  AtomicFile::write(folder / "a", std::string(50'000, 'a'));
  test::expect_ranks(3, [&](int rank) {
    for (int i = 0; i < 40; ++i) {
      if (rank == 0) {
        AtomicFile::write(folder / "a", std::string(50'000 + i, static_cast<char>('a' + i % 26)));
        continue;
      }
      std::string seen = read_file(folder / "a");
      EXPECT_GE(seen.size(), 50'000u);
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [&](char c) { return c == seen.front(); }));
    }
  });
}

TEST(Files, RenameReplacesAFileAndAnEmptyFolder) {
  TemporaryFolder folder;
  AtomicFile::write(folder / "a", "a");
  AtomicFile::write(folder / "b", "b");
  rename_durably(folder / "a", folder / "b");
  EXPECT_EQ(read_file(folder / "b"), "a");
  make_directories(folder / "from/inner");
  make_directories(folder / "to");
  rename_durably(folder / "from", folder / "to");
  EXPECT_TRUE(fs::exists(folder / "to/inner"));
  EXPECT_THROW(rename_durably(folder / "missing", folder / "c"), SystemError);
}

TEST(Files, MakeDirectoriesIsContentWithWhatIsThere) {
  TemporaryFolder folder;
  make_directories(folder / "a/b/c");
  make_directories(folder / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  AtomicFile::write(folder / "file", "");
  EXPECT_THROW(make_directories(folder / "file/d"), SystemError);
}

// A power failure must not remove the folder that contains a checkpoint.
TEST(Files, NewFoldersLastAndThoseAboveThem) {
  TemporaryFolder folder;
  const fs::path root = fs::canonical(folder.path());
  std::vector<std::string> flushed;
  const test::FlushHook hook([&](const std::string& path) {
    flushed.push_back(path);
    return 0;
  });
  make_directories(root / "a/b/c/");
  EXPECT_TRUE(fs::is_directory(root / "a/b/c"));
  EXPECT_EQ(flushed, (std::vector<std::string>{root, root / "a", root / "a/b"}));
  make_directories(root / "a/b/c");
  EXPECT_EQ(flushed.size(), 3u);
  std::ofstream(root / "file") << "x";
  EXPECT_THROW(make_directories(root / "file"), SystemError);
  EXPECT_THROW(make_directories(root / "file/b"), SystemError);
}

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

TEST(PositionedFile, ATimerDoesNotKeepItFromItsSpace) {
  test::expect_ranks(1, [](int) {
    const TemporaryFolder folder;
    const test::AlarmTimer timer;
    auto file = PositionedFile::create(folder / "file");
    file.reserve(64 << 20);
    EXPECT_EQ(fs::file_size(folder / "file"), 64U << 20);
  });
}

}  // namespace

}  // namespace lockstep::sys
