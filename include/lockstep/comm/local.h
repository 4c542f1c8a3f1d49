// Ranks as threads of one process: for tests, for tools, and for data parallelism over the devices
// of one process.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <functional>
#include <vector>

namespace lockstep {

// `size` handles of one group, one for each thread that will be a rank. A rank whose handles are
// all gone has left: peers that still need it get PeerLost.
[[nodiscard]] std::vector<Group> local_groups(int size,
                                              Duration timeout = std::chrono::minutes(10));

// Runs rank(group) in `size` threads, each with one intra-op thread, and joins them. The first
// exception (by time) is thrown again here after all have ended.
void run_as_threads(int size, const std::function<void(Group)>& rank,
                    Duration timeout = std::chrono::minutes(10));

}  // namespace lockstep
