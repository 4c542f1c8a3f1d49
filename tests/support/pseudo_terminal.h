// A terminal for tests: what is written to it can be read again.
#pragma once

#include "sys/file_descriptor.h"

#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::test {

inline constexpr const char* no_terminals = "this system gives no pseudo-terminal (/dev/pts)";

// Its reading end; empty where the system gives none, as in a chroot without /dev/pts. The path of
// the terminal is ptsname() of it.
[[nodiscard]] inline sys::FileDescriptor make_pseudo_terminal() {
  sys::FileDescriptor end(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const bool is_usable = end && ::grantpt(end.get()) == 0 && ::unlockpt(end.get()) == 0 &&
                         ::access(::ptsname(end.get()), R_OK | W_OK) == 0;
  if (!is_usable) end.reset();
  return end;
}

}  // namespace lockstep::test
