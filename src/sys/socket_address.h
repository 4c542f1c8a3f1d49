// Where a socket listens or connects to: a TCP host and port, a path, or an abstract name (Linux:
// no file, gone with its last socket). A value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

namespace lockstep::sys {

class SocketAddress {
 public:
  // A name or a numeric address, IPv4 or IPv6, also in brackets as in "[fe80::1%eth0]". Looks names
  // up, which may block for seconds. BadInput when there is no such host, or for a link-local
  // address without its interface.
  [[nodiscard]] static SocketAddress tcp(std::string_view host, std::uint16_t port);
  // All addresses of the host, in the system's order. BadInput as tcp().
  [[nodiscard]] static std::vector<SocketAddress> all_tcp(std::string_view host,
                                                          std::uint16_t port);
  // abstract() where `host` is "@NAME", else tcp().
  [[nodiscard]] static SocketAddress of(std::string_view host, std::uint16_t port);
  // At most 107 bytes. BadInput when it is longer.
  [[nodiscard]] static SocketAddress path(std::string_view path);
  [[nodiscard]] static SocketAddress abstract(std::string_view name);
  // The one a socket is bound to.
  [[nodiscard]] static SocketAddress local(int socket);
  // The one it is connected to. PeerLost when the peer has gone already.
  [[nodiscard]] static SocketAddress peer(int socket);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size() const { return size_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  // 0 for unix sockets.
  [[nodiscard]] std::uint16_t port() const;
  // True for 127.0.0.0/8, ::1 and unix sockets: only this host can connect.
  [[nodiscard]] bool is_loopback() const;
  // The address alone, without its port or brackets, link-local ones with their interface; of unix
  // sockets what text() says.
  [[nodiscard]] std::string host() const;
  // "127.0.0.1:1234", "[::1]:1234", "/run/x.sock", "@name".
  [[nodiscard]] std::string text() const;

 private:
  static SocketAddress unix_socket(std::string_view name, bool abstract);

  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// By which address others reach this machine.

// True for "localhost" and numeric loopback addresses: names that mean another machine on each.
[[nodiscard]] bool is_loopback_name(std::string_view host);

// This machine's address as `peer`, a host, sees it: that of the interface towards it. Where `peer`
// is this machine's own name, which many systems resolve to a loopback address (Debian: 127.0.1.1),
// it is one that others can reach, if there is one. Looks names up, which may block for seconds.
[[nodiscard]] std::string address_towards(const std::string& peer);

// The numeric IPv4 addresses of this machine's interfaces that are up, the loopback ones last.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace lockstep::sys
