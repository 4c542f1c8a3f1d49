#include <lockstep/store/store_server.h>

#include "base/check.h"
#include "store/server_loop.h"
#include "sys/sockets.h"

#include <utility>

namespace lockstep {

StoreServer::StoreServer(StoreServerOptions options) {
  check(options.max_unproven > 0, "StoreServer: max_unproven must be at least 1, found {}",
        options.max_unproven);
  sys::SocketAddress address = sys::SocketAddress::of(options.host, options.port);
  check_input(!options.secret.empty() || address.is_loopback(),
              "store at {}: a store that other hosts can reach needs a secret: set "
              "StoreServerOptions::secret",
              address.text());
  sys::FileDescriptor listener = sys::listen_on(address);
  loop_ = std::make_unique<Loop>(std::move(options), std::move(listener));
}

StoreServer::~StoreServer() {
  if (loop_->is_copy_of_parent()) (void)loop_.release();  // the child has no thread to join
}

std::uint16_t StoreServer::port() const { return loop_->port(); }

bool StoreServer::serves() const { return loop_->serves(); }

std::string StoreServer::address() const { return loop_->address(); }

}  // namespace lockstep
