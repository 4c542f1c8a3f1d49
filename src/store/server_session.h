// The protocol of one connection on the server's side, without any I/O: bytes in, bytes out,
// messages. The session implements the handshake and the encryption; the server loop handles
// sockets, time and the meaning of messages.
#pragma once

#include "store/handshake.h"
#include "store/sealed_stream.h"
#include "store/wire.h"

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::store {

class ServerSession {
 public:
  // Writes the greeting to the output.
  explicit ServerSession(const StoreKey& key);

  // Consumes bytes from the client, in pieces of any size. Throws BadInput if the client violates
  // the protocol: send the remaining output, then close. Until the client has proven itself, stores
  // at most the bytes of one handshake.
  void receive(std::string_view bytes);
  // Returns the next complete request, if any. Throws BadInput as receive() does.
  [[nodiscard]] std::optional<Message> next();
  // Seals a reply into the output. The client must be proven.
  void send(const Message& message);

  [[nodiscard]] bool proven() const { return sealer_.has_value(); }
  // Returns the number of bytes of incomplete requests.
  [[nodiscard]] std::size_t held_bytes() const { return frames_.held(); }
  // Bytes that must still be sent to the client; report sent bytes with mark_sent().
  [[nodiscard]] std::string_view output() const { return std::string_view(output_).substr(sent_); }
  void mark_sent(std::size_t bytes);

 private:
  void read_proof();
  void read_header();

  StoreKey key_;
  Nonces nonces_;
  std::string handshake_;  // received bytes of the current part of the handshake
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
  FrameReader frames_{seal_bytes};
  std::string output_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep::store
