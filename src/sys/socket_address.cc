#include "sys/socket_address.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

namespace lockstep::sys {
namespace {

constexpr auto until_known = std::chrono::seconds(10);
constexpr auto between_lookups = std::chrono::milliseconds(200);

std::string numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host;
}

struct OwnAddress {
  std::string text;
  sa_family_t family = AF_INET;
  bool is_loopback = false;
  bool is_link_local = false;
};

// Returns the addresses of the interfaces that are up.
std::vector<OwnAddress> addresses_of_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  std::vector<OwnAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0 || entry->ifa_addr == nullptr) continue;
    const auto family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const bool is_six = family == AF_INET6;
    const auto* six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    found.push_back(
        {.text = numeric(entry->ifa_addr, is_six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)),
         .family = family,
         .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
         .is_link_local = is_six && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)});
  }
  return found;
}

// Returns an address that is neither loopback nor link-local; IPv4 is preferred to IPv6.
std::string outward_address() {
  std::string six;
  for (const auto& address : addresses_of_interfaces()) {
    if (address.is_loopback || address.is_link_local) continue;
    if (address.family == AF_INET) return address.text;
    if (six.empty()) six = address.text;
  }
  return six;
}

}  // namespace

std::string HostPort::text() const {
  const bool is_six = host.find(':') != std::string::npos;
  return (is_six ? "[" + host + "]:" : host + ":") + std::to_string(port);
}

std::optional<HostPort> parse_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port = parse_integer(text.substr(colon + 1));
  if (host.empty() || !port || *port < 0 || *port > 65535) return std::nullopt;
  return HostPort{std::string(host), static_cast<std::uint16_t>(*port)};
}

int SocketAddress::look_up(std::string_view host, std::uint16_t port,
                           std::vector<SocketAddress>& addresses) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // localhost is always this host (RFC 6761), even without an entry in the hosts file.
  std::string name(host == "localhost" ? "127.0.0.1" : host);
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return error;
  ScopeExit free_list([&] { ::freeaddrinfo(found); });
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage_, entry->ai_addr, entry->ai_addrlen);
    address.size_ = entry->ai_addrlen;
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address.storage_);
    check_input(entry->ai_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) ||
                    six->sin6_scope_id != 0,
                "host '{}': a link-local address needs its interface, such as {}%eth0", host, name);
  }
  return 0;
}

std::vector<SocketAddress> SocketAddress::all_tcp(std::string_view host, std::uint16_t port,
                                                  Deadline deadline) {
  const Deadline known = Deadline::after(until_known).or_sooner(deadline);
  for (std::vector<SocketAddress> addresses;;) {
    const bool is_last = known.passed();  // a look-up may take long
    const int error = look_up(host, port, addresses);
    if (error == 0) return addresses;
    check_input(!is_last, "looking up host '{}': {}", host, ::gai_strerror(error));
    std::this_thread::sleep_for(std::min<Duration>(between_lookups, known.left()));
  }
}

SocketAddress SocketAddress::tcp(std::string_view host, std::uint16_t port, Deadline deadline) {
  const auto all = all_tcp(host, port, deadline);
  // If a host has both, servers listen on IPv4: "localhost" must mean the same on both sides.
  const auto four = std::ranges::find(all, AF_INET, &SocketAddress::family);
  return four == all.end() ? all.front() : *four;
}

SocketAddress SocketAddress::of(std::string_view host, std::uint16_t port, Deadline deadline) {
  return host.starts_with('@') ? abstract(host.substr(1)) : tcp(host, port, deadline);
}

SocketAddress SocketAddress::unix_socket(std::string_view name, bool abstract) {
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  std::size_t most = sizeof(unix_address.sun_path) - 1;
  check_input(!name.empty() && name.size() <= most,
              "socket '{}': expected a name of 1 to {} bytes, found {}", name, most, name.size());
  // An abstract name begins with a zero byte, and its length marks its end; a path ends with a zero
  // byte.
  std::memcpy(unix_address.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  SocketAddress address;
  std::memcpy(&address.storage_, &unix_address, sizeof(unix_address));
  address.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  return address;
}

SocketAddress SocketAddress::path(std::string_view path) { return unix_socket(path, false); }
SocketAddress SocketAddress::abstract(std::string_view name) { return unix_socket(name, true); }

SocketAddress SocketAddress::local(int socket) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) {
    throw SystemError("reading a socket's own address", errno);
  }
  return address;
}

SocketAddress SocketAddress::peer(int socket) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) == 0)
    return address;
  if (errno == ENOTCONN || errno == EINVAL)
    throw PeerLost("reading a peer's address: the peer has closed the connection");
  throw SystemError("reading a peer's address", errno);
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  if (family() == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  return family() == AF_UNIX;
}

std::string SocketAddress::host() const {
  if (family() == AF_UNIX) return text();
  return numeric(get(), size_);
}

std::string SocketAddress::text() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  if (family() == AF_INET6) return "[" + host() + "]:" + std::to_string(port());
  const char* name = reinterpret_cast<const sockaddr_un*>(&storage_)->sun_path;
  std::size_t length = size_ - offsetof(sockaddr_un, sun_path);
  if (length == 0) return "an unnamed socket";
  return name[0] == '\0' ? "@" + std::string(name + 1, length - 1)
                         : std::string(name, ::strnlen(name, length));
}

bool is_loopback_name(std::string_view host) {
  const std::string name(host);
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, name.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, name.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return name == "localhost";
}

std::string address_towards(const std::string& peer) {
  std::vector<SocketAddress> all = SocketAddress::all_tcp(peer, 9);
  std::ranges::stable_partition(all, [](const auto& one) { return one.family() == AF_INET; });
  int error = 0;  // of the first address; a host may have a route to another one only
  for (const SocketAddress& address : all) {
    // Connecting a datagram socket sends no packet; it only selects the interface.
    const FileDescriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), address.get(), address.size()) != 0) {
      if (error == 0) error = errno;
      continue;
    }
    const auto own = SocketAddress::local(socket.get());
    if (own.is_loopback() && !is_loopback_name(peer)) {
      if (std::string outward = outward_address(); !outward.empty()) return outward;
    }
    return numeric(own.get(), own.size());
  }
  throw SystemError("finding this host's address towards " + peer, error);
}

std::vector<std::string> own_addresses() {
  std::vector<OwnAddress> all = addresses_of_interfaces();
  std::erase_if(all, [](const auto& one) { return one.is_link_local || one.text.empty(); });
  std::ranges::stable_sort(
      all, {}, [](const auto& one) { return std::pair(one.is_loopback, one.family != AF_INET); });
  std::vector<std::string> texts;
  for (OwnAddress& address : all) texts.push_back(std::move(address.text));
  return texts.empty() ? std::vector<std::string>{"127.0.0.1"} : texts;
}

std::string all_addresses() {
  const FileDescriptor six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return six ? "::" : "0.0.0.0";
}

}  // namespace lockstep::sys
