// The memory of this process as Linux counts it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::bench {

// Proportional set size: a page that n processes share counts 1/n in each of them, so the sum over
// processes is the memory in use.
struct Resident {
  std::int64_t pss = 0;
  std::int64_t anonymous = 0, shared = 0, files = 0;  // its parts
};

// Parses /proc/self/smaps_rollup. Throws BadInput if lines are missing.
[[nodiscard]] Resident parse_resident(std::string_view smaps_rollup);
[[nodiscard]] Resident resident_now();

}  // namespace lockstep::bench
