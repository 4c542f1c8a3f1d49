// A child process that this process started: how it is started, signalled, waited for, and how its
// end reads.
#pragma once

#include <lockstep/base/deadline.h>
#include "sys/file_descriptor.h"

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::sys {

// How a process ended: by itself with a code, or by a signal (then code is 0).
struct ExitStatus {
  int code = 0;
  int signal = 0;

  [[nodiscard]] bool success() const { return code == 0 && signal == 0; }
  // The number a shell would show: the code, or 128 + signal.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
  bool operator==(const ExitStatus&) const = default;
};

// "exit code 3", or "killed by signal 9 (SIGKILL)".
[[nodiscard]] std::string describe(ExitStatus status);
// "SIGKILL"; "signal 40" where it has no name.
[[nodiscard]] std::string signal_name(int signal);

// What to start. The child has an empty signal mask, the default actions (for SIGPIPE, SIGXFSZ,
// SIGCHLD, SIGINT and SIGQUIT also where the parent ignores them), and no descriptors but 0, 1, 2
// and those in `keep` (under the same numbers).
struct Command {
  std::string file;                      // path of the program; not searched for
  std::vector<std::string> arguments;    // argv, [0] included
  std::vector<std::string> environment;  // "NAME=value"
  int input = -1;                        // becomes descriptor 0; -1: the parent's
  int output = -1;                       // becomes descriptor 1
  int error = -1;                        // becomes descriptor 2
  std::vector<int> keep = {};
  std::optional<rlimit> open_files = {};  // its limit; nothing: the parent's
  bool own_session = false;  // and so its own process group, without a controlling terminal
  // SIGKILL when the *thread* that calls spawn() ends. The kernel forgets this when a set-user-id
  // program is executed.
  bool end_with_parent = false;
};

// Not safe for use by several threads at once. Destroying a Process neither ends it nor waits for
// it.
class Process {
 public:
  // Returns when the program has been executed. SystemError (its text names the step) when it could
  // not be: nothing is left. A file the kernel does not know how to run is given to /bin/sh, as a
  // shell would do.
  [[nodiscard]] static Process spawn(const Command& command);

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Readable in poll() once the process has ended.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // How it ended, once it has; collects the zombie.
  [[nodiscard]] std::optional<ExitStatus> try_wait();
  // The same, waiting for it; nothing when the deadline came first.
  [[nodiscard]] std::optional<ExitStatus> wait(Deadline deadline);
  // To the process, or to all of its group (own_session). False when it has already been collected.
  bool send(int signal);
  bool send_to_group(int signal);

 private:
  Process(pid_t pid, FileDescriptor pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_;
  FileDescriptor pidfd_;
  std::optional<ExitStatus> status_;
};

// A descriptor that becomes readable when process `pid` ends. SystemError(ESRCH) when there is
// none.
[[nodiscard]] FileDescriptor open_pidfd(pid_t pid);
// Whether a descriptor with that number is open and is one of a process.
[[nodiscard]] bool is_pidfd(int number);

}  // namespace lockstep::sys
