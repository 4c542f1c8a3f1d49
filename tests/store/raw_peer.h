// A connection to a store's server that sends arbitrary bytes and receives the whole answer.
#pragma once

#include "store/conversation.h"
#include "store/handshake.h"
#include "store/wire.h"
#include "sys/sockets.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::store {

inline constexpr std::size_t greeting_bytes = magic.size() + nonce_bytes;
inline constexpr std::size_t proof_part_bytes = magic.size() + nonce_bytes + proof_bytes;
inline constexpr std::size_t answer_bytes = proof_bytes + stream_header_bytes;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool is_sanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool is_sanitized = false;
#endif

// Returns this process's resident bytes. With a sanitizer, which keeps freed memory, a bound on
// them is meaningless.
inline std::size_t resident_bytes() {
  unsigned long total = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r"); file != nullptr) {
    if (std::fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port)
      : deadline_(Deadline::after(std::chrono::seconds(20))),
        socket_(sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", port), deadline_)) {}

  [[nodiscard]] int socket() const { return socket_.get(); }

  // Returns false if the server has closed the connection.
  bool send(std::string_view bytes) {
    try {
      sys::send_all(socket_.get(), sys::bytes_of(bytes), deadline_);
      return true;
    } catch (const PeerLost&) {
      return false;
    }
  }

  // Throws PeerLost if the server closes the connection early, and Timeout if it sends nothing.
  std::string receive(std::size_t size) {
    std::string text(size, '\0');
    sys::receive_exact(socket_.get(), std::as_writable_bytes(std::span(text)), deadline_);
    return text;
  }

  // Shuts down the sending side and returns everything that the server sends until it closes the
  // connection. Throws Timeout if the server does not close the connection.
  std::string finish() {
    ::shutdown(socket_.get(), SHUT_WR);
    std::string all, piece(64 << 10, '\0');
    try {
      for (;;) {
        auto count = sys::receive_now(socket_.get(), std::as_writable_bytes(std::span(piece)));
        if (count) {
          all.append(piece, 0, *count);
        } else if (!sys::wait_ready(socket_.get(), POLLIN, deadline_)) {
          throw Timeout("the server did not close the connection");
        }
      }
    } catch (const PeerLost&) {
      return all;
    }
  }

  // Completes the handshake of a client that knows the secret.
  void begin(TestClient& client) {
    send(client.prove(receive(greeting_bytes)));
    send(client.begin(receive(answer_bytes)));
  }

  std::string receive_sealed() {
    std::string length = receive(4);
    std::size_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      size |= static_cast<std::size_t>(static_cast<unsigned char>(length[i])) << (8 * i);
    }
    return receive(size);
  }

 private:
  Deadline deadline_;
  sys::FileDescriptor socket_;
};

}  // namespace lockstep::store
