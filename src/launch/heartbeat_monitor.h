// How node 0 tells an agent that is stopped from one that has nothing to say. Pure: it is told what
// it sees, and the time.
#pragma once

#include <lockstep/base/deadline.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

class HeartbeatMonitor {
 public:
  using Time = Clock::time_point;

  // A node whose heartbeat has not changed for `lost_after` is lost. Looks that are further apart
  // than `longest_pause` say nothing about the others: this process itself was stopped.
  HeartbeatMonitor(int nodes, Duration lost_after, Duration longest_pause)
      : heard_(static_cast<std::size_t>(nodes)),
        lost_after_(lost_after),
        longest_pause_(longest_pause) {}

  // What was found as the heartbeat of a node.
  void note(int node, const std::string& heartbeat, Time now);
  // The first node that is lost: once, unless its heartbeat changes again afterwards.
  [[nodiscard]] std::optional<int> lost(Time now);

 private:
  struct Heard {
    std::string heartbeat;
    std::optional<Time> at;  // nothing: not looked at yet
    bool lost = false;
  };
  std::vector<Heard> heard_;
  std::optional<Time> last_look_;
  Duration lost_after_, longest_pause_;
};

}  // namespace lockstep::launch
