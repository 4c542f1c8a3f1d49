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
  std::string host = "127.0.0.1";  // Or "@NAME", whose server must run as the same user.
  std::uint16_t port = 0;
  std::string secret;  // The server's secret.
  // How long to try to connect; the server may start later than its clients. An unknown host name
  // is looked up again for 10 s at most.
  Duration connect_timeout = std::chrono::minutes(5);
  // How long the server may take to answer a call that does not block on the server.
  Duration call_timeout = std::chrono::seconds(60);
  // If the connection breaks: how long to try to reach the same store again, while calls wait. A
  // restarted server is the same store if it has its log (StoreServerOptions::log); otherwise it is
  // a different store. With 0, a broken connection ends the store. A call that does not block on
  // the server may take this long if `call_timeout` is shorter.
  Duration reconnect = {};
  // The server is considered lost if its host has not answered TCP keepalive probes for this long.
  Duration lost_after = std::chrono::seconds(25);
};

// One connection that all threads share: a blocked get() or wait() does not delay other calls.
// get() and wait() return about a second after their deadline even if the server hangs.
//
// Throws BadInput if the host is unknown, or the server rejects the secret or is not a store, and
// Timeout if no server answers. Throws PeerLost, in this and every later call, if the server is
// gone: immediately, or once it could not be reached again within `reconnect`. Not usable in a
// forked child.
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

  // Registers a value with the server: when this connection ends, in order or not, the server
  // writes `value` under `key`, unless `key` already has a value. This lets other clients detect
  // that this process or its host is gone. At most 16 keys per connection, with values of at most
  // 64 KiB; a second call for a key replaces the first.
  void set_on_disconnect(std::string_view key, std::string_view value);
  // Closes the connection, as the destructor does: calls that wait, and all later calls, throw
  // PeerLost. Thread-safe.
  void disconnect() noexcept;
  // Returns the local address of the connection without its port, such as "10.0.0.7".
  [[nodiscard]] std::string own_address() const;
  // Returns the number of connections made so far; greater than one after a reconnect.
  [[nodiscard]] std::int64_t connections() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep

#pragma GCC visibility pop
