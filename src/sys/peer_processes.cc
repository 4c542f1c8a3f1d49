#include "sys/peer_processes.h"

#include <lockstep/base/error.h>

#include "base/text.h"
#include "sys/process.h"
#include "sys/process_info.h"

#include <poll.h>

namespace lockstep::sys {

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
