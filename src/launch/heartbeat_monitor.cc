#include "launch/heartbeat_monitor.h"

namespace lockstep::launch {

void HeartbeatMonitor::note(int node, const std::string& heartbeat, Time now) {
  Heard& heard = heard_.at(static_cast<std::size_t>(node));
  if (heard.at && heard.heartbeat == heartbeat) return;
  heard = {.heartbeat = heartbeat, .at = now};
}

std::optional<int> HeartbeatMonitor::lost(Time now) {
  if (last_look_ && now - *last_look_ > longest_pause_)
    for (Heard& heard : heard_)
      if (heard.at) heard.at = now;
  last_look_ = now;
  for (std::size_t node = 0; node < heard_.size(); ++node) {
    Heard& heard = heard_[node];
    if (heard.lost || !heard.at || now - *heard.at < lost_after_) continue;
    heard.lost = true;
    return static_cast<int>(node);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
