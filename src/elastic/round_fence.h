// RoundFence: decides which round of a run may write into a folder that several hosts share. Rank 0
// of a round writes "RUN ROUND" to OUT/.round. A process that finds another round there stops
// writing, for example rank 0 of an earlier round whose host was disconnected and is reachable
// again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

struct RoundOfRun {
  std::string run;  // unique name of the run
  std::int64_t round = 0;
};

class RoundFence {
 public:
  // `out` need not exist yet.
  RoundFence(const std::filesystem::path& out, RoundOfRun own);

  // Returns true if an earlier round of this run owns the folder, so that a lock in it belongs to
  // that round.
  [[nodiscard]] bool is_of_earlier_round() const;
  // Makes this round the owner of the folder. Throws PeerLost if a later round owns it, and
  // SystemError.
  void take();
  // Call before a file is renamed to its final name. Throws PeerLost if another round or run has
  // taken the folder or recreated it. Does nothing before take().
  void check() const;

 private:
  const std::filesystem::path file_;
  const RoundOfRun own_;
  bool is_taken_ = false;
};

}  // namespace lockstep
