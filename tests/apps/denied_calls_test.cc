// `lockstep run` if an old kernel or a container refuses a system call: it works without the call,
// or reports in one line which call was refused. It neither hangs nor leaves a rank behind.
#include "support/denied_calls.h"

#include "support/messages.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"
#include "sys/files.h"
#include "sys/sockets.h"

#include <lockstep/base/deadline.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using test::DeniedCall;

struct Outcome {
  bool has_ended = false;
  int code = -1;
  std::string output, error;
};

// Standard input goes to rank 0, which reads it to the end.
constexpr const char* rank_program =
    "if [ $RANK = 0 ]; then words=$(cat); else words=none; fi; echo $RANK/$WORLD_SIZE $words";

std::vector<std::string> words_of_run(const std::string& mark) {
  return {"lockstep", "run", "-n", "2", "--prefix", "none", "sh", "-c", rank_program, mark};
}

[[noreturn]] void become_run(const DeniedCall& call, const fs::path& folder,
                             const std::string& mark) {
  const auto redirect = [&](const char* name, int flags, int target) {
    ::dup2(::open((folder / name).c_str(), flags | O_CLOEXEC, 0600), target);
  };
  redirect("input", O_RDONLY, STDIN_FILENO);
  redirect("output", O_WRONLY | O_CREAT, STDOUT_FILENO);
  redirect("error", O_WRONLY | O_CREAT, STDERR_FILENO);
  auto words = words_of_run(mark);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  if (test::deny(call)) ::execv(LOCKSTEP_PROGRAM_DIR "/lockstep", arguments.data());
  ::_exit(126);
}

Outcome run_without(const DeniedCall& call, const std::string& mark) {
  const test::TemporaryFolder folder;
  sys::AtomicFile::write(folder / "input", "some words\n");
  const pid_t pid = ::fork();
  if (pid == 0) become_run(call, folder.path(), mark);
  Outcome outcome;
  int status = 0;
  for (const auto deadline = Deadline::after(std::chrono::seconds(20));
       !outcome.has_ended && !deadline.passed(); ::usleep(2000))
    outcome.has_ended = ::waitpid(pid, &status, WNOHANG) == pid;
  if (!outcome.has_ended) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.output = sys::read_file(folder / "output");
  outcome.error = sys::read_file(folder / "error");
  return outcome;
}

// Counts the processes of the run, whose command lines contain the mark.
int count_left(const std::string& mark) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code none;
    if (!fs::is_directory(entry.path() / "task", none)) continue;
    try {
      count += test::contains(sys::read_file(entry.path() / "cmdline"), mark) ? 1 : 0;
    } catch (const std::exception&) {  // the process has ended
    }
  }
  return count;
}

bool is_done(const Outcome& outcome) {
  return outcome.code == 0 && (outcome.output == "0/2 some words\n1/2 none\n" ||
                               outcome.output == "1/2 none\n0/2 some words\n");
}

void expect_one_line(const Outcome& outcome, const DeniedCall& call) {
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(outcome.code, 128) << "a signal has ended it";
  EXPECT_TRUE(outcome.error.starts_with("lockstep")) << outcome.error;
  EXPECT_EQ(std::ranges::count(outcome.error, '\n'), 1) << outcome.error;
  const auto says = [&](int error) {
    return test::contains(outcome.error, std::generic_category().message(error));
  };
  // When creating a thread, glibc turns ENOMEM into EAGAIN.
  EXPECT_TRUE(says(call.error) || (call.error == ENOMEM && says(EAGAIN))) << outcome.error;
}

enum class Expected { a_way, a_way_or_a_line };

void expect(Expected expected, const std::vector<DeniedCall>& calls,
            const std::vector<int>& errors) {
  int number = 0;
  for (const auto& call : test::denied_calls(calls, errors)) {
    SCOPED_TRACE(call.text());
    const std::string mark =
        "run-without-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
    const Outcome outcome = run_without(call, mark);
    EXPECT_TRUE(outcome.has_ended) << outcome.output << outcome.error;
    if (outcome.has_ended && expected == Expected::a_way)
      EXPECT_TRUE(is_done(outcome)) << outcome.code << outcome.output << outcome.error;
    else if (outcome.has_ended && !is_done(outcome))
      expect_one_line(outcome, call);
    for (const auto deadline = Deadline::after(std::chrono::seconds(5));
         count_left(mark) > 0 && !deadline.passed();)
      ::usleep(2000);
    EXPECT_EQ(count_left(mark), 0) << "processes are left";
  }
}

class DeniedCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (test::under_address_sanitizer || test::under_thread_sanitizer)
      GTEST_SKIP() << "a sanitizer's own calls would be refused, too";
  }
};

TEST_F(DeniedCalls, ARunDoesWithoutWhatOldKernelsLack) {
  expect(Expected::a_way,
         {{"close_range", SYS_close_range, 0},
          {"pidfd_send_signal", SYS_pidfd_send_signal, 0},
          {"statx", SYS_statx, 0},
          {"getrandom", SYS_getrandom, 0},
          {"membarrier", SYS_membarrier, 0},
          {"rseq", SYS_rseq, 0},
          {"faccessat2", SYS_faccessat2, 0},
          {"sched_setaffinity", SYS_sched_setaffinity, 0},
          {"sched_getaffinity", SYS_sched_getaffinity, 0},
          {"flock", SYS_flock, 0},
          {"fsync", SYS_fsync, 0},
          {"unshare", SYS_unshare, 0},
          {"inotify_init1", SYS_inotify_init1, 0}},
         {ENOSYS, EPERM, EINVAL});
  expect(Expected::a_way, {{"clone3", SYS_clone3, 0}}, {ENOSYS});
}

TEST_F(DeniedCalls, ARunSaysWhatItNeeds) {
  expect(Expected::a_way_or_a_line,
         {{"memfd_create", SYS_memfd_create, 0},
          {"pidfd_open", SYS_pidfd_open, 0},
          {"prctl", SYS_prctl, 0},
          {"signalfd4", SYS_signalfd4, 0},
          {"eventfd2", SYS_eventfd2, 0},
          {"pipe2", SYS_pipe2, 0},
          {"setsid", SYS_setsid, 0},
          {"prlimit64", SYS_prlimit64, 0},
          {"getdents64", SYS_getdents64, 0},
          {"clone3", SYS_clone3, 0},
          {"clone", SYS_clone, 0},
          {"mkdir", SYS_mkdir, 0},
          {"socket", SYS_socket, 0},
          {"bind", SYS_bind, 0},
          {"listen", SYS_listen, 0}},
         {ENOSYS, EPERM, EINVAL, EMFILE, ENOMEM, EAGAIN});
}

}  // namespace
}  // namespace lockstep::apps
