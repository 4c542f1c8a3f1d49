#include "sys/process.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace lockstep::sys {

namespace {

// Sent by the child through a pipe if it cannot execute the program.
struct Failure {
  int step;
  int error_number;
};
constexpr const char* steps[] = {
    "cannot create a session", "cannot set the signal for the end of its parent",
    "cannot redirect its streams", "cannot limit its open files", "cannot execute it"};
enum Step : int { session, parent_death, streams, limits, execution };

// Everything that the child needs, prepared before the fork: after the fork, only async-signal-safe
// calls are allowed.
struct Prepared {
  explicit Prepared(const Command& command) : command(command), parent(::getpid()) {
    for (const std::string& argument : command.arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    for (const std::string& entry : command.environment)
      envp.push_back(const_cast<char*>(entry.c_str()));
    envp.push_back(nullptr);
    shell_argv = {const_cast<char*>("/bin/sh"), const_cast<char*>(command.file.c_str())};
    shell_argv.insert(shell_argv.end(), argv.begin() + (argv.size() > 1 ? 1 : 0), argv.end());
  }

  const Command& command;
  const pid_t parent;
  std::vector<char*> argv, envp, shell_argv;
};

[[noreturn]] void give_up(int report, Step step) {
  const Failure failure{step, errno};
  [[maybe_unused]] ssize_t written = ::write(report, &failure, sizeof(failure));
  ::_exit(127);
}

void reset_signals() {
  struct sigaction plain = {};
  plain.sa_handler = SIG_DFL;
  for (int signal : {SIGPIPE, SIGXFSZ, SIGCHLD, SIGINT, SIGQUIT})
    ::sigaction(signal, &plain, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// First moves the sources to numbers above 2, so that no redirection overwrites the source of
// another one.
bool redirect(const Command& command) {
  int sources[3] = {command.input, command.output, command.error};
  for (int& source : sources)
    if (source >= 0) {
      source = ::fcntl(source, F_DUPFD_CLOEXEC, 3);
      if (source < 0) return false;
    }
  for (int target = 0; target < 3; ++target)
    if (sources[target] >= 0 && ::dup2(sources[target], target) < 0) return false;
  return true;
}

bool close_others(const std::vector<int>& keep) {
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    const int end =
        static_cast<int>(std::min(::sysconf(_SC_OPEN_MAX), 65536L));  // for kernels before 5.11
    for (int number = 3; number < end; ++number) ::fcntl(number, F_SETFD, FD_CLOEXEC);
  }
  return std::all_of(keep.begin(), keep.end(),
                     [](int number) { return ::fcntl(number, F_SETFD, 0) == 0; });
}

[[noreturn]] void become(const Prepared& prepared, int report) {
  const Command& command = prepared.command;
  if (command.own_session && ::setsid() < 0) give_up(report, session);
  if (command.end_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(report, parent_death);
    if (::getppid() != prepared.parent)
      ::_exit(127);  // the parent ended before prctl() took effect
  }
  if (!redirect(command) || !close_others(command.keep)) give_up(report, streams);
  // The child can still use inherited descriptors with higher numbers.
  if (command.open_files && ::setrlimit(RLIMIT_NOFILE, &*command.open_files) != 0)
    give_up(report, limits);
  reset_signals();
  ::execve(command.file.c_str(), prepared.argv.data(), prepared.envp.data());
  if (errno == ENOEXEC) ::execve("/bin/sh", prepared.shell_argv.data(), prepared.envp.data());
  give_up(report, execution);
}

ExitStatus collect(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) throw SystemError("waiting for process " + std::to_string(pid), errno);
  if (WIFSIGNALED(status)) return {.code = 0, .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status), .signal = 0};
}

// Blocks until the child has executed its program (close-on-exec closes the pipe) or has reported
// an error.
std::optional<Failure> read_failure(int from) {
  Failure failure;
  ssize_t got;
  while ((got = ::read(from, &failure, sizeof(failure))) < 0 && errno == EINTR) {
  }
  if (got == sizeof(failure)) return failure;
  return std::nullopt;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(ExitStatus status) {
  if (status.signal == 0) return "exit code " + std::to_string(status.code);
  return "killed by signal " + std::to_string(status.signal) + " (" + signal_name(status.signal) +
         ")";
}

FileDescriptor open_pidfd(pid_t pid) {
  const long number = ::syscall(SYS_pidfd_open, pid, 0U);  // always close-on-exec
  if (number < 0)
    throw SystemError("watching process " + std::to_string(pid) +
                          " (pidfd_open, which Linux has from 5.3 on and a container must allow)",
                      errno);
  return FileDescriptor(static_cast<int>(number));
}

// Signal 0 only makes the kernel check the descriptor. If the call is forbidden, /proc has the type
// of the descriptor: "anon_inode:[pidfd]", "pidfd:[4711]".
bool is_pidfd(int number) {
  if (::syscall(SYS_pidfd_send_signal, number, 0, nullptr, 0U) == 0 || errno == ESRCH) return true;
  if (errno == EBADF) return false;
  std::error_code unknown;
  const auto name =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(number), unknown);
  return !unknown && name.string().find("pidfd") != std::string::npos && name.is_relative();
}

Process Process::spawn(const Command& command) {
  const Prepared prepared(command);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw SystemError("starting " + command.file + ": cannot make a pipe", errno);
  FileDescriptor from(ends[0]), report(ends[1]);

  // Block signals until the child has reset them: a handler of the parent must not run in the
  // child.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid == 0) become(prepared, report.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw SystemError("starting " + command.file + ": cannot fork", fork_error);

  report.reset();
  if (const auto failure = read_failure(from.get())) {
    collect(pid);
    throw SystemError("starting " + command.file + ": " + steps[failure->step],
                      failure->error_number);
  }
  try {
    return Process(pid, open_pidfd(pid));
  } catch (const SystemError&) {
    ::kill(pid, SIGKILL);
    collect(pid);
    throw;
  }
}

std::optional<ExitStatus> Process::try_wait() {
  if (status_) return status_;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) > 0) status_ = collect(pid_);
  return status_;
}

std::optional<ExitStatus> Process::wait(Deadline deadline) {
  while (!try_wait()) {
    if (deadline.passed()) return std::nullopt;
    pollfd ended{pidfd_.get(), POLLIN, 0};
    ::poll(&ended, 1, deadline.poll_milliseconds());
  }
  return status_;
}

bool Process::send(int signal) { return !status_ && ::kill(pid_, signal) == 0; }

bool Process::send_to_group(int signal) { return !status_ && ::kill(-pid_, signal) == 0; }

}  // namespace lockstep::sys
