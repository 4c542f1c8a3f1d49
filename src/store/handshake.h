// The secrets of a connection: what proves that a side knows the store's secret, and the keys of
// the two encrypted streams. Pure functions of the secret and two nonces; libsodium's BLAKE2b
// (crypto_generichash) does the work.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep::store {

inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::size_t proof_bytes = 32;
inline constexpr std::size_t stream_key_bytes = 32;

using Nonce = std::array<unsigned char, nonce_bytes>;
using Proof = std::array<unsigned char, proof_bytes>;
using StreamKey = std::array<unsigned char, stream_key_bytes>;

// One chosen by each side; neither side alone can bring back an old conversation.
struct Nonces {
  Nonce server{};
  Nonce client{};
};

[[nodiscard]] Nonce random_nonce();

// A key made from the secret. Its memory is wiped at the end. Any secret will do, the empty one
// too: then every peer knows it.
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

// In a time that does not depend on where they differ.
[[nodiscard]] bool equal(const Proof& a, const Proof& b);

}  // namespace lockstep::store
