// TcpStore: the client of a StoreServer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // or "@NAME", which must belong to the same user
  std::uint16_t port = 0;
  std::string secret;  // the server's
  // The server may start later than its clients: how long to try.
  Duration connect_timeout = std::chrono::minutes(5);
  // How long the server may take to answer a call that does not block there.
  Duration call_timeout = std::chrono::seconds(60);
  // When the connection breaks: how long to try to reach the same store again, while calls wait. A
  // server that was started anew is the same store when it has its log
  // (StoreServerOptions::log); another one is none. 0: a broken connection is the store's end.
  // Calls that do not block there then have this long too.
  Duration reconnect = {};
  // A server whose host has not answered the kernel's questions for that long has gone.
  Duration lost_after = std::chrono::seconds(25);
};

// One connection, shared by all threads: a blocked get() or wait() holds up no other call. get()
// and wait() end about a second after their deadline even when the server is stuck.
//
// BadInput when the server does not accept the secret, or is no store; Timeout when nobody answers;
// PeerLost when the server has gone, then and for every later call: at once, or when it could not
// be reached again within `reconnect`. Not usable in a forked child.
class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override;
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override;

  // Leaves a value with the server: when this connection has ended, in order or not, the server
  // writes `value` under `key`, unless the key has a value by then. So others learn that this
  // process or its host has gone. At most 16 keys a connection, of at most 64 KiB each; a second
  // call for a key replaces the first.
  void set_on_disconnect(std::string_view key, std::string_view value);
  // Ends the connection, as the destructor does: calls that wait, and all later ones, throw
  // PeerLost. From any thread.
  void disconnect() noexcept;
  // This end of the connection, without its port: "10.0.0.7".
  [[nodiscard]] std::string own_address() const;
  // How many connections have been made so far: more than one after it was reached again.
  [[nodiscard]] std::int64_t connections() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep

#pragma GCC visibility pop
