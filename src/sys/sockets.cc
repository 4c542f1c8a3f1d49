#include "sys/sockets.h"

#include "base/check.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace lockstep::sys {
namespace {

FileDescriptor make_socket(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw SystemError("making a socket for " + address.text(), errno);
  return socket;
}

// Disables Nagle's algorithm for small messages. Fails on unix sockets, which do not need it.
void send_without_delay(int socket) {
  int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool is_loss(int error) {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == ENOTCONN;
}

// Returns true for errors that may go away: the network may come up, or the peer may begin to
// listen. The loopback interface, in contrast, is up from the beginning or never.
bool may_answer_later(int error, const SocketAddress& address) {
  if (address.is_loopback() && (error == EHOSTUNREACH || error == ENETUNREACH)) return false;
  return error == ECONNREFUSED || error == ENOENT || error == ECONNRESET || error == EAGAIN ||
         error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
}

[[noreturn]] void throw_transfer_error(const char* what, int error) {
  if (is_loss(error))
    throw PeerLost(std::string(what) + ": the other side has closed the connection");
  throw SystemError(what, error);
}

// Starts to connect and waits for the result: 0 or an error number.
int connect_once(int socket, const SocketAddress& address, Deadline deadline) {
  if (::connect(socket, address.get(), address.size()) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!wait_ready(socket, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// Detects a self-connection: a TCP socket that connects to a free local port can get that same port
// and connect to itself.
bool met_itself(int socket, const SocketAddress& address) {
  return address.port() != 0 && SocketAddress::local(socket).text() == address.text();
}

[[noreturn]] void throw_unreachable(const SocketAddress& address, int error) {
  const bool is_without_loopback = address.is_loopback() && error == ENETUNREACH;
  throw SystemError("connecting to " + address.text() +
                        (is_without_loopback ? " (is the loopback interface up?)" : ""),
                    error);
}

struct Attempt {
  FileDescriptor socket;
  int error = 0;
};

Attempt attempt(const SocketAddress& address, Deadline deadline) {
  Attempt result{make_socket(address)};
  result.error = connect_once(result.socket.get(), address, deadline);
  if (result.error == 0 && met_itself(result.socket.get(), address)) result.error = ECONNREFUSED;
  if (result.error != 0) result.socket.reset();
  if (result.socket) send_without_delay(result.socket.get());
  return result;
}

// Buffer for the control message with the descriptors.
struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * max_passed_descriptors)];
};

// Takes ownership of all descriptors in the message, also of unexpected ones, so that none leaks.
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

// Calls `transfer` until it moves bytes; returns the number of bytes.
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
      throw Timeout(std::string(what) + ": timed out waiting for the other side");
  }
}

}  // namespace

bool wait_ready(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  for (;;) {
    int ready = ::poll(&entry, 1, deadline.poll_milliseconds());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw SystemError("poll", errno);
    if (deadline.passed()) return false;
  }
}

bool Retries::wait() {
  if (is_last_) return false;
  if (std::exchange(waited_, true))
    std::this_thread::sleep_for(std::min<Duration>(std::chrono::milliseconds(1), deadline_.left()));
  if (!wait_ready(socket_, events_, deadline_)) return false;
  is_last_ = deadline_.passed();
  return true;
}

FileDescriptor listen_on(const SocketAddress& address, int backlog) {
  FileDescriptor socket = make_socket(address);
  int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on,
               sizeof(on));  // allow reuse while old connections are in TIME_WAIT
  const int off = 0;  // "::" also takes connections of IPv4; fails on sockets of other families
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(socket.get(), address.get(), address.size()) != 0 ||
      ::listen(socket.get(), backlog) != 0) {
    if (errno == EADDRINUSE) {
      throw BadInput("listening on " + address.text() + ": " +
                     (address.port() != 0 ? "the port" : "the name") +
                     " is in use by another process");
    }
    throw SystemError("listening on " + address.text(), errno);
  }
  return socket;
}

FileDescriptor accept_now(int listener) {
  for (;;) {
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      send_without_delay(socket.get());
      return socket;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno != EINTR && errno != ECONNABORTED) throw SystemError("accepting a connection", errno);
  }
}

FileDescriptor try_connect(const SocketAddress& address, Deadline deadline) {
  Attempt result = attempt(address, deadline);
  if (result.error != 0 && !may_answer_later(result.error, address))
    throw_unreachable(address, result.error);
  return std::move(result.socket);
}

FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    Attempt result = attempt(address, deadline);
    if (result.socket) return std::move(result.socket);
    if (!may_answer_later(result.error, address)) throw_unreachable(address, result.error);
    if (deadline.passed())
      throw Timeout("connecting to " + address.text() + ": timed out (" +
                    std::generic_category().message(result.error) + ")");
    std::this_thread::sleep_for(std::min<Duration>(pause, deadline.left()));
    pause = std::min(2 * pause, std::chrono::milliseconds(200));
  }
}

void keep_alive(int socket, Duration limit) {
  constexpr Duration longest = std::chrono::hours(9);  // the kernel refuses more than 32767 s
  limit = std::min(limit, longest);
  int seconds =
      std::max(3, static_cast<int>(std::chrono::ceil<std::chrono::seconds>(limit).count()));
  int on = 1, probes = 3, probe_seconds = std::max(1, seconds / 5);
  int idle_seconds = seconds - probes * probe_seconds + (seconds == 3);
  unsigned unanswered_ms = 1000u * static_cast<unsigned>(seconds);  // also for unacknowledged data
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms));
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &probe_seconds, sizeof(probe_seconds));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

std::optional<std::size_t> send_now(int socket, std::span<const std::byte> bytes) {
  for (;;) {
    ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno != EINTR) throw_transfer_error("sending", errno);
  }
}

std::optional<std::size_t> receive_now(int socket, std::span<std::byte> bytes) {
  for (;;) {
    ssize_t count = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (count > 0 || (count == 0 && bytes.empty())) return static_cast<std::size_t>(count);
    if (count == 0) throw PeerLost("receiving: the other side has closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno != EINTR) throw_transfer_error("receiving", errno);
  }
}

void send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    std::optional<std::size_t> count;
    for (Retries retries(socket, POLLOUT, deadline); !(count = send_now(socket, bytes));)
      if (!retries.wait())
        throw Timeout("sending: timed out; bytes left to send: " + std::to_string(bytes.size()));
    bytes = bytes.subspan(*count);
  }
}

void receive_exact(int socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    std::optional<std::size_t> count;
    for (Retries retries(socket, POLLIN, deadline); !(count = receive_now(socket, bytes));)
      if (!retries.wait())
        throw Timeout("receiving: timed out; bytes left to receive: " +
                      std::to_string(bytes.size()));
    bytes = bytes.subspan(*count);
  }
}

PeerCredentials peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    throw SystemError("reading the peer's process and user", errno);
  }
  return {credentials.pid, credentials.uid, credentials.gid};
}

void send_descriptors(int socket, std::span<const std::byte> bytes,
                      std::span<const int> descriptors, Deadline deadline) {
  check(!bytes.empty(),
        "send_descriptors: expected at least one byte to send with them, found none");
  check(descriptors.size() <= max_passed_descriptors,
        "send_descriptors: expected at most {} descriptors, found {}", max_passed_descriptors,
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
  check(!bytes.empty(), "receive_descriptors: expected room for at least one byte, found none");
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
