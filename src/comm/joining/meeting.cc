#include "comm/joining/meeting.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>
#include <lockstep/store/open.h>

#include "comm/c10d/store_adapter.h"
#include "comm/one_line.h"
#include "sys/file_descriptor.h"
#include "sys/socket_address.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace lockstep::joining {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<Store> open_c10d(const Place& place, Deadline deadline) {
  const auto& at = *place.rendezvous;
  bool serves = at.kind == Rendezvous::Kind::rank_0 && place.rank == 0;
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serves;
  options.waitWorkers = false;
  options.multiTenant =
      true;  // a second group of this process while the first still holds the port
  options.timeout = std::max(
      milliseconds(100), std::min<milliseconds>(std::chrono::ceil<milliseconds>(deadline.left()),
                                                std::chrono::hours(24)));
  try {
    return c10d_engine::as_store(c10::make_intrusive<c10d::TCPStore>(at.host, options), "");
  } catch (const std::exception& error) {
    if (serves)
      throw BadInput(formatted("rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, {}:{}: {}",
                               at.host, at.port, first_line(error.what())));
    auto who =
        at.kind == Rendezvous::Kind::rank_0 ? "rank 0, which listens there, " : "torchrun's store ";
    throw Timeout(
        formatted("rank {} found nobody at MASTER_ADDR:MASTER_PORT, {}:{}: {}did not arrive ({})",
                  place.rank, at.host, at.port, who, first_line(error.what())));
  }
}

}  // namespace

std::shared_ptr<Store> open_meeting(const Place& place, Deadline deadline) {
  if (place.rendezvous->kind != Rendezvous::Kind::lockstep_store) return open_c10d(place, deadline);
  return open_store(place.rendezvous->address, read_secret(), deadline.left());
}

std::string address_towards(const std::string& peer) {
  // Connecting a datagram socket sends nothing; it only chooses the interface.
  auto address = sys::SocketAddress::tcp(peer, 9);
  sys::FileDescriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), address.get(), address.size()) != 0) {
    throw SystemError(formatted("finding this machine's address towards {}", peer), errno);
  }
  auto own = sys::SocketAddress::local(socket.get());
  char host[NI_MAXHOST];
  if (::getnameinfo(own.get(), own.size(), host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    throw SystemError(formatted("naming this machine's address towards {}", peer), errno);
  }
  return host;
}

}  // namespace lockstep::joining
