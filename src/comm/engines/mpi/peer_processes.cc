#include "comm/engines/mpi/peer_processes.h"

#include <lockstep/base/error.h>

#include "sys/process.h"
#include "sys/process_identity.h"

#include <poll.h>

namespace lockstep::mpi {

void PeerProcesses::watch(int rank, int process) {
  if (processes_.contains(rank)) return;
  try {
    processes_.emplace(rank, Process{process, sys::open_pidfd(process)});
  } catch (const SystemError&) {
    // Gone already, or out of sight: its silence will tell.
  }
}

std::vector<PeerProcesses::Ended> PeerProcesses::take_ended() {
  std::vector<Ended> ended;
  for (auto& [rank, process] : processes_) {
    pollfd entry{process.end.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) > 0) ended.push_back({rank, process.number});
  }
  for (auto [rank, process] : ended) processes_.erase(rank);
  return ended;
}

std::optional<int> PeerProcesses::stopped(int rank) const {
  auto process = processes_.find(rank);
  if (process == processes_.end()) return std::nullopt;
  const int number = process->second.number;
  if (sys::state_of_process(number) != sys::ProcessState::stopped) return std::nullopt;
  return number;
}

}  // namespace lockstep::mpi
