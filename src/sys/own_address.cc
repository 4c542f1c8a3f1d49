#include "sys/own_address.h"

#include "sys/file_descriptor.h"
#include "sys/socket_address.h"

#include <cerrno>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

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

// Of the interfaces that are up.
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

// Not the loopback; IPv4 before IPv6, link-local ones not.
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

bool is_loopback_name(std::string_view host) {
  const std::string name(host);
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, name.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, name.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return name == "localhost";
}

std::string address_towards(const std::string& peer) {
  // Connecting a datagram socket sends nothing; it only chooses the interface.
  const auto address = SocketAddress::tcp(peer, 9);
  const FileDescriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), address.get(), address.size()) != 0)
    throw SystemError("finding this host's address towards " + peer, errno);
  const auto own = SocketAddress::local(socket.get());
  if (own.is_loopback() && !is_loopback_name(peer)) {
    if (std::string outward = outward_address(); !outward.empty()) return outward;
  }
  return numeric(own.get(), own.size());
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> outer;
  std::vector<std::string> inner;
  for (const auto& address : addresses_of_interfaces()) {
    if (address.family != AF_INET || address.text.empty()) continue;
    (address.is_loopback ? inner : outer).push_back(address.text);
  }
  outer.insert(outer.end(), inner.begin(), inner.end());
  return outer.empty() ? std::vector<std::string>{"127.0.0.1"} : outer;
}

}  // namespace lockstep::sys
