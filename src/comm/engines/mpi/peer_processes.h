// The processes of other ranks, where they are on this host: what has become of them.
#pragma once

#include "sys/file_descriptor.h"

#include <map>
#include <optional>
#include <vector>

namespace lockstep::mpi {

class PeerProcesses {
 public:
  struct Ended {
    int rank;
    int process;
  };

  // Watches the process of a rank from now on.
  void watch(int rank, int process);
  [[nodiscard]] bool watches(int rank) const { return processes_.contains(rank); }
  // Those that have ended since it was last asked; they are watched no more.
  [[nodiscard]] std::vector<Ended> take_ended();
  // The rank's process, when it is stopped.
  [[nodiscard]] std::optional<int> stopped(int rank) const;

 private:
  struct Process {
    int number = 0;
    sys::FileDescriptor end;  // readable when it has ended
  };
  std::map<int, Process> processes_;
};

}  // namespace lockstep::mpi
