// For system calls that some kernels end at a signal, with EINTR, and then undo, such as
// fallocate() on tmpfs.
#pragma once

#include "sys/signals.h"

#include <cerrno>

namespace lockstep::sys {

// Returns what call() returns: 0 or an error number. Blocks signals during the call, because a
// timer could keep it from ever ending, and repeats it after a stop, which cannot be blocked.
template <class Call>
int whole_call(Call call) {
  const BlockedSignals quiet;
  for (;;)
    if (const int error = call(); error != EINTR) return error;
}

}  // namespace lockstep::sys
