#include "launch/heartbeat_monitor.h"

namespace lockstep::launch {

void HeartbeatMonitor::note(const std::string& heartbeat, Time now) {
  if (changed_at_ && heartbeat_ == heartbeat) return;
  heartbeat_ = heartbeat;
  changed_at_ = now;
  lost_ = false;
}

bool HeartbeatMonitor::lost(Time now) {
  const bool was_stopped = last_look_ && now - *last_look_ > longest_pause_;
  if (was_stopped && changed_at_) changed_at_ = now;
  last_look_ = now;
  if (lost_ || !changed_at_ || now - *changed_at_ < lost_after_) return false;
  return lost_ = true;
}

}  // namespace lockstep::launch
