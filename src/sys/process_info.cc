#include "sys/process_info.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/process.h"
#include "sys/topology.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

// counted after the name; the state is field 0
constexpr int field_of_parent = 1, field_of_start = 19;

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

// Parses a line such as "Pss: 1234 kB".
std::int64_t proportional() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kilobytes = 0;
    if (words >> name >> kilobytes && name == "Pss:") return kilobytes * 1024;
  }
  return 0;
}

std::int64_t undivided() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view line) {
  const std::size_t begin = line.find('('), end = line.rfind(") ");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
    return std::nullopt;
  ProcessStat stat{.name = std::string(line.substr(begin + 1, end - begin - 1))};
  std::string_view rest = line.substr(end + 2);
  if (!rest.empty()) stat.state = rest.front();
  for (int field = 0; field <= field_of_start; ++field) {
    const std::size_t space = rest.find(' ');
    const auto number = parse_integer(rest.substr(0, space)).value_or(0);
    if (field == field_of_parent && number > 0 && number <= std::numeric_limits<int>::max())
      stat.parent = static_cast<int>(number);
    if (field == field_of_start) stat.start_time = static_cast<std::uint64_t>(number);
    if (space == std::string_view::npos) break;
    rest.remove_prefix(space + 1);
  }
  return stat;
}

// Does not allocate for the content, because an agent reads this file for all processes.
std::optional<ProcessStat> read_process_stat(int pid) {
  std::array<char, 1024> text{};
  const FileDescriptor file(::open(formatted("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t size = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (size <= 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<std::size_t>(size)});
}

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
  // It is there, but its stat cannot be read, as where /proc hides it.
  if (!stat && (::kill(static_cast<pid_t>(*pid), 0) == 0 || errno == EPERM))
    return ProcessState::unknown;
  return stat && std::to_string(stat->start_time) == words.started ? state_in(stat)
                                                                   : ProcessState::ended;
}

std::string pid_in(std::string_view process) { return ProcessWords(process).pid; }

std::int64_t proportional_bytes() {
  std::int64_t bytes = proportional();
  return bytes > 0 ? bytes : undivided();
}

// Checks the identity again after opening the pidfd: this rules out a new process that reused the
// pid.
void PeerProcesses::watch(int rank, std::string_view identity) {
  if (processes_.contains(rank) || state_of_process(identity) == ProcessState::unknown) return;
  Process process{std::string(identity), {}};
  try {
    process.end = open_pidfd(static_cast<pid_t>(parse_integer(pid_in(identity)).value_or(0)));
  } catch (const SystemError&) {
    // The process has ended or the kernel lacks pidfds; fall back to its state in /proc.
  }
  if (state_of_process(identity) == ProcessState::ended) process.end.reset();
  processes_.emplace(rank, std::move(process));
}

bool PeerProcesses::has_ended(const Process& process) {
  if (!process.end) return state_of_process(process.identity) == ProcessState::ended;
  pollfd entry{process.end.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

std::vector<int> PeerProcesses::ended() const {
  std::vector<int> ranks;
  for (const auto& [rank, process] : processes_) {
    if (has_ended(process)) ranks.push_back(rank);
  }
  return ranks;
}

bool PeerProcesses::has_ended(int rank) const {
  auto process = processes_.find(rank);
  return process != processes_.end() && has_ended(process->second);
}

std::string PeerProcesses::pid(int rank) const {
  auto process = processes_.find(rank);
  return process == processes_.end() ? std::string() : pid_in(process->second.identity);
}

}  // namespace lockstep::sys
