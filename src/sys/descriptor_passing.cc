#include "sys/descriptor_passing.h"

#include "base/check.h"
#include "sys/sockets.h"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

namespace lockstep::sys {
namespace {

// Room for the control message that carries the descriptors.
struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * max_passed_descriptors)];
};

// Owns every descriptor in the message, wanted or not, so that none is left open by mistake.
std::vector<FileDescriptor> take_descriptors(msghdr& message) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      taken.emplace_back(number);
    }
  }
  return taken;
}

// Calls `transfer` until it moves bytes; returns how many.
template <typename Transfer>
std::size_t when_ready(int socket, short events, Deadline deadline, const char* what,
                       Transfer transfer) {
  for (Retries retries(socket, events, deadline);;) {
    ssize_t count = transfer();
    if (count > 0) return static_cast<std::size_t>(count);
    bool closed = count == 0 || errno == ECONNRESET || errno == EPIPE;
    if (closed) throw PeerLost(std::string(what) + ": the other side has closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) throw SystemError(what, errno);
    if (!retries.wait())
      throw Timeout(std::string(what) + ": the other side did not follow in time");
  }
}

}  // namespace

PeerCredentials peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    throw SystemError("asking who the peer is", errno);
  }
  return {credentials.pid, credentials.uid, credentials.gid};
}

void send_descriptors(int socket, std::span<const std::byte> bytes,
                      std::span<const int> descriptors, Deadline deadline) {
  check(!bytes.empty(), "send_descriptors: descriptors travel with at least one byte");
  check(descriptors.size() <= max_passed_descriptors,
        "send_descriptors: at most {} at once, found {}", max_passed_descriptors,
        descriptors.size());
  ControlBuffer control{};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  std::size_t sent = when_ready(socket, POLLOUT, deadline, "handing over descriptors",
                                [&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL); });
  send_all(socket, bytes.subspan(sent), deadline);
}

std::vector<FileDescriptor> receive_descriptors(int socket, std::span<std::byte> bytes,
                                                std::size_t count, Deadline deadline) {
  check(!bytes.empty(), "receive_descriptors: descriptors travel with at least one byte");
  ControlBuffer control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  std::size_t received = when_ready(socket, POLLIN, deadline, "receiving descriptors", [&] {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  });
  std::vector<FileDescriptor> taken = take_descriptors(message);
  bool complete = (message.msg_flags & MSG_CTRUNC) == 0 && taken.size() == count;
  check_input(complete, "receiving descriptors: expected {}, found {}", count, taken.size());
  receive_exact(socket, bytes.subspan(received), deadline);
  return taken;
}

}  // namespace lockstep::sys
