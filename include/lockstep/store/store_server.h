// StoreServer: holds a store's values for clients that come over TCP (TcpStore).
//
// Both sides know a secret. Neither ever sends it: each proves that it knows it by answering the
// other's random challenge, and the conversation that follows is encrypted and authenticated
// (src/store/wire.h has the bytes). A peer without the secret learns nothing, and cannot keep
// others waiting by sending garbage, slowly or not at all, nor by many connections: it competes for
// a place to prove itself with its own address first, and then by lot. A peer with it is trusted.
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
  // Where to listen. Anything but a loopback address lets other hosts connect, and then a secret
  // is required. "@NAME" is a socket of this host only (Linux: an abstract name, gone with its last
  // user): nobody but processes of the same user is let in.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one, see port()
  std::string secret;      // any bytes; 32 random ones are best
  // A connection that has not proven by then that it knows the secret is closed. When there are
  // more than `max_unproven` of these, one is closed: any one of those from the address that has
  // most (of IPv6 the first 64 bits count).
  Duration handshake_timeout = std::chrono::seconds(10);
  int max_unproven = 256;
  // Of keys and values together; what would go beyond it is refused.
  std::size_t max_bytes = std::size_t{1} << 30;
  // A file in which the store is kept (src/store/log.h has the bytes): a server that is started
  // anew with it goes on as the same store, for clients with TcpStoreOptions::reconnect too. Each
  // change is on the disk before its client has the reply, which costs a millisecond or more.
  // Empty: the store ends with its server.
  std::filesystem::path log = {};
  // A client whose host has not answered the kernel's questions for that long has gone.
  Duration lost_after = std::chrono::seconds(25);
};

class StoreServer {
 public:
  // Listens at once and serves from a thread of its own. BadInput when the port is in use, the host
  // unknown, or a secret missing where one is required; and when the log is in use by another
  // server, no log, or damaged, but for a last record that was not finished: that is cut off.
  explicit StoreServer(StoreServerOptions options);
  // Closes every connection: calls that wait on the clients end with PeerLost.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // False when the server has ended by itself, after a line in the library's log: it could not wait
  // for connections any more, or could not write its log.
  [[nodiscard]] bool serves() const;
  [[nodiscard]] std::uint16_t port() const;
  // "127.0.0.1:1234", "@NAME"
  [[nodiscard]] std::string address() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep

#pragma GCC visibility pop
