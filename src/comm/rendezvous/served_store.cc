#include "comm/rendezvous/served_store.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>
#include <lockstep/store/secret.h>
#include <lockstep/store/store_server.h>

#include <mutex>
#include <string>
#include <utility>

#include <unistd.h>

namespace lockstep::rendezvous {
namespace {

std::string secret_of(const rank_env::RankRendezvous& at) {
  if (at.port == 0) return {};
  auto secret = rank_env::read_secret();
  return secret.empty() ? user_secret() : secret;
}

StoreServerOptions server_options(const rank_env::RankRendezvous& at, std::string secret) {
  if (at.port == 0) return {.host = at.address.substr(std::string_view("unix:").size())};
  // The host's own name is often a loopback address, so listen on all addresses; the secret keeps
  // others out.
  return {.host = "0.0.0.0", .port = at.port, .secret = std::move(secret)};
}

// The server of this process, which can listen at its address only once: a second group that is
// made while the first lives shares it.
std::shared_ptr<StoreServer> serve(const rank_env::RankRendezvous& at, const std::string& secret) {
  static std::mutex mutex;
  static std::weak_ptr<StoreServer> served;
  static std::string address;
  static pid_t process = 0;  // a forked child has the pointer, but not the server's thread
  std::lock_guard lock(mutex);
  auto server = process == ::getpid() && address == at.address ? served.lock() : nullptr;
  if (server) return server;
  server = std::make_shared<StoreServer>(server_options(at, secret));
  served = server;
  address = at.address;
  process = ::getpid();
  return server;
}

}  // namespace

std::shared_ptr<Store> keep_serving(std::shared_ptr<StoreServer> server,
                                    std::shared_ptr<Store> store) {
  auto* client = store.get();
  auto both = std::make_shared<std::pair<std::shared_ptr<StoreServer>, std::shared_ptr<Store>>>(
      std::move(server), std::move(store));
  return {std::move(both), client};
}

std::shared_ptr<Store> open_served_store(const rank_env::RankInfo& info, Deadline deadline) {
  const rank_env::RankRendezvous& at = *info.rendezvous;
  auto secret = secret_of(at);
  if (info.rank == 0) {
    auto server = serve(at, secret);
    auto own = at.port == 0 ? at.address : formatted("tcp://127.0.0.1:{}", at.port);
    return keep_serving(server, open_store(own, secret, deadline.left()));
  }
  try {
    return open_store(at.address, secret, deadline.left());
  } catch (const Timeout& error) {
    throw Timeout(
        formatted("rank {} timed out connecting to {}: rank 0, which serves the store there, did "
                  "not arrive ({})",
                  info.rank, at.address, error.what()));
  }
}

}  // namespace lockstep::rendezvous
