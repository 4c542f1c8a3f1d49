#include "sys/process_identity.h"

#include <lockstep/base/error.h>
#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>

#include "sys/files.h"
#include "sys/topology.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <sstream>

#include <unistd.h>

namespace lockstep::sys {
namespace {

struct Stat {
  char state = '?';
  std::string started;  // in clock ticks since the boot: with the pid, unique on a machine
};

// From /proc/PID/stat: "71 (name) S ...", where the name may hold blanks and brackets.
std::optional<Stat> stat_of(const std::string& pid) {
  try {
    auto text = sys::read_file("/proc/" + pid + "/stat");
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    constexpr int started_at = 22;
    constexpr int state_at = 3;
    Stat result;
    fields >> result.state;
    for (int field = state_at; field < started_at; ++field) fields >> result.started;
    return result;
  } catch (const Error&) {
    return std::nullopt;
  }
}

ProcessState state_in(const std::optional<Stat>& stat) {
  if (!stat || stat->state == 'Z' || stat->state == 'X') return ProcessState::ended;
  return stat->state == 'T' || stat->state == 't' ? ProcessState::stopped : ProcessState::runs;
}

// Processes that see each other's pids have the same.
std::string process_space() {
  std::error_code ignored;
  auto pids = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  return formatted("{:x}", fingerprint(sys::host_identity() + pids));
}

struct ProcessWords {
  std::string space, pid, started;
  explicit ProcessWords(std::string_view process) {
    std::istringstream(std::string(process)) >> space >> pid >> started;
  }
};

}  // namespace

std::string process_identity() {
  auto pid = std::to_string(::getpid());
  auto stat = stat_of(pid);
  return formatted("{} {} {}", process_space(), pid, stat ? stat->started : "0");
}

ProcessState state_of_process(std::string_view process) {
  const ProcessWords words(process);
  if (words.started.empty() || words.space != process_space()) return ProcessState::unknown;
  auto stat = stat_of(words.pid);
  return stat && stat->started == words.started ? state_in(stat) : ProcessState::ended;
}

ProcessState state_of_process(int pid) { return state_in(stat_of(std::to_string(pid))); }

std::string pid_in(std::string_view process) { return ProcessWords(process).pid; }

}  // namespace lockstep::sys
