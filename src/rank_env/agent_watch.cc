#include "rank_env/agent_watch.h"

#include "base/environment.h"
#include "base/format.h"
#include "rank_env/variables.h"
#include "sys/file_descriptor.h"
#include "sys/process.h"
#include "sys/thread.h"

#include <csignal>
#include <limits>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace lockstep::rank_env {
namespace {

constexpr int milliseconds_for_the_line = 100;

// This function must not block on a reader of standard error that died with the agent.
void wait_and_end(int agent, const std::string& line) {
  pollfd end{agent, POLLIN, 0};
  sys::wait_for_events({&end, 1});
  if (!sys::is_pidfd(agent)) return;  // the program has closed it, and may have opened another file
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, milliseconds_for_the_line) > 0 && (room.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  ::kill(::getpid(), SIGKILL);
}

}  // namespace

void watch_agent() {
  const auto agent =
      environment::integer(variable::agent_descriptor, 0, std::numeric_limits<int>::max());
  if (!agent || !sys::is_pidfd(static_cast<int>(*agent))) return;  // a wrapper has closed it
  static std::mutex mutex;
  static pid_t process = 0;  // the process that runs the thread; a forked child has no such thread
  const std::lock_guard lock(mutex);
  if (process == ::getpid()) return;
  ::fcntl(static_cast<int>(*agent), F_SETFD, FD_CLOEXEC);
  const std::string line =
      formatted("lockstep: rank {}: its agent (`lockstep run`) is gone; the rank ends\n",
                environment::text(variable::rank).value_or("?"));
  sys::Thread("agent watch", [agent = static_cast<int>(*agent), line] {
    wait_and_end(agent, line);
  }).detach();
  process = ::getpid();
}

}  // namespace lockstep::rank_env
