// Connected sockets of one process.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include "sys/file_descriptor.h"
#include "sys/sockets.h"

#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace lockstep::test {

// Waits for a peer to connect and accepts the connection.
[[nodiscard]] inline sys::FileDescriptor accept_one(int listener, Deadline deadline) {
  for (sys::Retries retries(listener, POLLIN, deadline);;) {
    if (sys::FileDescriptor socket = sys::accept_now(listener)) return socket;
    if (!retries.wait()) throw Timeout("no peer has connected");
  }
}

[[nodiscard]] inline std::pair<sys::FileDescriptor, sys::FileDescriptor> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
    throw SystemError("making a pair of sockets", errno);
  return {sys::FileDescriptor(ends[0]), sys::FileDescriptor(ends[1])};
}

}  // namespace lockstep::test
