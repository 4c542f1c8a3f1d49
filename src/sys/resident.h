// How much memory the process has, as the system counts it.
#pragma once

#include <cstdint>

namespace lockstep::sys {

// Bytes in memory now, where a page that several processes have counts in equal parts for each
// (PSS of /proc/self/smaps_rollup); where the system does not tell, without that division. Takes
// the system 10 ms and more in a process with LibTorch. 0 when nothing can be read.
[[nodiscard]] std::int64_t proportional_bytes();

}  // namespace lockstep::sys
