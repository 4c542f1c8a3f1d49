// The handshake of a connection and the encrypted streams after it: both sides prove that they know
// the store's secret, and derive the keys of the two streams from the secret and two nonces with
// libsodium's BLAKE2b (crypto_generichash). wire.h documents the bytes.
#pragma once

#include <lockstep/base/deadline.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <sodium.h>

#include "store/wire.h"

namespace lockstep::store {

// Converts between text and the unsigned bytes that libsodium uses.
inline unsigned char* unsigned_bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

inline const unsigned char* unsigned_bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

inline constexpr std::size_t stream_header_bytes = 24;
inline constexpr std::size_t seal_bytes = 17;
// The sizes of a nonce, and of everything that StoreKey derives.
inline constexpr std::size_t nonce_bytes = 32, proof_bytes = 32;

static_assert(stream_header_bytes == crypto_secretstream_xchacha20poly1305_HEADERBYTES);
static_assert(seal_bytes == crypto_secretstream_xchacha20poly1305_ABYTES);
static_assert(proof_bytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);

// One direction of an encrypted connection. Third parties can neither read the messages nor change,
// drop, repeat or reorder them undetected (libsodium's crypto_secretstream).
class Sealer {
 public:
  // `key` is derived from the store's key (StoreKey).
  explicit Sealer(std::string_view key);
  // Returns the header, which must be sent to the other side before the first frame.
  [[nodiscard]] const std::string& header() const { return header_; }
  // Returns a complete frame including its length.
  [[nodiscard]] std::string seal(std::string_view message);

 private:
  crypto_secretstream_xchacha20poly1305_state state_{};
  std::string header_;
};

class Opener {
 public:
  // Throws BadInput if the header is invalid.
  Opener(std::string_view key, std::string_view header);
  // Decrypts the content of a frame, given without its length. Throws BadInput unless `sealed` is
  // the next frame that the other side sealed.
  [[nodiscard]] std::string open(std::string_view sealed);

 private:
  crypto_secretstream_xchacha20poly1305_state state_{};
};

// One nonce from each side, so that neither side can replay an old connection.
struct Nonces {
  std::string server, client;
};

// The labels of StoreKey::derive().
inline constexpr std::string_view server_proof = "lockstep store: proof of the server";
inline constexpr std::string_view client_proof = "lockstep store: proof of the client";
inline constexpr std::string_view key_to_server = "lockstep store: stream to the server";
inline constexpr std::string_view key_to_client = "lockstep store: stream to the client";

// A key derived from the secret. The destructor wipes its memory. The secret may be empty; then
// every peer knows it.
class StoreKey {
 public:
  explicit StoreKey(std::string_view secret);
  ~StoreKey();
  StoreKey(const StoreKey&) = default;
  StoreKey& operator=(const StoreKey&) = default;

  // Returns a proof of one side, or the key of one stream, as `label` says.
  [[nodiscard]] std::string derive(std::string_view label, const Nonces& nonces) const;

 private:
  std::array<unsigned char, proof_bytes> key_{};
};

// Compares two proofs in constant time.
[[nodiscard]] bool equal(std::string_view a, std::string_view b);

struct ClientStreams {
  Sealer to_server;
  Opener from_server;
};

// Blocks until both sides have proven that they know the secret. `address` is for messages. Throws
// BadInput if the server refuses, does not know the secret itself, or speaks another protocol;
// PeerLost if the server closed the connection (it may be busy: try again); Timeout at the
// deadline.
[[nodiscard]] ClientStreams shake_hands(int socket, std::string_view address, const StoreKey& key,
                                        Deadline deadline);

// The protocol of one connection on the server's side, without any I/O: bytes in, bytes out,
// messages. The session implements the handshake and the encryption; the server loop handles
// sockets, time and the meaning of messages.
class ServerSession {
 public:
  // Writes the greeting to the output.
  explicit ServerSession(const StoreKey& key);

  // Consumes bytes from the client, in pieces of any size. Throws BadInput if the client violates
  // the protocol: send the remaining output, then close. Until the client is authenticated, stores
  // at most the bytes of one handshake.
  void receive(std::string_view bytes);
  // Returns the next complete request, if any. Throws BadInput as receive() does.
  [[nodiscard]] std::optional<Message> next();
  // Appends a sealed reply to the output. The client must be authenticated.
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
