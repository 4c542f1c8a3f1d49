#include "support/processes.h"

#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <ostream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

void print_for_rank(int rank, const std::string& text) {
  std::fprintf(stderr, "[rank %d] %s\n", rank, text.c_str());
}

// Replaces gtest's printer in a rank: prints which rank failed, and records the failure.
class RankListener : public testing::EmptyTestEventListener {
 public:
  explicit RankListener(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.passed()) return;
    failed_ = failed_ || part.failed();
    const char* file = part.file_name() != nullptr ? part.file_name() : "unknown file";
    print_for_rank(rank_, std::string(file) + ":" + std::to_string(part.line_number()) + ": " +
                              part.message());
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  int rank_;
  std::atomic<bool> failed_ = false;
};

[[noreturn]] void run_rank(int rank, const RankBody& body) {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Release(
      listeners.default_result_printer());  // not deleted: this process only ends by _exit()
  auto* listener = new RankListener(rank);
  listeners.Append(listener);
  bool threw = true;
  try {
    body(rank);
    threw = false;
  } catch (const std::exception& error) {
    print_for_rank(rank, std::string("exception: ") + error.what());
  } catch (...) {
    print_for_rank(rank, "exception of an unknown type");
  }
  std::fflush(nullptr);
  ::_exit(threw || listener->failed() ? 1 : 0);
}

pid_t start_rank(int rank, const RankBody& body) {
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0)
    throw std::system_error(errno, std::generic_category(), "fork of rank " + std::to_string(rank));
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  run_rank(rank, body);
}

// Returns true if the process ends within the limit; does not reap it.
bool wait_for_end(pid_t pid, std::chrono::milliseconds limit) {
  int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
  pollfd entry{process, POLLIN, 0};
  auto end = std::chrono::steady_clock::now() + limit;
  int ready = -1;
  do {
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    ready = ::poll(&entry, 1, static_cast<int>(std::max<long long>(0, left.count())));
  } while (ready < 0 && errno == EINTR);
  ::close(process);
  return ready > 0;
}

RankResult collect(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  RankResult result;
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RankResult& result) {
  if (result.overdue) return out << "still ran at the deadline and was killed";
  if (result.signal != 0) return out << "ended by signal " << result.signal;
  return out << "exit code " << result.exit_code;
}

RankProcesses::RankProcesses(int count, const RankBody& body) : ranks_(count) {
  std::fflush(nullptr);  // otherwise each rank would print the buffered output again
  for (int rank = 0; rank < count; ++rank) ranks_[rank].pid = start_rank(rank, body);
}

RankProcesses::~RankProcesses() {
  for (Rank& rank : ranks_) {
    if (rank.collected || rank.pid < 0) continue;
    ::kill(rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
  }
}

void RankProcesses::kill(int rank, int signal) const {
  if (!ranks_.at(rank).collected) ::kill(ranks_.at(rank).pid, signal);
}

RankResult RankProcesses::wait(int number, std::chrono::milliseconds limit) {
  Rank& rank = ranks_.at(number);
  if (rank.collected) return rank.result;
  constexpr int slower = under_sanitizer ? 5 : 1;
  bool ended = wait_for_end(rank.pid, limit * slower);
  if (!ended) ::kill(rank.pid, SIGKILL);
  rank.result = collect(rank.pid);
  rank.result.overdue = !ended;
  rank.collected = true;
  return rank.result;
}

std::vector<RankResult> RankProcesses::wait(std::chrono::milliseconds limit) {
  auto end = std::chrono::steady_clock::now() + limit;
  std::vector<RankResult> results;
  for (int rank = 0; rank < count(); ++rank) {
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    results.push_back(wait(rank, std::max(left, std::chrono::milliseconds(0))));
  }
  return results;
}

std::vector<RankResult> run_ranks(int count, const RankBody& body,
                                  std::chrono::milliseconds limit) {
  return RankProcesses(count, body).wait(limit);
}

void expect_ranks(int count, const RankBody& body, std::chrono::milliseconds limit) {
  std::vector<RankResult> results = run_ranks(count, body, limit);
  for (int rank = 0; rank < count; ++rank) {
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << " of " << count << ": " << results[rank];
  }
}

}  // namespace lockstep::test
