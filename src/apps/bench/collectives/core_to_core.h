// The latency with which one core sees a store of another core.
#pragma once

namespace lockstep::apps {

// Returns the median latency in seconds between two cores that this process may use, measured with
// two threads; 0 if there is only one core. Blocks for some milliseconds.
[[nodiscard]] double core_to_core_seconds();

}  // namespace lockstep::apps
