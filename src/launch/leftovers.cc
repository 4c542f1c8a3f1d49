#include "launch/leftovers.h"

#include "base/text.h"
#include "sys/process_info.h"

#include <lockstep/base/error.h>

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>

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

// Returns true if a signal stopped the process. A process that a tracer stops (strace does at each
// system call) does not count: it continues at once.
bool is_stopped(pid_t pid) {
  const auto stat = sys::read_process_stat(pid);
  return stat && stat->state == 'T';
}

bool has_stopped(const ProcessTree& tree, pid_t root) {
  return is_stopped(root) || std::ranges::any_of(children_of(tree, root), [&](pid_t child) {
           return has_stopped(tree, child);
         });
}

}  // namespace

Subreaper::Subreaper() : older_(children_of(read_process_tree(), ::getpid())) {
  if (!sys::read_process_stat(::getpid()))
    throw SystemError("reading /proc, where the agent finds processes that its ranks leave behind",
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

std::set<pid_t> Subreaper::stopped(const std::set<pid_t>& roots) {
  const ProcessTree tree = read_process_tree();
  std::set<pid_t> found;
  for (pid_t root : roots)
    if (has_stopped(tree, root)) found.insert(root);
  return found;
}

void Subreaper::collect(const std::set<pid_t>& own) const {
  siginfo_t ended = {};
  if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0)
    return;  // avoids the search
  for (pid_t child : children_of(read_process_tree(), ::getpid()))
    if (!own.contains(child) && !older_.contains(child) && is_zombie(child))
      ::waitpid(child, nullptr, WNOHANG);
}

int Subreaper::end_all(Duration grace, const std::set<pid_t>& kept) const {
  int count = 0;
  const Deadline polite = Deadline::after(grace);
  const Deadline hopeless =
      Deadline::after(grace + std::chrono::seconds(5));  // a process hangs in the kernel
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
        ::kill(pid, SIGCONT);  // a stopped process would not handle SIGTERM
      }
    }
    ::poll(nullptr, 0, 5);
  }
}

namespace {

// The orphan reaper is a fork of a process that may have threads: between fork() and its exit it
// may only use system calls and must not allocate memory.

constexpr const char* orphan_reaper_name = "lockstep-reaper";
constexpr std::size_t most_environment = 4 << 20;
constexpr int most_passes = 1000, milliseconds_between = 5;

// Layout of a getdents64() record.
struct Entry {
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t size;
  std::uint8_t type;
  char name[1];
};

// The state of the orphan reaper; made before the fork.
struct Watch {
  int agent;
  int all_is_well;
  int error;
  const std::vector<std::string>& marks;
  char* environment;          // most_environment bytes
  const std::string& folder;  // to remove; empty: none
  std::string line;
};

// Returns -1 if the name is not a number.
pid_t number_of(const char* name) {
  pid_t number = 0;
  for (; *name >= '0' && *name <= '9'; ++name) number = number * 10 + (*name - '0');
  return *name == '\0' && number > 0 ? number : -1;
}

// Returns the content of /proc/PID/FILE, truncated to `most` bytes.
std::string_view read_of_process(const char* pid, const char* file, char* buffer,
                                 std::size_t most) {
  char path[64];
  if (std::strlen(pid) + std::strlen(file) > sizeof(path) - 8) return {};
  char* end = path;
  for (const std::string_view part :
       {std::string_view("/proc/"), std::string_view(pid), std::string_view(file)})
    end = std::copy(part.begin(), part.end(), end);
  *end = '\0';
  const int open = ::open(path, O_RDONLY | O_CLOEXEC);
  if (open < 0) return {};
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < most; size += static_cast<std::size_t>(got > 0 ? got : 0))
    got = ::read(open, buffer + size, most - size);
  ::close(open);
  return {buffer, size};
}

bool has_entry(std::string_view environment, std::string_view entry) {
  for (std::size_t at = environment.find(entry); at != std::string_view::npos;
       at = environment.find(entry, at + 1)) {
    const std::size_t end = at + entry.size();
    const bool begins = at == 0 || environment[at - 1] == '\0';
    if (begins && (end == environment.size() || environment[end] == '\0')) return true;
  }
  return false;
}

// The orphan reaper of a nested run has the marks of the outer run but must finish its own work.
bool is_a_guard(const char* pid) {
  char name[32];
  const std::string_view found = read_of_process(pid, "/comm", name, sizeof(name));
  return found.starts_with(orphan_reaper_name);
}

