// System calls that kernels, containers and filesystems refuse: this layer works without them, or
// reports in one line which call was refused, and leaves nothing behind.
#include "support/denied_calls.h"
#include "support/sockets.h"

#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "sys/file_lock.h"
#include "sys/files.h"
#include "sys/mapped_file.h"
#include "sys/process.h"
#include "sys/process_info.h"
#include "sys/shared_memory.h"
#include "sys/sockets.h"
#include "sys/thread.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

namespace fs = std::filesystem;
using test::DeniedCall;

// Runs `action` once per call, in a process in which that call is refused. The action may throw one
// of our errors with a one-line message; anything else is a failure.
void expect_a_way_or_a_line(const std::vector<DeniedCall>& calls,
                            const std::function<void(const fs::path& folder)>& action) {
  for (const auto& call : calls) {
    SCOPED_TRACE(call.text());
    const test::TemporaryFolder folder;
    test::expect_ranks(1, [&](int) {
      ASSERT_TRUE(test::deny(call));
      try {
        action(folder.path());
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
        EXPECT_TRUE(test::contains(text, std::generic_category().message(call.error))) << text;
      }
    });
  }
}

// Same, but the action must succeed.
void expect_a_way(const std::vector<DeniedCall>& calls,
                  const std::function<void(const fs::path& folder)>& action) {
  expect_a_way_or_a_line(calls, [&](const fs::path& folder) {
    EXPECT_EQ(test::message_of<Error>([&] { action(folder); }), "no error");
  });
}

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

const std::vector<int> refusals{ENOSYS, EPERM, EACCES, EINVAL, EOPNOTSUPP};
const std::vector<int> shortages{ENOMEM, EMFILE, ENFILE, EAGAIN, ENOSPC, EIO};

std::vector<int> all_errors() {
  auto all = refusals;
  all.insert(all.end(), shortages.begin(), shortages.end());
  return all;
}

class DeniedCalls : public test::WithDeniedCalls {};

TEST_F(DeniedCalls, FilesAppearAsAWholeOrNotAtAll) {
  const auto calls = test::denied_calls({{"fsync", SYS_fsync, 0},
                                         {"rename", SYS_rename, 0},
                                         {"getrandom", SYS_getrandom, 0},
                                         {"mkdir", SYS_mkdir, 0}},
                                        all_errors());
  expect_a_way_or_a_line(calls, [](const fs::path& folder) {
    try {
      make_directories(folder / "a" / "b");
      AtomicFile::write(folder / "a" / "b" / "file", "words");
      EXPECT_EQ(read_file(folder / "a" / "b" / "file"), "words");
    } catch (const Error&) {
      if (fs::exists(folder / "a" / "b"))
        EXPECT_LE(paths_in(folder / "a" / "b").size(), 1U) << "a temporary file is left";
      throw;
    }
  });
}

TEST_F(DeniedCalls, FileSystemsThatCannotFlushOrMakeRandomNamesWillDo) {
  const auto calls = test::denied_calls({{"fsync", SYS_fsync, 0}}, {EINVAL, EOPNOTSUPP, ENOSYS});
  auto more = test::denied_calls({{"getrandom", SYS_getrandom, 0}}, refusals);
  more.insert(more.end(), calls.begin(), calls.end());
  expect_a_way(more, [](const fs::path& folder) {
    AtomicFile::write(folder / "file", "words");
    auto file = PositionedFile::create(folder / "other");
    file.write_at(0, bytes_of("words"));
    file.flush();
    EXPECT_EQ(read_file(folder / "file"), read_file(folder / "other"));
  });
}

TEST_F(DeniedCalls, SpaceThatCannotBeReservedIsTakenWhenItIsUsed) {
  const auto calls = test::denied_calls({{"fallocate", SYS_fallocate, 0}}, refusals);
  expect_a_way(calls, [](const fs::path& folder) {
    auto file = PositionedFile::create(folder / "file");
    file.reserve(4096);
    file.write_at(4091, bytes_of("words"));
    EXPECT_EQ(fs::file_size(folder / "file"), 4096U);
    const ReservedFile reserved(folder, 8192);
    reserved.data()[8191] = std::byte{7};
    EXPECT_EQ(reserved.data()[0], std::byte{0});
  });
}

