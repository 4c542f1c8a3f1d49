// A save that fails: every rank gets the same one-line error, older checkpoints are unchanged, and
// the new one leaves no files.
#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/small_disk.h"
#include "checkpoint/small_training.h"
#include "support/flush_hook.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::names_in;
using test::TemporaryFolder;
using test::Training;

const std::vector<std::string> only_the_first = {"step-00000001"};

// Writes the error of a rank into FOLDER/rankN.
void note(const fs::path& folder, int rank, const std::string& line) {
  std::ofstream(folder / ("rank" + std::to_string(rank))) << line;
}

// Returns the error line that all ranks got.
std::string common_line(const fs::path& folder, int ranks) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder / ("rank" + std::to_string(rank)));
    lines.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (const std::string& line : lines) EXPECT_EQ(line, lines.front());
  EXPECT_EQ(lines.front().find('\n'), std::string::npos) << lines.front();
  return lines.front();
}

// Rank `full` can write only 300 bytes per file; rank 0 reserves the space for all ranks.
TEST(SavingFails, OnTheRankWhoseDiskIsFull) {
  for (int full : {0, 2}) {
    TemporaryFolder out, notes;
    test::go_on(out.path(), std::nullopt, "adamw", 1, 1);
    test::run_group(BackendKind::shm, 3, [&](Group group) {
      Training training(ShardLevel::full, "adamw", group);
      training.load(out.path());
      training.step();
      std::optional<test::SmallDisk> disk;
      if (group.rank() == full) disk.emplace(300);
      note(notes.path(), group.rank(),
           test::message_of<CollectiveFailure>([&] { training.save(out.path()); }));
      group.barrier().wait();  // rank 0 has removed the partial checkpoint
      EXPECT_EQ(names_in(out.path()), only_the_first);
      group.barrier().wait();
      disk.reset();
      if (full == 0) return;
      training.save(out.path());  // succeeds once there is room
    });
    test::expect_words(common_line(notes.path(), 3),
                       {"rank " + std::to_string(full) + " on host ",
                        full == 0 ? "reserving " : "writing ", "step-00000002", "File too large"});
    if (full == 0) EXPECT_EQ(names_in(out.path()), only_the_first);
    verify(*latest_checkpoint(out.path()));
  }
}

// On a network filesystem, a client that opens an empty file may write zeros over the bytes of
// other clients.
TEST(SavingFails, SpaceIsReservedBeforeAnotherRankOpensTheFile) {
  TemporaryFolder out;
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    training.step();
    rlimit files{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
    std::optional<test::SmallDisk> disk;
    if (group.is_root()) {
      disk.emplace(300);
    } else {  // rank 1 cannot open any file: if it tried, its error would come first
      const rlimit none{.rlim_cur = 0, .rlim_max = files.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    const std::string line =
        test::message_of<CollectiveFailure>([&] { training.save(out.path()); });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
    test::expect_words(line, {"rank 0 on host ", "reserving ", "File too large"});
  });
  EXPECT_TRUE(names_in(out.path()).empty());
}

// Mounts a small filesystem in a private namespace; returns false if that is not permitted.
bool mount_small_disk(const fs::path& point) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", point.c_str(), "tmpfs", 0, "size=96k") == 0;
}

TEST(SavingFails, OnAFullDiskUntilThereIsRoomAgain) {
  TemporaryFolder out;
  constexpr int not_allowed = 77;
  auto results = test::run_ranks(1, [&](int) {
    if (!mount_small_disk(out.path())) ::_exit(not_allowed);
    test::go_on(out.path(), ShardLevel::full, "adamw", 3, 1);
    {
      std::ofstream filler(out / "filler");
      while (filler << std::string(100, 'x') << std::flush) {
      }
    }
    run_as_threads(3, [&](Group group) {
      Training training(ShardLevel::full, "adamw", group);
      training.load(out.path());
      training.step();
      test::expect_words(
          test::message_of<CollectiveFailure>([&] { (void)training.save(out.path()); }),
          {"rank 0 on host ", "step-00000002: needs ", " are free there",
           "No space left on device"});
      group.barrier().wait();
      if (group.is_root()) {
        EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"filler", "step-00000001"}));
        fs::remove(out / "filler");
      }
      group.barrier().wait();
      training.save(out.path(), {.keep = 1});
    });
    EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000002"}));
  });
  if (results[0].exit_code == not_allowed)
    GTEST_SKIP() << "this process may not mount a small filesystem";
  EXPECT_TRUE(results[0].ok()) << results[0];
}

