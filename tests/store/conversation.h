// A client without a socket, for tests that exchange bytes with a ServerSession directly.
#pragma once

#include "store/handshake.h"
#include "store/wire.h"
#include "sys/random_bytes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::store {

class TestClient {
 public:
  explicit TestClient(std::string_view secret) : key_(secret) {}

  // Returns the client's first bytes, given the server's greeting.
  std::string prove(std::string_view greeting) {
    nonces_ = {std::string(greeting.substr(magic.size(), nonce_bytes)),
               sys::random_bytes(nonce_bytes)};
    return std::string(magic) + nonces_.client + key_.derive(client_proof, nonces_);
  }

  // Returns the client's last bytes of the handshake, given the server's answer.
  std::string begin(std::string_view answer) {
    sealer_.emplace(key_.derive(key_to_server, nonces_));
    opener_.emplace(key_.derive(key_to_client, nonces_), answer.substr(proof_bytes));
    return sealer_->header();
  }

  std::string seal(const Message& message) { return seal_bytes(encode(message)); }
  // Seals bytes that need not be a valid message.
  std::string seal_bytes(std::string_view bytes) { return sealer_->seal(bytes); }
  Message open(std::string_view sealed) { return decode(opener_->open(sealed)); }

 private:
  StoreKey key_;
  Nonces nonces_;
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
};

// Returns the output of the server and marks it as sent.
inline std::string take_output(ServerSession& session) {
  std::string output(session.output());
  session.mark_sent(output.size());
  return output;
}

}  // namespace lockstep::store
