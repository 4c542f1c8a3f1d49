// The processes of other ranks, where they are on this machine: what has become of them. Not
// synchronised.
#pragma once

#include "sys/file_descriptor.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sys {

class PeerProcesses {
 public:
  // Watches the process of a rank from now on, by its identity (process_info.h). Those of other
  // machines are not watched.
  void watch(int rank, std::string_view identity);
  [[nodiscard]] bool watches(int rank) const { return processes_.contains(rank); }
  void forget(int rank) { processes_.erase(rank); }

  // The ranks whose processes have ended, in order.
  [[nodiscard]] std::vector<int> ended() const;
  [[nodiscard]] bool has_ended(int rank) const;
  // Whether the process of a rank that is watched is stopped.
  [[nodiscard]] bool is_stopped(int rank) const;
  // "4711"; empty for a rank that is not watched.
  [[nodiscard]] std::string pid(int rank) const;

 private:
  struct Process {
    std::string identity;
    FileDescriptor end;  // readable when it has ended; none where it had when it was first watched
  };
  [[nodiscard]] static bool has_ended(const Process& process);

  std::map<int, Process> processes_;
};

}  // namespace lockstep::sys
