#include "launch/descendants.h"

#include "base/text.h"
#include "sys/process_stat.h"

#include <lockstep/base/error.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::launch {

namespace {

using ProcessTree = std::multimap<pid_t, pid_t>;  // parent, child

ProcessTree read_process_tree() {
  ProcessTree tree;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const auto pid = parse_integer(entry->d_name);
    if (!pid) continue;
    if (const auto stat = sys::read_process_stat(static_cast<int>(*pid)))
      tree.emplace(stat->parent, static_cast<pid_t>(*pid));
  }
  return tree;
}

std::set<pid_t> children_of(const ProcessTree& tree, pid_t parent) {
  std::set<pid_t> children;
  for (auto [at, end] = tree.equal_range(parent); at != end; ++at) children.insert(at->second);
  return children;
}

bool is_zombie(pid_t pid) {
  const auto stat = sys::read_process_stat(pid);
  return stat && stat->state == 'Z';
}

}  // namespace

Subreaper::Subreaper() : older_(children_of(read_process_tree(), ::getpid())) {
  if (!sys::read_process_stat(::getpid()))
    throw SystemError("looking into /proc, where the agent finds what its ranks leave behind",
                      ENOENT);
  int before = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &before);
  was_subreaper_ = before != 0;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() {
  if (!was_subreaper_) ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

std::vector<pid_t> Subreaper::descendants(const std::set<pid_t>& kept) const {
  const ProcessTree tree = read_process_tree();
  std::vector<pid_t> found;
  for (pid_t child : children_of(tree, ::getpid()))
    if (!older_.contains(child) && !kept.contains(child)) found.push_back(child);
  for (std::size_t next = 0; next < found.size(); ++next)
    for (pid_t child : children_of(tree, found[next])) found.push_back(child);
  return found;
}

void Subreaper::collect(const std::set<pid_t>& own) const {
  siginfo_t ended = {};
  if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0)
    return;  // spares the search
  for (pid_t child : children_of(read_process_tree(), ::getpid()))
    if (!own.contains(child) && !older_.contains(child) && is_zombie(child))
      ::waitpid(child, nullptr, WNOHANG);
}

int Subreaper::end_all(Duration grace, const std::set<pid_t>& kept) const {
  int count = 0;
  const Deadline polite = Deadline::after(grace);
  const Deadline hopeless =
      Deadline::after(grace + std::chrono::seconds(5));  // the kernel itself holds a process
  std::set<pid_t> asked;
  for (collect(kept); true; collect(kept)) {
    const std::vector<pid_t> left = descendants(kept);
    if (left.empty() || hopeless.passed()) return count;
    for (pid_t pid : left) {
      const bool is_new = asked.insert(pid).second;
      count += is_new;
      if (polite.passed()) {
        ::kill(pid, SIGKILL);
      } else if (is_new) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);  // a stopped process would not see it
      }
    }
    ::poll(nullptr, 0, 5);
  }
}

}  // namespace lockstep::launch
