#include "store/handshake.h"

#include <sodium.h>

#include <lockstep/base/error.h>

#include "store/unsigned_bytes.h"

namespace lockstep::store {

Nonce random_nonce() {
  if (sodium_init() < 0) throw SystemError("starting libsodium", 0);
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

StoreKey::StoreKey(std::string_view secret) {
  constexpr std::string_view label = "lockstep store: key of the secret";
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, key_.size());
  crypto_generichash_update(&state, unsigned_bytes_of(label), label.size());
  crypto_generichash_update(&state, unsigned_bytes_of(secret), secret.size());
  crypto_generichash_final(&state, key_.data(), key_.size());
}

StoreKey::~StoreKey() { sodium_memzero(key_.data(), key_.size()); }

std::array<unsigned char, 32> StoreKey::derive(std::string_view label, const Nonces& nonces) const {
  std::array<unsigned char, 32> result{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), result.size());
  crypto_generichash_update(&state, unsigned_bytes_of(label), label.size());
  crypto_generichash_update(&state, nonces.server.data(), nonces.server.size());
  crypto_generichash_update(&state, nonces.client.data(), nonces.client.size());
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
}

Proof StoreKey::server_proof(const Nonces& nonces) const {
  return derive("lockstep store: proof of the server", nonces);
}

Proof StoreKey::client_proof(const Nonces& nonces) const {
  return derive("lockstep store: proof of the client", nonces);
}

StreamKey StoreKey::key_to_server(const Nonces& nonces) const {
  return derive("lockstep store: stream to the server", nonces);
}

StreamKey StoreKey::key_to_client(const Nonces& nonces) const {
  return derive("lockstep store: stream to the client", nonces);
}

bool equal(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::store
