// How node 0 tells an agent that is stopped from one that has nothing to say. Pure: it is told what
// it sees, and the time.
#pragma once

#include <lockstep/base/deadline.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

class Beats {
 public:
  using Time = Clock::time_point;

  // A node whose beat has not changed for `lost_after` is lost. Looks that are further apart than
  // `longest_pause` say nothing about the others: this process itself was stopped.
  Beats(int nodes, Duration lost_after, Duration longest_pause)
      : heard_(static_cast<std::size_t>(nodes)),
        lost_after_(lost_after),
        longest_pause_(longest_pause) {}

  // What was found as the beat of a node.
  void note(int node, const std::string& beat, Time now);
  // The first node that is lost, once.
  [[nodiscard]] std::optional<int> lost(Time now);

 private:
  struct Heard {
    std::string beat;
    std::optional<Time> at;  // nothing: not looked at yet
    bool lost = false;
  };
  std::vector<Heard> heard_;
  std::optional<Time> last_look_;
  Duration lost_after_, longest_pause_;
};

}  // namespace lockstep::launch
