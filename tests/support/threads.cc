#include "support/threads.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_of_other_threads() {
  auto self = std::to_string(::syscall(SYS_gettid));
  std::vector<fs::path> folders;
  for (const auto& folder : fs::directory_iterator("/proc/self/task"))
    if (folder.path().filename() != self) folders.push_back(folder.path());
  return folders;
}

// Returns the value of a field in a thread's status file.
std::string status_of(const fs::path& folder, const std::string& name) {
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 2);
  return {};
}

// Signals that a thread's own instructions raise, that cannot be blocked, or that the C library
// uses.
bool may_stay_open(int signal) {
  static const std::set<int> open{SIGSEGV, SIGBUS,  SIGFPE,  SIGILL, SIGTRAP,
                                  SIGSYS,  SIGKILL, SIGSTOP, 32,     33};
  return open.contains(signal);
}

}  // namespace

std::size_t other_threads() { return folders_of_other_threads().size(); }

std::vector<std::string> threads_that_take_signals() {
  std::vector<std::string> found;
  for (const auto& folder : folders_of_other_threads()) {
    auto blocked = status_of(folder, "SigBlk");
    if (blocked.empty()) continue;  // the thread has ended meanwhile
    auto mask = std::stoull(blocked, nullptr, 16);
    std::string open;
    for (int signal = 1; signal < SIGRTMAX; ++signal) {
      bool is_blocked = (mask >> (signal - 1) & 1) != 0;
      if (!is_blocked && !may_stay_open(signal)) open += " " + std::to_string(signal);
    }
    if (!open.empty()) found.push_back(status_of(folder, "Name") + ":" + open);
  }
  return found;
}

}  // namespace lockstep::test
