// RoundFence: which round of a run writes into a folder that several hosts see. Rank 0 of a round
// puts "RUN ROUND" into OUT/.round; a process that finds another one there, such as rank 0 of an
// earlier round on a host that was cut off and comes back, writes nothing any more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

struct RoundOfRun {
  std::string run;  // its name, which no other run has
  std::int64_t round = 0;
};

class RoundFence {
 public:
  // `out` need not exist yet.
  RoundFence(const std::filesystem::path& out, RoundOfRun own);

  // Whether an earlier round of this run has the folder, so that a lock in it is that one's.
  [[nodiscard]] bool is_of_earlier_round() const;
  // From now on the folder is this round's. PeerLost where it is a later one's; SystemError.
  void take();
  // Before each file gets its name: PeerLost where another round or run has taken the folder, or
  // has made it anew. Nothing before take().
  void check() const;

 private:
  const std::filesystem::path file_;
  const RoundOfRun own_;
  bool is_taken_ = false;
};

}  // namespace lockstep
