// Stream sockets that never block longer than they may. Every socket made here is non-blocking and
// closed on exec; calls wait in poll() until their deadline. Errors: Timeout when it passes,
// PeerLost when the other side closed or reset, SystemError else. A half-sent message is lost with
// its connection: after an error, close.
#pragma once

#include "sys/file_descriptor.h"
#include "sys/socket_address.h"

#include <lockstep/base/deadline.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep::sys {

// BadInput when the port or name is in use. Port 0 takes a free one: see SocketAddress::local.
[[nodiscard]] FileDescriptor listen_on(const SocketAddress& address, int backlog = 1024);

// Waits for a peer to connect.
[[nodiscard]] FileDescriptor accept_one(int listener, Deadline deadline);
// Empty if no connection waits to be accepted.
[[nodiscard]] FileDescriptor accept_now(int listener);

// Tries until a server listens there: ranks may start before their server.
[[nodiscard]] FileDescriptor connect_to(const SocketAddress& address, Deadline deadline);
// One try; nothing when nobody listens there.
[[nodiscard]] FileDescriptor try_connect(const SocketAddress& address, Deadline deadline);

// Has the kernel ask a silent peer whether it is still there: a machine that vanished is PeerLost
// after about `limit` (whole seconds, at least 3). A process that is only stopped is still there.
// For TCP; no effect elsewhere.
void keep_alive(int socket, Duration limit = std::chrono::seconds(25));

// Two connected sockets of this host.
[[nodiscard]] std::pair<FileDescriptor, FileDescriptor> socket_pair();

void send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
void receive_exact(int socket, std::span<std::byte> bytes, Deadline deadline);

// What can be done without waiting: the number of bytes moved, nothing when it would block, and
// PeerLost at the end of the stream (receive) or when nobody reads (send).
[[nodiscard]] std::optional<std::size_t> send_now(int socket, std::span<const std::byte> bytes);
[[nodiscard]] std::optional<std::size_t> receive_now(int socket, std::span<std::byte> bytes);

// Waits until poll() reports one of `events` (POLLIN, POLLOUT) or an error on the socket. False
// when the deadline passed.
[[nodiscard]] bool wait_ready(int socket, short events, Deadline deadline);

// Between attempts at one transfer that are refused with EAGAIN. poll() may report that the socket
// is ready although the kernel refuses each attempt (a shortage, a filter of system calls): these
// are paced, and end with the deadline like all others.
class Retries {
 public:
  Retries(int socket, short events, Deadline deadline)
      : socket_(socket), events_(events), deadline_(deadline) {}
  // Blocks until the socket is ready. False when the deadline passed and no attempt is left.
  [[nodiscard]] bool wait();

 private:
  int socket_;
  short events_;
  Deadline deadline_;
  bool waited_ = false;
  bool is_last_ = false;
};

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What only processes of one host can do over a unix socket: learn who the peer is, and hand over
// open files.

// Who connected or listened, as the kernel noted it then.
struct PeerCredentials {
  pid_t pid = 0;  // 0 when the peer is in a pid namespace that this one cannot see
  uid_t uid = 0;
  gid_t gid = 0;
};
[[nodiscard]] PeerCredentials peer_credentials(int socket);

inline constexpr std::size_t max_passed_descriptors = 64;

// One message: at least one byte and up to 64 descriptors, which stay open here too. Errors as in
// sockets.h.
void send_descriptors(int socket, std::span<const std::byte> bytes,
                      std::span<const int> descriptors, Deadline deadline);
// Exactly `bytes` and exactly `count` descriptors (closed on exec). BadInput when the peer sent
// another number of them.
[[nodiscard]] std::vector<FileDescriptor> receive_descriptors(int socket,
                                                              std::span<std::byte> bytes,
                                                              std::size_t count, Deadline deadline);

}  // namespace lockstep::sys
