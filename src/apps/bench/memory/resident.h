// How much memory this process has in the machine, as Linux counts it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::apps {

// Proportional set size: a page that n processes share counts 1/n in each, so sums over processes
// are what is really used.
struct Resident {
  std::int64_t pss = 0;
  std::int64_t anonymous = 0, shared = 0, files = 0;  // its parts
};

// What /proc/self/smaps_rollup says. BadInput when it has no such lines.
[[nodiscard]] Resident parse_resident(std::string_view smaps_rollup);
[[nodiscard]] Resident resident_now();

}  // namespace lockstep::apps
