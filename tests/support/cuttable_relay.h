// A proxy that forwards TCP connections to a server on this host and can interrupt them.
#pragma once

#include "sys/sockets.h"

#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include <poll.h>

#include <lockstep/base/error.h>

namespace lockstep::test {

class CuttableRelay {
 public:
  // 0 picks a free `port`.
  explicit CuttableRelay(std::uint16_t server_port, std::uint16_t port = 0)
      : server_port_(server_port),
        listener_(sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", port))),
        port_(sys::SocketAddress::local(listener_.get()).port()),
        thread_([this] { carry(); }) {}
  ~CuttableRelay() {
    ends_ = true;
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  // Closes all connections; new ones are closed immediately until heal().
  void cut() {
    const std::lock_guard lock(mutex_);
    is_cut_ = true;
    pairs_.clear();
  }
  void heal() {
    const std::lock_guard lock(mutex_);
    is_cut_ = false;
  }
  // Closes the connections to the clients; connections to the server stay open until
  // close_to_server().
  void close_to_clients() {
    const std::lock_guard lock(mutex_);
    for (Pair& pair : pairs_) pair.client.reset();
  }
  void close_to_server() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pairs_, [](const Pair& pair) { return !pair.client; });
  }

 private:
  struct Pair {
    sys::FileDescriptor client, server;
  };

  void carry() {
    while (!ends_) {
      pollfd entry{listener_.get(), POLLIN, 0};
      ::poll(&entry, 1, 2);
      const std::lock_guard lock(mutex_);
      accept_one();
      std::erase_if(pairs_, [](Pair& pair) { return pair.client && !moved(pair); });
    }
  }

  void accept_one() {
    try {
      sys::FileDescriptor client = sys::accept_now(listener_.get());
      if (!client || is_cut_) return;
      auto soon = Deadline::after(std::chrono::seconds(20));
      pairs_.push_back({std::move(client),
                        sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", server_port_), soon)});
    } catch (const Error&) {
      return;  // like a server that refuses the connection
    }
  }

  // Returns false once one side has closed its connection.
  static bool moved(Pair& pair) {
    try {
      move(pair.client.get(), pair.server.get());
      move(pair.server.get(), pair.client.get());
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static void move(int from, int to) {
    std::array<std::byte, 64 << 10> buffer;
    const auto count = sys::receive_now(from, buffer);
    if (count)
      sys::send_all(to, std::span(buffer).first(*count), Deadline::after(std::chrono::seconds(20)));
  }

  const std::uint16_t server_port_;
  sys::FileDescriptor listener_;
  const std::uint16_t port_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  bool is_cut_ = false;
  std::list<Pair> pairs_;
  std::thread thread_;
};

}  // namespace lockstep::test