TEST(SavingFails, WhereTheFolderCannotBeWritten) {
  TemporaryFolder folder, notes;
  const fs::path out = folder / "out";
  fs::create_directory(out);
  test::go_on(out, std::nullopt, "sgd", 1, 1);
  fs::permissions(folder.path(), fs::perms{0755});
  fs::permissions(out, fs::perms{0555});
  fs::permissions(notes.path(), fs::perms{0777});
  test::run_group(BackendKind::shm, 3, [&](Group group) {
    Training training(ShardLevel::full, "sgd", group);
    training.load(out);
    training.step();
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0) ASSERT_EQ(::seteuid(nobody), 0);  // root may write read-only files
    note(notes.path(), group.rank(),
         test::message_of<CollectiveFailure>([&] { training.save(out); }));
    test::expect_words(test::message_of<CollectiveFailure>(
                           [&] { save_model(out / "model.safetensors", training.handle); }),
                       {"rank 0 on host ", "Permission denied"});
  });
  test::expect_words(common_line(notes.path(), 3),
                     {"rank 0 on host ", (out / ".saving.lock").string(), "Permission denied"});
  EXPECT_EQ(names_in(out), only_the_first);
  fs::permissions(out, fs::perms{0755});
}

TEST(SavingFails, WhereAModelsFolderIsNotThere) {
  TemporaryFolder folder;
  std::ofstream(folder / "file");
  test::run_group(BackendKind::local, 2, [&](Group group) {
    Training training(ShardLevel::full, "sgd", group);
    for (const char* name : {"none", "file"})
      test::expect_words(
          test::message_of<CollectiveFailure>(
              [&] { save_model(folder / name / "model.safetensors", training.handle); }),
          {(folder / name).string() + ": expected a folder to save a model in, found none"});
  });
}

// The last step fails: the folder has its final name, but the parent folder cannot be flushed.
TEST(SavingFails, WhereItsNameMayNotLast) {
  TemporaryFolder folder;
  const fs::path out = fs::canonical(folder.path());
  test::go_on(out, std::nullopt, "sgd", 1, 1);
  {
    test::FlushHook hook([&](const std::string& path) { return path == out ? EIO : 0; });
    test::expect_words(test::refusal(2,
                                     [&](Group group) {
                                       Training training(std::nullopt, "sgd", group);
                                       training.steps = 2;
                                       training.save(out, {.keep = 1});
                                     }),
                       {"rank 0 on host ", "flushing " + out.string(), "Input/output error"});
    EXPECT_EQ(names_in(out), only_the_first);
  }
  test::go_on(out, std::nullopt, "sgd", 2, 1);
  EXPECT_EQ(names_in(out).size(), 2u);
}

// An old checkpoint that cannot be removed completely is no longer listed as a checkpoint.
TEST(SavingFails, ButNotWhereAnOldCheckpointCannotBeRemoved) {
  TemporaryFolder folder;
  const fs::path out = folder / "out";
  fs::create_directory(out);
  fs::permissions(folder.path(), fs::perms{0755});
  fs::permissions(out, fs::perms{0777});
  auto results = test::run_ranks(1, [&](int) {
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0) ASSERT_EQ(::seteuid(nobody), 0);
    test::go_on(out, std::nullopt, "sgd", 1, 1);
    fs::create_directory(out / "step-00000001/kept");
    std::ofstream(out / "step-00000001/kept/file") << "x";
    fs::permissions(out / "step-00000001/kept", fs::perms{0555});
    run_as_threads(2, [&](Group group) {
      Training training(std::nullopt, "sgd", group);
      training.steps = 2;
      training.save(out, {.keep = 1});
    });
    EXPECT_EQ(list_checkpoints(out), std::vector<fs::path>{out / "step-00000002"});
    EXPECT_EQ(names_in(out).size(), 2u);
    fs::permissions(out / names_in(out).front() / "kept", fs::perms{0755});
  });
  EXPECT_TRUE(results[0].ok()) << results[0];
}

// Ranks save as fast as they can, and one of them is killed at a random time.
TEST(SavingFails, WhereARankIsKilled) {
  std::mt19937 random(1);
  for (int round = 0; round < 8; ++round) {
    TemporaryFolder out;
    const int killed = round % 3;
    test::RankRendezvous place(BackendKind::shm, 3);
    test::RankProcesses ranks(3, [&](int rank) {
      Group group = place.join(rank);
      Training training(round % 2 == 0 ? test::Level(ShardLevel::full) : std::nullopt, "adamw",
                        group);
      try {
        for (;;) {
          training.step();
          training.save(out.path(), {.keep = 3});
        }
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        EXPECT_EQ(dynamic_cast<const CollectiveFailure*>(&error), nullptr) << error.what();
      }
    });
    auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (list_checkpoints(out.path()).size() < 2 && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ranks.kill(killed, SIGKILL);
    auto results = ranks.wait(std::chrono::seconds(20));
    for (int rank = 0; rank < 3; ++rank)
      if (rank != killed) EXPECT_TRUE(results[static_cast<std::size_t>(rank)].ok());
    std::vector<fs::path> left = list_checkpoints(out.path());
    ASSERT_GE(left.size(), 2u);
    if (killed != 0) EXPECT_EQ(names_in(out.path()).size(), left.size());
    for (const fs::path& folder : left) verify(folder);
    test::go_on(out.path(), ShardLevel::gradients, "adamw", 2, 1);  // removes rank 0's leftovers
    for (const std::string& name : names_in(out.path())) EXPECT_NE(name.front(), '.') << name;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
