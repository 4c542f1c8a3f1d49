// poll() without a timeout that cannot turn into a busy loop.
#pragma once

#include <span>

#include <poll.h>

namespace lockstep::sys {

// Blocks until an entry has events, as poll() does. Where poll() refuses (more entries than a
// lowered limit of open files, no memory) each entry is asked by itself, every few milliseconds.
void wait_for_events(std::span<pollfd> entries);

}  // namespace lockstep::sys
