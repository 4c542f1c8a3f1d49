#include "support/free_port.h"

#include <cerrno>
#include <system_error>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep::test {

std::uint16_t free_port() {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bool ok = socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
            ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  int error = errno;
  if (socket >= 0) ::close(socket);
  if (!ok) throw std::system_error(error, std::generic_category(), "looking for a free port");
  return ntohs(address.sin_port);
}

}  // namespace lockstep::test
