// poll() without a timeout that cannot become a busy loop.
#pragma once

#include <span>

#include <poll.h>

namespace lockstep::sys {

// Blocks until an entry has events, as poll() does. If poll() fails (more entries than a lowered
// limit of open files, out of memory), polls each entry separately every few milliseconds.
void wait_for_events(std::span<pollfd> entries);

}  // namespace lockstep::sys
