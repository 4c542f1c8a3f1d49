// The address of a socket: a TCP host and port, a path, or an abstract name (Linux: no file,
// removed with its last socket). A value type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include <lockstep/base/deadline.h>

namespace lockstep::sys {

// A host, which may be a name, and a port.
struct HostPort {
  std::string host;  // without brackets
  std::uint16_t port = 0;

  // "host-a:29400", "[fe80::1]:29400"
  [[nodiscard]] std::string text() const;
};

// Reads the form of text(). Returns std::nullopt for another text. Resolves no names.
[[nodiscard]] std::optional<HostPort> parse_host_port(std::string_view text);

class SocketAddress {
 public:
  // `host` is a name or a numeric address, IPv4 or IPv6, with or without brackets as in
  // "[fe80::1%eth0]". Resolves names, which may block for seconds. Throws BadInput if the host is
  // unknown, or for a link-local address without its interface.
  //
  // Looks an unknown name up again until the deadline and for at most 10 s: a cluster may publish
  // the name of a host after its job has started, and a name may be misspelled. Without a deadline,
  // looks it up once.
  [[nodiscard]] static SocketAddress tcp(std::string_view host, std::uint16_t port,
                                         Deadline deadline = at_once());
  // Returns all addresses of the host in the system's order. Throws BadInput as tcp() does.
  [[nodiscard]] static std::vector<SocketAddress> all_tcp(std::string_view host, std::uint16_t port,
                                                          Deadline deadline = at_once());
  // Returns abstract() if `host` is "@NAME", otherwise tcp().
  [[nodiscard]] static SocketAddress of(std::string_view host, std::uint16_t port,
                                        Deadline deadline = at_once());
  // At most 107 bytes; throws BadInput if the name is longer.
  [[nodiscard]] static SocketAddress path(std::string_view path);
  [[nodiscard]] static SocketAddress abstract(std::string_view name);
  // Returns the address to which the socket is bound.
  [[nodiscard]] static SocketAddress local(int socket);
  // Returns the address to which the socket is connected. Throws PeerLost if the peer has already
  // closed the connection.
  [[nodiscard]] static SocketAddress peer(int socket);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size() const { return size_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  // Returns the port; 0 for unix sockets.
  [[nodiscard]] std::uint16_t port() const;
  // Returns true for 127.0.0.0/8, ::1 and unix sockets: only this host can connect.
  [[nodiscard]] bool is_loopback() const;
  // Returns the address without its port and brackets; link-local addresses include their
  // interface. For unix sockets returns text().
  [[nodiscard]] std::string host() const;
  // Returns "127.0.0.1:1234", "[::1]:1234", "/run/x.sock" or "@name".
  [[nodiscard]] std::string text() const;

 private:
  static Deadline at_once() { return Deadline::after(Duration::zero()); }
  // Appends the addresses of a host; returns 0 or an error of getaddrinfo().
  static int look_up(std::string_view host, std::uint16_t port,
                     std::vector<SocketAddress>& addresses);
  static SocketAddress unix_socket(std::string_view name, bool abstract);

  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// The address at which other hosts can reach this host.

// Returns true for "localhost" and numeric loopback addresses, which mean a different host on each
// host.
[[nodiscard]] bool is_loopback_name(std::string_view host);

// Returns this host's address as the host `peer` sees it: the address of the interface towards
// `peer`. If `peer` is this host's own name, which many systems resolve to a loopback address
// (Debian: 127.0.1.1), returns an address that other hosts can reach, if there is one. Resolves
// names, which may block for seconds.
[[nodiscard]] std::string address_towards(const std::string& peer);

// Returns the numeric addresses of this host's interfaces that are up, without link-local ones:
// IPv4 before IPv6, loopback addresses last.
[[nodiscard]] std::vector<std::string> own_addresses();

// Returns "::", at which listen_on() takes connections to all addresses of this host, IPv4 and
// IPv6. Returns "0.0.0.0" if the kernel has no IPv6.
[[nodiscard]] std::string all_addresses();

}  // namespace lockstep::sys
