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

// Of an interface that is up and not the loopback; IPv4 before IPv6, link-local ones not.
std::string outward_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  std::string six;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_up || entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET) return numeric(entry->ifa_addr, sizeof(sockaddr_in));
    if (entry->ifa_addr->sa_family != AF_INET6 || !six.empty()) continue;
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr))
      six = numeric(entry->ifa_addr, sizeof(sockaddr_in6));
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
    throw SystemError("finding this machine's address towards " + peer, errno);
  const auto own = SocketAddress::local(socket.get());
  if (own.is_loopback() && !is_loopback_name(peer)) {
    if (std::string outward = outward_address(); !outward.empty()) return outward;
  }
  return numeric(own.get(), own.size());
}

}  // namespace lockstep::sys
