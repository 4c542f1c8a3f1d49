#include "sys/process_identity.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/process_stat.h"
#include "sys/topology.h"

#include <filesystem>
#include <optional>
#include <sstream>

#include <unistd.h>

namespace lockstep::sys {
namespace {

ProcessState state_in(const std::optional<ProcessStat>& stat) {
  if (!stat || stat->state == 'Z' || stat->state == 'X') return ProcessState::ended;
  return stat->state == 'T' || stat->state == 't' ? ProcessState::stopped : ProcessState::runs;
}

struct ProcessWords {
  std::string space, pid, started;
  explicit ProcessWords(std::string_view process) {
    std::istringstream(std::string(process)) >> space >> pid >> started;
  }
};

}  // namespace

std::string process_space() {
  std::error_code ignored;
  auto pids = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  return formatted("{:x}", fingerprint(host_identity() + pids));
}

std::string process_identity() {
  const int pid = ::getpid();
  auto stat = read_process_stat(pid);
  return formatted("{} {} {}", process_space(), pid, stat ? stat->start_time : 0);
}

ProcessState state_of_process(std::string_view process) {
  const ProcessWords words(process);
  const auto pid = parse_integer(words.pid);
  if (words.started.empty() || !pid || words.space != process_space()) return ProcessState::unknown;
  auto stat = read_process_stat(static_cast<int>(*pid));
  return stat && std::to_string(stat->start_time) == words.started ? state_in(stat)
                                                                   : ProcessState::ended;
}

std::string pid_in(std::string_view process) { return ProcessWords(process).pid; }

}  // namespace lockstep::sys
