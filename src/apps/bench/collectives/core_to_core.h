// How long it takes until one core sees what another has stored.
#pragma once

namespace lockstep::apps {

// Median seconds between two cores that this process may use, of its own two threads; 0 when there
// is only one. Blocks for some milliseconds.
[[nodiscard]] double core_to_core_seconds();

}  // namespace lockstep::apps
