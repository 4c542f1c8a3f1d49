// StoreServer: holds the values of a store and serves them to clients over TCP (TcpStore).
//
// Server and client share a secret. Neither side ever sends the secret: each proves that it knows
// the secret by answering the other's random challenge, and the connection is then encrypted and
// authenticated (src/store/wire.h documents the bytes). A peer without the secret learns nothing.
// Such a peer cannot block other clients by sending garbage, by sending slowly or not at all, or by
// opening many connections: if there are too many unauthenticated connections, the server closes
// one from the address that has the most. A peer that knows the secret is trusted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <lockstep/base/deadline.h>

#pragma GCC visibility push(default)

namespace lockstep {

struct StoreServerOptions {
  // The address to listen on. An address other than a loopback address lets other hosts connect; a
  // secret is then required. "@NAME" is a socket of this host only (on Linux an abstract socket,
  // removed with its last user) that accepts only processes of the same user.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0 picks a free port; see port().
  std::string secret;      // Any bytes; 32 random bytes are best.
  // A connection whose client has not proven within this time that it knows the secret is closed.
  // If more than `max_unproven` such connections are open, the server closes a random one from the
  // address with the most connections (IPv6 addresses count by their first 64 bits). So it does if
  // this process has no descriptor left for a new connection.
  Duration handshake_timeout = std::chrono::seconds(10);
  int max_unproven = 256;
  // Limit for all keys and values together. A call that would exceed it is refused.
  std::size_t max_bytes = std::size_t{1} << 30;
  // A file in which the store is persisted (src/store/log.h documents the bytes). A server that is
  // restarted with the same file continues as the same store, also for clients with
  // TcpStoreOptions::reconnect. Each change is on disk before the client gets its reply, which
  // costs a millisecond or more. If empty, the store's content is lost when the server ends.
  std::filesystem::path log = {};
  // A client is considered lost if its host has not answered TCP keepalive probes for this long.
  Duration lost_after = std::chrono::seconds(25);
};

class StoreServer {
 public:
  // Listens immediately and serves from its own thread. Throws BadInput if the port is in use, the
  // host is unknown, or a required secret is missing. Throws BadInput if the log is in use by
  // another server, is not a log, or is damaged; an incomplete last record is not an error and is
  // truncated.
  explicit StoreServer(StoreServerOptions options);
  // Closes every connection: waiting calls of the clients throw PeerLost.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Returns false if the server has ended by itself because it could not wait for connections or
  // write its log any more. The server logs the reason first.
  [[nodiscard]] bool serves() const;
  [[nodiscard]] std::uint16_t port() const;
  // Returns the address, such as "127.0.0.1:1234" or "@NAME".
  [[nodiscard]] std::string address() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep

#pragma GCC visibility pop
