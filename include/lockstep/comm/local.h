// Ranks as threads of one process: for tests, for tools, and for data parallelism over the devices
// of one process.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <functional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// Returns `size` handles of one group, one per thread that will be a rank. A rank leaves when its
// last handle is destroyed; peers that still need it get PeerLost.
[[nodiscard]] std::vector<Group> local_groups(int size,
                                              Duration timeout = std::chrono::minutes(10));

// Runs rank(group) in `size` threads, each with one intra-op thread, and joins them. Rethrows the
// first exception (by time) after all threads have ended.
void run_as_threads(int size, const std::function<void(Group)>& rank,
                    Duration timeout = std::chrono::minutes(10));

}  // namespace lockstep

#pragma GCC visibility pop
