// A rank terminates when its agent dies.
#include "rank_env/rank_ends.h"
#include "rank_env/rank_info.h"
#include "rank_env/variables.h"

#include <lockstep/comm/init.h>

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/processes.h"
#include "sys/file_descriptor.h"
#include "sys/process.h"

namespace lockstep::rank_env {
namespace {

using namespace std::chrono_literals;

std::string text_of(const sys::FileDescriptor& file) {
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(::pread(file.get(), text.data(), text.size(), 0)));
  return text;
}

TEST(AgentWatch, ARankEndsItselfWithOneLineWhenTheAgentHasGone) {
  const sys::FileDescriptor words(::memfd_create("words", MFD_CLOEXEC));
  test::RankProcesses agent(1, [](int) { ::pause(); });
  const sys::FileDescriptor process = sys::open_pidfd(agent.pid(0));
  test::RankProcesses rank(1, [&](int) {
    ::dup2(words.get(), STDERR_FILENO);
    ::setenv(variable::agent_descriptor, std::to_string(process.get()).c_str(), 1);
    ::setenv(variable::rank, "0", 1);
    ::setenv(variable::world_size, "1", 1);
    for (int group = 0; group < 2; ++group) (void)init();
    std::this_thread::sleep_for(100ms);
    std::this_thread::sleep_for(30s);
  });
  std::this_thread::sleep_for(300ms);
  agent.kill(0, SIGKILL);
  const auto result = rank.wait(0, 10s);
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_FALSE(result.overdue);
  EXPECT_EQ(text_of(words),
            "lockstep: rank 0: its agent (`lockstep run`) is gone; the rank ends\n");
}

TEST(AgentWatch, ADescriptorOfAnythingElseIsLeftAlone) {
  test::expect_ranks(1, [](int) {
    const sys::FileDescriptor file(::open("/dev/null", O_RDONLY));
    for (int number : {file.get(), 900}) {
      ::setenv(variable::agent_descriptor, std::to_string(number).c_str(), 1);
      watch_agent();
    }
    EXPECT_EQ(::fcntl(file.get(), F_GETFD), 0) << "not ours to change";
    std::this_thread::sleep_for(100ms);
  });
}

TEST(AgentWatch, WhatTheProgramExecutesDoesNotInheritTheDescriptor) {
  test::expect_ranks(1, [](int) {
    const sys::FileDescriptor process = sys::open_pidfd(::getppid());
    ::fcntl(process.get(), F_SETFD, 0);
    ::setenv(variable::agent_descriptor, std::to_string(process.get()).c_str(), 1);
    watch_agent();
    EXPECT_EQ(::fcntl(process.get(), F_GETFD), FD_CLOEXEC);
  });
}

TEST(ReadSecret, WhatTheProgramExecutesDoesNotInheritTheSecret) {
  test::expect_ranks(1, [](int) {
    const sys::FileDescriptor secret(::memfd_create("secret", 0));
    const std::string bytes(secret_bytes, 's');
    ASSERT_EQ(::write(secret.get(), bytes.data(), bytes.size()), std::ssize(bytes));
    ::setenv(variable::secret_descriptor, std::to_string(secret.get()).c_str(), 1);
    for (int group = 0; group < 2; ++group) EXPECT_EQ(read_secret(), bytes);
    EXPECT_EQ(::fcntl(secret.get(), F_GETFD), FD_CLOEXEC);
  });
}

}  // namespace
}  // namespace lockstep::rank_env
