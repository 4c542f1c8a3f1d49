// The state of another process on this host: running, stopped or ended.
#include "sys/process_info.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep::sys;
using namespace std::chrono_literals;

namespace {

// A child that reports its identity and then waits.
class Child {
 public:
  Child() {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto text = process_identity();
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
      ::close(ends[1]);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char text[200];
    const auto size = ::read(ends[0], text, sizeof(text));
    ::close(ends[0]);
    process_.assign(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void send(int signal) const { ::kill(pid_, signal); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::string& process() const { return process_; }

  [[nodiscard]] bool becomes(ProcessState state) const {
    for (int round = 0; round < 2000; ++round) {
      if (state_of_process(process_) == state) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

 private:
  pid_t pid_ = -1;
  std::string process_;
};

TEST(Process, RunsIsStoppedAndEnds) {
  const Child child;
  EXPECT_EQ(pid_in(child.process()), std::to_string(child.pid()));
  EXPECT_EQ(state_of_process(child.process()), ProcessState::runs);
  child.send(SIGSTOP);
  EXPECT_TRUE(child.becomes(ProcessState::stopped));
  child.send(SIGCONT);
  EXPECT_TRUE(child.becomes(ProcessState::runs));
  child.send(SIGKILL);
  EXPECT_TRUE(child.becomes(ProcessState::ended)) << "also as a zombie that nobody has collected";
}

TEST(Process, AnotherMachinesIsUnknownAndSoIsRubbish) {
  EXPECT_EQ(state_of_process("elsewhere 1 1"), ProcessState::unknown);
  EXPECT_EQ(state_of_process(""), ProcessState::unknown);
  EXPECT_EQ(state_of_process("x"), ProcessState::unknown);
}

TEST(Process, APidThatWasUsedAgainIsAnotherProcess) {
  auto process = process_identity();
  EXPECT_EQ(state_of_process(process), ProcessState::runs);
  process += "0";  // a different start time
  EXPECT_EQ(state_of_process(process), ProcessState::ended);
}

}  // namespace
