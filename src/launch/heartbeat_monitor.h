// Tells a process that is stopped from one that lives: its heartbeat does not change. Pure: it is
// told what was found, and the time.
#pragma once

#include <lockstep/base/deadline.h>

#include <optional>
#include <string>

namespace lockstep::launch {

class HeartbeatMonitor {
 public:
  using Time = Clock::time_point;

  // A process whose heartbeat has not changed for `lost_after` is lost. Looks that are further
  // apart than `longest_pause` say nothing about it: the observer itself was stopped.
  HeartbeatMonitor(Duration lost_after, Duration longest_pause)
      : lost_after_(lost_after), longest_pause_(longest_pause) {}

  void note(const std::string& heartbeat, Time now);
  // True once, unless the heartbeat changes again afterwards. False before the first note().
  [[nodiscard]] bool lost(Time now);

 private:
  std::string heartbeat_;
  std::optional<Time> changed_at_;  // nothing: not looked at yet
  bool lost_ = false;
  std::optional<Time> last_look_;
  Duration lost_after_, longest_pause_;
};

}  // namespace lockstep::launch