bool belongs_to_the_run(const Watch& watch, const char* pid) {
  const std::string_view environment =
      read_of_process(pid, "/environ", watch.environment, most_environment);
  if (environment.empty()) return false;
  for (const std::string& mark : watch.marks)
    if (!has_entry(environment, mark)) return false;
  return !is_a_guard(pid);
}

// Calls visit(descriptor of the folder, NAME) for each entry of a folder.
template <typename Visit>
void for_each_entry(const char* path, const Visit& visit) {
  const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (folder < 0) return;
  alignas(Entry) char entries[4096];
  for (;;) {
    const long size = ::syscall(SYS_getdents64, folder, entries, sizeof(entries));
    if (size <= 0) break;
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->size;
      visit(folder, entry->name);
    }
  }
  ::close(folder);
}

// Returns the number of processes that were killed.
int kill_those_left(const Watch& watch) {
  int count = 0;
  for_each_entry("/proc", [&](int, const char* name) {
    const pid_t pid = number_of(name);
    if (pid > 1 && belongs_to_the_run(watch, name)) count += ::kill(pid, SIGKILL) == 0;
  });
  return count;
}

void remove_folder(const std::string& path) {
  if (path.empty()) return;
  for_each_entry(path.c_str(), [](int folder, const char* name) { ::unlinkat(folder, name, 0); });
  ::rmdir(path.c_str());
}

void prepare(const Watch& watch) {
  ::setsid();
  ::prctl(PR_SET_NAME, orphan_reaper_name);
  [[maybe_unused]] const int at_root = ::chdir("/");
  // Close all descriptors except the three that the orphan reaper needs: a rank that waits for
  // end-of-file on one of the agent's pipes must not wait for the orphan reaper.
  int kept[] = {watch.agent, watch.all_is_well, watch.error};
  std::sort(std::begin(kept), std::end(kept));
  int next = 0;
  for (int number : kept) {
    if (number > next) ::syscall(SYS_close_range, next, number - 1, 0U);
    next = number + 1;
  }
  ::syscall(SYS_close_range, next, ~0U, 0U);
}

[[noreturn]] void reap_orphans(const Watch& watch) {
  prepare(watch);
  pollfd entries[] = {{watch.all_is_well, POLLIN, 0}, {watch.agent, POLLIN, 0}};
  while (entries[1].revents == 0) {
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) ::_exit(1);
    if ((entries[0].revents & POLLIN) != 0) ::_exit(0);
    if (entries[0].revents != 0) entries[0].fd = -1;  // the pipe closes when the agent ends
  }
  bool any = false;
  for (int pass = 0; pass < most_passes && kill_those_left(watch) > 0; ++pass) {
    any = true;
    ::poll(nullptr, 0, milliseconds_between);
  }
  remove_folder(watch.folder);
  pollfd room{watch.error, POLLOUT, 0};
  if (any && ::poll(&room, 1, 1000) > 0) {
    [[maybe_unused]] const ssize_t written =
        ::write(watch.error, watch.line.data(), watch.line.size());
  }
  ::_exit(0);
}

}  // namespace

OrphanReaper::OrphanReaper(const sys::FileDescriptor& agent, const std::vector<std::string>& marks,
                           int error, const std::string& folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw SystemError("making a pipe for the run's orphan reaper", errno);
  const sys::FileDescriptor from(ends[0]);
  all_is_well_.reset(ends[1]);
  void* environment = ::mmap(nullptr, most_environment, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (environment == MAP_FAILED)
    throw SystemError("taking memory for the run's orphan reaper", errno);
  const Watch watch{.agent = agent.get(),
                    .all_is_well = from.get(),
                    .error = error,
                    .marks = marks,
                    .environment = static_cast<char*>(environment),
                    .folder = folder,
                    .line =
                        "lockstep run: the agent was killed; the remaining processes of its run "
                        "have been ended\n"};
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // stays blocked in the orphan reaper
  pid_ = ::fork();
  const int fork_error = errno;
  if (pid_ == 0) reap_orphans(watch);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::munmap(environment, most_environment);
  if (pid_ < 0) throw SystemError("starting the run's orphan reaper", fork_error);
}

OrphanReaper::~OrphanReaper() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(all_is_well_.get(), &byte, 1);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<std::string> marks_of_ranks(const RankSpec& place) {
  return {std::string(variable::run_id) + "=" + place.run_id,
          std::string(variable::agent) + "=" + std::to_string(place.agent)};
}

}  // namespace lockstep::launch
