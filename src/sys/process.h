// A child process: how to start it, send signals to it, wait for it, and describe its exit status.
#pragma once

#include <lockstep/base/deadline.h>
#include "sys/file_descriptor.h"

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::sys {

// The exit status of a process: an exit code, or a signal (then code is 0).
struct ExitStatus {
  int code = 0;
  int signal = 0;

  [[nodiscard]] bool success() const { return code == 0 && signal == 0; }
  // Returns the number that a shell reports: the code, or 128 + signal.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const ExitStatus&) const = default;
};

// Returns "exit code 3" or "killed by signal 9 (SIGKILL)".
[[nodiscard]] std::string describe(ExitStatus status);
// Returns "SIGKILL", or "signal 40" for a signal without a name.
[[nodiscard]] std::string signal_name(int signal);

// A program to start. The child has an empty signal mask, default signal actions (also for SIGPIPE,
// SIGXFSZ, SIGCHLD, SIGINT and SIGQUIT if the parent ignores them), and no descriptors except 0, 1,
// 2 and those in `keep` (under the same numbers).
struct Command {
  std::string file;                      // path of the program; PATH is not searched
  std::vector<std::string> arguments;    // argv, [0] included
  std::vector<std::string> environment;  // "NAME=value"
  int input = -1;                        // becomes descriptor 0; -1: inherited from the parent
  int output = -1;                       // becomes descriptor 1
  int error = -1;                        // becomes descriptor 2
  std::vector<int> keep = {};
  std::optional<rlimit> open_files = {};  // RLIMIT_NOFILE; std::nullopt: inherited
  bool own_session = false;  // also a new process group, without a controlling terminal
  // If true, the kernel sends SIGKILL when the *thread* that calls spawn() ends. The kernel drops
  // this setting if a set-user-id program is executed.
  bool end_with_parent = false;
};

// Not thread-safe. Destroying a Process neither ends it nor waits for it.
class Process {
 public:
  // Starts the program and returns once it is executing. Throws SystemError, whose message names
  // the failed step, if the program cannot be executed; no process is left then. A file that the
  // kernel cannot execute is passed to /bin/sh, as shells do.
  [[nodiscard]] static Process spawn(const Command& command);

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Returns a descriptor that becomes readable in poll() once the process has ended.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // Returns the exit status if the process has ended, and reaps it.
  [[nodiscard]] std::optional<ExitStatus> try_wait();
  // Waits for the exit status; returns std::nullopt if the deadline passes first.
  [[nodiscard]] std::optional<ExitStatus> wait(Deadline deadline);
  // Sends a signal to the process, or to its whole group (own_session). Returns false if the
  // process was already reaped.
  bool send(int signal);
  bool send_to_group(int signal);

 private:
  Process(pid_t pid, FileDescriptor pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_;
  FileDescriptor pidfd_;
  std::optional<ExitStatus> status_;
};

// Returns a descriptor that becomes readable when process `pid` ends. Throws SystemError(ESRCH) if
// there is no such process.
[[nodiscard]] FileDescriptor open_pidfd(pid_t pid);
// Returns true if `number` is an open descriptor of a process.
[[nodiscard]] bool is_pidfd(int number);

}  // namespace lockstep::sys
