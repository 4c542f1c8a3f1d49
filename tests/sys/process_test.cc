#include "sys/process.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

using namespace std::chrono_literals;

Command shell(const std::string& script) {
  return {
      .file = "/bin/sh", .arguments = {"sh", "-c", script}, .environment = {"PATH=/usr/bin:/bin"}};
}

struct Pipe {
  FileDescriptor read_end, write_end;
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  // Reads until all writers have closed the pipe.
  std::string read_all() {
    write_end.reset();
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t size; (size = ::read(read_end.get(), buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), size);
    return text;
  }
};

std::string output_of(Command command) {
  Pipe pipe;
  command.output = pipe.write_end.get();
  Process process = Process::spawn(command);
  std::string text = pipe.read_all();
  EXPECT_TRUE(process.wait(Deadline::after(20s)).has_value());
  return text;
}

TEST(Process, ExitCodeAndSignalAreToldApart) {
  for (int code : {0, 1, 3, 255}) {
    const auto status =
        Process::spawn(shell("exit " + std::to_string(code))).wait(Deadline::after(20s));
    EXPECT_EQ(status, (ExitStatus{.code = code}));
    EXPECT_EQ(status->shell_code(), code);
  }
  const auto killed = Process::spawn(shell("kill -9 $$")).wait(Deadline::after(20s));
  EXPECT_EQ(killed, (ExitStatus{.signal = SIGKILL}));
  EXPECT_EQ(killed->shell_code(), 137);
}

TEST(Process, AnEndReadsAsASentence) {
  EXPECT_EQ(describe(ExitStatus{.code = 3}), "exit code 3");
  EXPECT_EQ(describe(ExitStatus{.signal = SIGKILL}), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
}

TEST(Process, WaitGivesUpAtTheDeadlineAndCanBeRepeated) {
  Process process = Process::spawn(shell("exec sleep 60"));
  EXPECT_FALSE(process.wait(Deadline::after(30ms)).has_value());
  EXPECT_FALSE(process.try_wait().has_value());
  EXPECT_TRUE(process.send(SIGTERM));
  EXPECT_EQ(process.wait(Deadline::after(20s)), (ExitStatus{.signal = SIGTERM}));
  EXPECT_EQ(process.try_wait(), (ExitStatus{.signal = SIGTERM}));
  EXPECT_FALSE(process.send(SIGTERM));  // the pid may belong to another process by now
}

TEST(Process, WhatCannotBeExecutedIsAnErrorAndLeavesNothing) {
  Command command = shell("true");
  command.file = "/nonexistent/program";
  try {
    (void)Process::spawn(command);
    FAIL() << "expected a SystemError";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/program: cannot execute it"),
              std::string::npos)
        << error.what();
  }
}

TEST(Process, ArgumentsAndEnvironmentArriveUnchanged) {
  Command command = shell("printf '%s|' \"$@\" \"$WORD\"");
  command.arguments.insert(command.arguments.end(), {"sh", "a b", "", "*"});
  command.environment.push_back("WORD=x=y z");
  EXPECT_EQ(output_of(command), "a b||*|x=y z|");
}

TEST(Process, OnlyKeptDescriptorsAreInherited) {
  const FileDescriptor loose(::open("/dev/null", O_RDONLY));  // intentionally without close-on-exec
  const FileDescriptor kept(::fcntl(loose.get(), F_DUPFD_CLOEXEC, 60));
  Command command = shell("ls /proc/self/fd | tr '\\n' ' '");
  command.keep = {kept.get()};
  // Descriptor 3 is the folder that ls itself reads.
  EXPECT_EQ(output_of(command), "0 1 2 3 " + std::to_string(kept.get()) + " ");
}

TEST(Process, StreamsMayBeGivenInAnyOrder) {
  // This process's stdout becomes the child's stderr and vice versa: each is the source of the
  // other.
  Pipe out, error;
  Command command = shell("echo to-output; echo to-error >&2");
  command.output = error.write_end.get();
  command.error = out.write_end.get();
  Process process = Process::spawn(command);
  EXPECT_EQ(error.read_all(), "to-output\n");
  EXPECT_EQ(out.read_all(), "to-error\n");
  EXPECT_TRUE(process.wait(Deadline::after(20s))->success());
}

TEST(Process, SignalsAreResetInTheChild) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &term, &before), 0);
  const auto pipes_before = ::signal(SIGPIPE, SIG_IGN);
  const auto interrupts_before = ::signal(SIGINT, SIG_IGN);
  const std::string text = output_of(shell("grep -E '^Sig(Blk|Ign)' /proc/self/status"));
  ::signal(SIGPIPE, pipes_before);
  ::signal(SIGINT, interrupts_before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST(Process, AGroupIsSignalledTogether) {
  Pipe pipe;
  Command command = shell("sleep 60 & echo started; wait");
  command.output = pipe.write_end.get();
  command.own_session = true;
  Process process = Process::spawn(command);
  char text[8];
  ASSERT_EQ(::read(pipe.read_end.get(), text, sizeof(text)), 8);
  EXPECT_EQ(::getpgid(process.pid()), process.pid());
  EXPECT_TRUE(process.send_to_group(SIGKILL));
  EXPECT_TRUE(process.wait(Deadline::after(20s)).has_value());
  EXPECT_EQ(pipe.read_all(), "");  // the pipe closes only after the background sleep has ended too
}

TEST(Process, AScriptWithoutAnInterpreterLineIsGivenToTheShell) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "script";
  std::ofstream(file) << "echo \"$1\"\n";
  ASSERT_EQ(::chmod(file.c_str(), 0700), 0);
  EXPECT_EQ(
      output_of(
          {.file = file, .arguments = {file, "words"}, .environment = {"PATH=/usr/bin:/bin"}}),
      "words\n");
}

TEST(Process, OnlyADescriptorOfAProcessIsOne) {
  EXPECT_TRUE(is_pidfd(open_pidfd(::getpid()).get()));
  const Pipe pipe;
  EXPECT_FALSE(is_pidfd(pipe.read_end.get()));
  EXPECT_FALSE(is_pidfd(-1));
  Process ended = Process::spawn(shell("exit 0"));
  EXPECT_TRUE(ended.wait(Deadline::after(20s)).has_value());
  EXPECT_TRUE(is_pidfd(ended.pidfd())) << "also when the process has ended";
}

TEST(Process, HasTheLimitOfOpenFilesThatItIsGiven) {
  Command command = shell("ulimit -Sn");
  command.open_files = rlimit{37, 137};
  EXPECT_EQ(output_of(command), "37\n");
}

}  // namespace
}  // namespace lockstep::sys