TEST_F(DeniedCalls, AFullDiskIsAnErrorWhereSpaceIsReserved) {
  const auto calls = test::denied_calls({{"fallocate", SYS_fallocate, 0}}, {ENOSPC, EDQUOT, EFBIG});
  expect_a_way_or_a_line(calls, [](const fs::path& folder) {
    EXPECT_THROW(PositionedFile::create(folder / "file").reserve(4096), SystemError);
    EXPECT_THROW(ReservedFile(folder, 8192), SystemError);
    PositionedFile::create(folder / "another").reserve(4096);
  });
}

TEST_F(DeniedCalls, AFileSystemWithoutLocksIsSaidToBeOne) {
  const auto calls =
      test::denied_calls({{"flock", SYS_flock, 0}}, {ENOSYS, EPERM, EINVAL, EOPNOTSUPP, ENOLCK});
  expect_a_way(calls, [](const fs::path& folder) {
    const FileLock lock(folder / "lock");
    EXPECT_EQ(lock.state(), FileLock::State::impossible);
    EXPECT_FALSE(lock.about().empty());
  });
}

TEST_F(DeniedCalls, SharedMemoryThatCannotBeMadeIsOneLine) {
  const auto calls = test::denied_calls({{"memfd_create", SYS_memfd_create, 0},
                                         {"ftruncate", SYS_ftruncate, 0},
                                         {"madvise", SYS_madvise, 0}},
                                        all_errors());
  expect_a_way_or_a_line(calls, [](const fs::path&) {
    const auto memory = SharedMemory::create("test", 1 << 20);
    memory.keep_from_children();
    memory.data()[5] = std::byte{1};
    static_cast<void>(memory.punch(0, 4096));
    static_cast<void>(memory.reserve(0, 4096));
  });
}

// If a process cannot be watched, it must not be left running.
TEST_F(DeniedCalls, AProgramThatCannotBeWatchedIsNotLeftRunning) {
  const auto calls = test::denied_calls({{"pidfd_open", SYS_pidfd_open, 0}}, {ENOSYS, EMFILE});
  expect_a_way_or_a_line(calls, [](const fs::path& folder) {
    const auto written = folder / "written";
    const Command command{.file = "/bin/sh",
                          .arguments = {"sh", "-c", "sleep 1; echo > " + written.string()},
                          .environment = {"PATH=/usr/bin:/bin"}};
    try {
      static_cast<void>(Process::spawn(command).wait(Deadline::after(std::chrono::seconds(10))));
    } catch (const SystemError& error) {
      ::sleep(2);
      EXPECT_FALSE(fs::exists(written)) << "it ran on";
      EXPECT_TRUE(test::contains(error.what(), "pidfd_open")) << error.what();
      throw;
    }
  });
}

// The program of a rank may have closed the descriptor and opened another file under its number.
TEST_F(DeniedCalls, AnOrdinaryFileIsNotTakenForAProcess) {
  const auto calls = test::denied_calls({{"pidfd_send_signal", SYS_pidfd_send_signal, 0}},
                                        {ENOSYS, EPERM, EINVAL});
  expect_a_way(calls, [](const fs::path& folder) {
    const auto file = PositionedFile::create(folder / "file");
    const FileDescriptor other(::dup(STDIN_FILENO));
    EXPECT_FALSE(is_pidfd(other.get()));
    EXPECT_FALSE(is_pidfd(900));
    EXPECT_TRUE(is_pidfd(open_pidfd(::getpid()).get()));
  });
}

