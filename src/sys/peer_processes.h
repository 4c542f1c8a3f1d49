// The processes of other ranks on this host, and whether they have ended. Not synchronised.
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
  // Starts to watch the process of a rank, given by its identity (process_info.h). Ignores
  // processes of other hosts.
  void watch(int rank, std::string_view identity);
  [[nodiscard]] bool watches(int rank) const { return processes_.contains(rank); }
  void forget(int rank) { processes_.erase(rank); }

  // Returns the ranks whose processes have ended, in ascending order.
  [[nodiscard]] std::vector<int> ended() const;
  [[nodiscard]] bool has_ended(int rank) const;
  // "4711"; empty for a rank that is not watched.
  [[nodiscard]] std::string pid(int rank) const;

 private:
  struct Process {
    std::string identity;
    // readable once the process has ended; empty if it had ended before it was watched
    FileDescriptor end;
  };
  [[nodiscard]] static bool has_ended(const Process& process);

  std::map<int, Process> processes_;
};

}  // namespace lockstep::sys
