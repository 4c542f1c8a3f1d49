// Detects a stopped process: its heartbeat does not change. Pure: the caller passes the observed
// heartbeat and the time.
#pragma once

#include <lockstep/base/deadline.h>

#include <optional>
#include <string>

namespace lockstep::launch {

class HeartbeatMonitor {
 public:
  using Time = Clock::time_point;

  // A process whose heartbeat has not changed for `lost_after` is lost. If two observations are
  // more than `longest_pause` apart, they do not count: the observer itself was stopped.
  HeartbeatMonitor(Duration lost_after, Duration longest_pause)
      : lost_after_(lost_after), longest_pause_(longest_pause) {}

  void note(const std::string& heartbeat, Time now) {
    if (changed_at_ && heartbeat_ == heartbeat) return;
    heartbeat_ = heartbeat;
    changed_at_ = now;
    lost_ = false;
  }
  // Returns true once, and again only after the heartbeat has changed. Returns false before the
  // first note().
  [[nodiscard]] bool lost(Time now) {
    const bool was_stopped = last_look_ && now - *last_look_ > longest_pause_;
    if (was_stopped && changed_at_) changed_at_ = now;
    last_look_ = now;
    if (lost_ || !changed_at_ || now - *changed_at_ < lost_after_) return false;
    return lost_ = true;
  }

 private:
  std::string heartbeat_;
  std::optional<Time> changed_at_;  // std::nullopt before the first note()
  bool lost_ = false;
  std::optional<Time> last_look_;
  Duration lost_after_, longest_pause_;
};

}  // namespace lockstep::launch