TEST_F(DeniedCalls, ProgramsAreStartedWithoutClosingManyDescriptorsAtOnce) {
  const auto calls =
      test::denied_calls({{"close_range", SYS_close_range, 0}}, {ENOSYS, EPERM, EINVAL});
  expect_a_way(calls, [](const fs::path&) {
    const Command command{.file = "/bin/true", .arguments = {"true"}, .environment = {}};
    const auto status = Process::spawn(command).wait(Deadline::after(std::chrono::seconds(10)));
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->success());
  });
}

// poll() reports that the socket is ready, but every call is refused.
TEST_F(DeniedCalls, ATransferThatIsRefusedForEverEndsWithItsDeadline) {
  const auto calls = test::denied_calls({{"sendmsg", SYS_sendmsg, 0},
                                         {"sendto", SYS_sendto, 0},
                                         {"recvmsg", SYS_recvmsg, 0},
                                         {"recvfrom", SYS_recvfrom, 0},
                                         {"accept4", SYS_accept4, 0}},
                                        {EAGAIN});
  for (const auto& call : calls) {
    SCOPED_TRACE(call.text());
    const auto deadline = [] { return Deadline::after(std::chrono::milliseconds(300)); };
    const auto [left, right] = test::socket_pair();
    const FileDescriptor listener = listen_on(SocketAddress::tcp("127.0.0.1", 0));
    const FileDescriptor caller = connect_to(SocketAddress::local(listener.get()), deadline());
    std::string words = "words";
    const int numbers[] = {right.get()};
    send_descriptors(left.get(), bytes_of(words), numbers, deadline());
    send_all(left.get(), bytes_of(words), deadline());
    test::expect_ranks(1, [&](int) {
      ASSERT_TRUE(test::deny(call));
      const auto bytes = std::as_writable_bytes(std::span(words));
      const std::string name = call.name;
      const auto begin = Clock::now();
      const auto cpu = std::clock();
      const auto refused = [&](const auto& action) { EXPECT_THROW(action(), Timeout); };
      if (name == "sendmsg")
        refused([&] { send_descriptors(left.get(), bytes_of(words), numbers, deadline()); });
      if (name == "sendto") refused([&] { send_all(left.get(), bytes_of(words), deadline()); });
      if (name == "recvmsg")
        refused([&] { static_cast<void>(receive_descriptors(right.get(), bytes, 1, deadline())); });
      if (name == "recvfrom") refused([&] { receive_exact(right.get(), bytes, deadline()); });
      if (name == "accept4")
        refused([&] { static_cast<void>(test::accept_one(listener.get(), deadline())); });
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
      EXPECT_LT(std::clock() - cpu, CLOCKS_PER_SEC / 5) << "it spins";
    });
  }
}

// If clone3() fails with ENOSYS, glibc falls back to clone(); old containers return EPERM instead.
TEST_F(DeniedCalls, AThreadThatCannotBeStartedIsOneLine) {
  for (const auto& call :
       test::denied_calls({{"clone3", SYS_clone3, 0}}, {ENOSYS, EPERM, EAGAIN})) {
    SCOPED_TRACE(call.text());
    test::expect_ranks(1, [&](int) {
      ASSERT_TRUE(test::deny(call));
      bool has_run = false;
      const std::string text = test::message_of<SystemError>([&] {
        Thread thread("a-thread", [&] { has_run = true; });
        thread.join();
      });
      if (!has_run) {
        EXPECT_TRUE(test::contains(text, "starting the thread a-thread")) << text;
        EXPECT_TRUE(test::contains(text, std::generic_category().message(call.error))) << text;
      }
    });
  }
}

TEST_F(DeniedCalls, CoresThatCannotBeAskedForAreOneLine) {
  const auto calls = test::denied_calls({{"sched_getaffinity", SYS_sched_getaffinity, 0},
                                         {"sched_setaffinity", SYS_sched_setaffinity, 0}},
                                        all_errors());
  expect_a_way_or_a_line(calls, [](const fs::path&) { run_on_cores(allowed_cores()); });
}

}  // namespace
}  // namespace lockstep::sys
