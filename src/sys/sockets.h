// Stream sockets with deadlines. Every socket made here is non-blocking and close-on-exec; calls
// wait in poll() until their deadline. Throws Timeout if the deadline passes, PeerLost if the other
// side closed or reset the connection, otherwise SystemError. After an error in the middle of a
// message, close the connection.
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

// Listens on `address`. Throws BadInput if the port or name is in use. Port 0 picks a free one: see
// SocketAddress::local.
[[nodiscard]] FileDescriptor listen_on(const SocketAddress& address, int backlog = 1024);

// Accepts a pending connection; returns an empty descriptor if none is pending.
[[nodiscard]] FileDescriptor accept_now(int listener);

// Retries until a server listens at the address, because ranks may start before their server.
[[nodiscard]] FileDescriptor connect_to(const SocketAddress& address, Deadline deadline);
// Tries once; returns an empty descriptor if no server listens at the address.
[[nodiscard]] FileDescriptor try_connect(const SocketAddress& address, Deadline deadline);

// Enables TCP keepalive: if the peer's host vanishes, calls throw PeerLost after about `limit`
// (whole seconds, from 3 s to 9 hours). A stopped process still counts as alive. No effect on other
// sockets.
void keep_alive(int socket, Duration limit = std::chrono::seconds(25));

void send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
void receive_exact(int socket, std::span<std::byte> bytes, Deadline deadline);

// Transfers as much as possible without waiting. Returns the number of bytes moved, or std::nullopt
// if the call would block. Throws PeerLost at the end of the stream (receive) or if the peer does
// not read any more (send).
[[nodiscard]] std::optional<std::size_t> send_now(int socket, std::span<const std::byte> bytes);
[[nodiscard]] std::optional<std::size_t> receive_now(int socket, std::span<std::byte> bytes);

// Waits until poll() reports one of `events` (POLLIN, POLLOUT) or an error on the socket. Returns
// false if the deadline passed.
[[nodiscard]] bool wait_ready(int socket, short events, Deadline deadline);

// Paces the attempts of one transfer that fail with EAGAIN. poll() may report that the socket is
// ready although the kernel refuses each attempt (a shortage, a filter of system calls): such
// attempts are delayed, and end at the deadline like all others.
class Retries {
 public:
  Retries(int socket, short events, Deadline deadline)
      : socket_(socket), events_(events), deadline_(deadline) {}
  // Blocks until the socket is ready. Returns false if the deadline passed and no attempt is left.
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

// Features of unix sockets between processes of one host: credentials of the peer, and passing of
// descriptors.

// The credentials of the peer at the time of connect() or listen().
struct PeerCredentials {
  pid_t pid = 0;  // 0 if the peer's pid namespace is not visible here
  uid_t uid = 0;
  gid_t gid = 0;
};
[[nodiscard]] PeerCredentials peer_credentials(int socket);

inline constexpr std::size_t max_passed_descriptors = 64;

// Sends one message of at least one byte and up to 64 descriptors, which also stay open here.
// Throws as in sockets.h.
void send_descriptors(int socket, std::span<const std::byte> bytes,
                      std::span<const int> descriptors, Deadline deadline);
// Receives exactly `bytes` and exactly `count` descriptors (close-on-exec). Throws BadInput if the
// peer sent another number of descriptors.
[[nodiscard]] std::vector<FileDescriptor> receive_descriptors(int socket,
                                                              std::span<std::byte> bytes,
                                                              std::size_t count, Deadline deadline);

}  // namespace lockstep::sys
