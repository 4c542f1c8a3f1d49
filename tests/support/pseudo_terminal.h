// A pseudo-terminal for tests, which can read what was written to it.
#pragma once

#include "sys/file_descriptor.h"

#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::test {

inline constexpr const char* no_terminals = "this system gives no pseudo-terminal (/dev/pts)";

// Returns the master side; empty if the system has no pseudo-terminals, as in a chroot without
// /dev/pts. ptsname() returns the path of the terminal.
[[nodiscard]] inline sys::FileDescriptor make_pseudo_terminal() {
  sys::FileDescriptor end(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const bool is_usable = end && ::grantpt(end.get()) == 0 && ::unlockpt(end.get()) == 0 &&
                         ::access(::ptsname(end.get()), R_OK | W_OK) == 0;
  if (!is_usable) end.reset();
  return end;
}

}  // namespace lockstep::test
