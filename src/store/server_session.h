// The server's side of one connection, without the connection: bytes in, bytes out, messages. It
// knows the handshake and the sealing; sockets, time and what messages mean are others' business.
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
  // Greets at once: there is output.
  explicit ServerSession(const StoreKey& key);

  // What came from the client, in pieces of any size. BadInput when it breaks the protocol: send
  // what output there is, then close. Until the client has proven itself no more than one
  // handshake's bytes are kept.
  void receive(std::string_view bytes);
  // The next request that is complete. BadInput as receive().
  [[nodiscard]] std::optional<Message> next();
  // Seals a reply into the output. The client must be proven.
  void send(const Message& message);

  [[nodiscard]] bool proven() const { return sealer_.has_value(); }
  // Of requests that have come in part.
  [[nodiscard]] std::size_t held_bytes() const { return frames_.held(); }
  // Bytes for the client that are not sent yet; tell how many have been.
  [[nodiscard]] std::string_view output() const { return std::string_view(output_).substr(sent_); }
  void mark_sent(std::size_t bytes);

 private:
  void read_proof();
  void read_header();

  StoreKey key_;
  Nonces nonces_;
  std::string handshake_;  // what has come of the handshake's current part
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
  FrameReader frames_{seal_bytes};
  std::string output_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep::store
