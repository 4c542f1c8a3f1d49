// The handshake of a connection: both sides prove that they know the store's secret, and derive the
// keys of the two encrypted streams from the secret and two nonces with libsodium's BLAKE2b
// (crypto_generichash). wire.h documents the bytes.
#pragma once

#include "store/sealed_stream.h"

#include <lockstep/base/deadline.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep::store {

inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::size_t proof_bytes = 32;

using Nonce = std::array<unsigned char, nonce_bytes>;
using Proof = std::array<unsigned char, proof_bytes>;

// One nonce from each side, so that neither side alone can replay an old connection.
struct Nonces {
  Nonce server{};
  Nonce client{};
};

[[nodiscard]] Nonce random_nonce();

// A key derived from the secret. The destructor wipes its memory. The secret may be empty; then
// every peer knows it.
class StoreKey {
 public:
  explicit StoreKey(std::string_view secret);
  ~StoreKey();
  StoreKey(const StoreKey&) = default;
  StoreKey& operator=(const StoreKey&) = default;

  [[nodiscard]] Proof server_proof(const Nonces& nonces) const;
  [[nodiscard]] Proof client_proof(const Nonces& nonces) const;
  [[nodiscard]] StreamKey key_to_server(const Nonces& nonces) const;
  [[nodiscard]] StreamKey key_to_client(const Nonces& nonces) const;

 private:
  [[nodiscard]] std::array<unsigned char, 32> derive(std::string_view label,
                                                     const Nonces& nonces) const;

  std::array<unsigned char, 32> key_{};
};

// Compares in constant time.
[[nodiscard]] bool equal(const Proof& a, const Proof& b);

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

}  // namespace lockstep::store
