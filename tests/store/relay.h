// A proxy for one connection to a server: it records the bytes in both directions and can change
// those to the client.
#pragma once

#include "support/sockets.h"
#include "sys/sockets.h"

#include <array>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <poll.h>

#include <lockstep/base/error.h>

namespace lockstep::test {

class Relay {
 public:
  // `change` is called for every piece sent to the client, with the number of bytes before it.
  using Change = std::function<void(std::size_t before, std::string& piece)>;

  explicit Relay(std::uint16_t server_port, Change change = {})
      : listener_(sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0))),
        port_(sys::SocketAddress::local(listener_.get()).port()),
        thread_([this, server_port, change = std::move(change)] { carry(server_port, change); }) {}
  ~Relay() { thread_.join(); }  // ends when either side has closed its connection

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string to_server() const { return copy(to_server_); }
  [[nodiscard]] std::string to_client() const { return copy(to_client_); }

 private:
  [[nodiscard]] std::string copy(const std::string& record) const {
    std::lock_guard lock(mutex_);
    return record;
  }

  void carry(std::uint16_t server_port, const Change& change) {
    auto soon = Deadline::after(std::chrono::seconds(20));
    try {
      auto client = test::accept_one(listener_.get(), soon);
      listener_.reset();
      auto server = sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", server_port), soon);
      for (;;) {
        std::array<pollfd, 2> entries{{{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}}};
        ::poll(entries.data(), entries.size(), 1000);
        move(client.get(), server.get(), to_server_, {});
        move(server.get(), client.get(), to_client_, change);
      }
    } catch (const Error&) {
      return;  // one side has closed: close both
    }
  }

  void move(int from, int to, std::string& record, const Change& change) {
    std::string piece(64 << 10, '\0');
    auto count = sys::receive_now(from, std::as_writable_bytes(std::span(piece)));
    if (!count) return;
    piece.resize(*count);
    if (change) change(record.size(), piece);
    {
      std::lock_guard lock(mutex_);
      record += piece;
    }
    sys::send_all(to, sys::bytes_of(piece), Deadline::after(std::chrono::seconds(20)));
  }

  mutable std::mutex mutex_;
  std::string to_server_, to_client_;
  sys::FileDescriptor listener_;
  std::uint16_t port_;
  std::thread thread_;
};

}  // namespace lockstep::test
